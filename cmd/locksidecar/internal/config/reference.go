package config

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// referenceHead has a quotation mark for each backtick.
const referenceHead = `# Configuration

'locksidecar config reference' generates this page from the tables that the program itself uses.

A value comes from one of these, each overriding the ones before it: the built-in default, the
YAML file that '--config' or 'LOCKSIDECAR_CONFIG' names, the environment, flags. The variable of a
field is its path in capitals: 'LOCKSIDECAR_MAX_WAIT', 'LOCKSIDECAR_LIMITS_MAX_CONNS'. Below each
field are its values, its default and flag if it has them, and an example.

Times have units: '500ms', '30s', '1h30m'. A list is '[a, b]' in the file and 'a,b' elsewhere. An
empty variable counts as not set. An unknown variable is ignored; misspelt ones, unknown or
duplicate fields and unknown flags are errors. A file with an error is refused as a whole.
'locksidecar config check' shows which values apply
([Configure](../operate/configure.md#check-and-reload)).

SIGHUP ('systemctl reload locksidecar') makes the daemon read the file again, but not the
environment and the flags. A file that changes a field marked *restart* is refused as a whole
('reload_refused' in the log).

These variables are not fields of the file:

* 'GOMAXPROCS' limits the threads for Go code. If it is not set, the daemon chooses.
* 'GOGC' and 'GOMEMLIMIT' control garbage collection. If neither is set, the daemon collects large
  heaps when they have grown by two thirds, and every five minutes.
* 'XDG_RUNTIME_DIR' is the default directory of the socket for users other than root.
* 'NOTIFY_SOCKET', 'WATCHDOG_USEC' and 'LISTEN_FDS' are set by systemd.
`

// WriteReference writes a page in Markdown with every field.
func WriteReference(w io.Writer) error {
	p := page{Writer: w}
	p.say("%s", strings.ReplaceAll(referenceHead, "'", "`"))
	p.say("\n## For all keys\n")
	d := Default(func(string) (string, bool) { return "", false })
	for i := range settings {
		p.setting(&settings[i], d)
	}
	p.stores()
	p.namespaces()
	p.classes()
	return p.err
}

// page remembers the first error of writing.
type page struct {
	io.Writer
	err error
}

func (p *page) say(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p, format, a...)
	}
}

func (p *page) setting(s *Setting, d *Config) {
	v := s.value(d)
	is := v.String()
	if s.Path == "socket" {
		is = systemSocket
	}
	facts := capital(v.about())
	if is != "" {
		facts += "; default " + code(is)
	}
	if s.Flag != "" {
		facts += "; `--" + s.Flag + "`"
	}
	if s.Restart {
		facts += "; *restart*"
	}
	p.say("\n### %s\n\n%s\n\n%s; %s\n", s.Path, prose(s.Help, s.More), facts,
		code(inFile(s.Path, cmp.Or(s.Example, is))))
}

// inFile returns a value as it appears in the file, on one line.
func inFile(path, v string) string {
	in := strings.Split(path, ".")
	text := in[len(in)-1] + ": " + v
	for i := len(in) - 2; i >= 0; i-- {
		text = in[i] + ": {" + text + "}"
	}
	return text
}

func (p *page) stores() {
	p.say("\n## stores\n\nAdditional stores for namespaces, under names that you choose: " +
		"`stores: {billing: {upstream: …}}`. A store that is removed from the file is closed " +
		"once nothing is held there. Stores, namespaces and classes have no flags or variables. " +
		"The fields of a store:")
	p.links(paths(storeFields))
}

func (p *page) namespaces() {
	p.say("\n## namespaces\n\nSettings for keys that begin with a prefix: " +
		"`namespaces: {\"billing:\": {store: billing, ttl: 10s}}`. If several prefixes fit, the " +
		"longest counts. These fields at the top level apply to all keys:")
	p.links(paths(policyFields))
	p.say("\nOnly namespaces have these:\n\n" +
		"| field | value | meaning | example |\n|---|---|---|---|\n")
	for _, f := range ownFields {
		p.say("| `%s` | %s | %s | %s |\n", f.Path, f.value(new(Namespace)).about(),
			prose(f.Help, f.More), code(f.Path+": "+f.Example))
	}
}

func paths[T any](fields []Field[T]) (all []string) {
	for _, f := range fields {
		all = append(all, f.Path)
	}
	return all
}

// links ends a paragraph with links to fields.
func (p *page) links(fields []string) {
	for i, f := range fields {
		fields[i] = "[" + code(f) + "](#" + f + ")"
	}
	p.say(" %s.\n", strings.Join(fields, ", "))
}

func (p *page) classes() {
	p.say("\n## classes\n\nNames under which metrics count the keys that begin with one or more "+
		"prefixes: `classes: {orders: \"order:\", jobs: [\"job:\", \"cron:\"]}`. A name consists of "+
		"at most 40 characters from a-z, 0-9, _ and -. There can be %d prefixes.\n", maxClasses)
}

// prose returns a flag's help as a sentence, followed by more.
func prose(help, more string) string {
	help = strings.ReplaceAll(help, "`", "")
	s := capital(help) + "."
	if more != "" {
		s += " " + more
	}
	return s
}

func code(s string) string { return "`" + s + "`" }

func capital(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(first)) + s[n:]
}
