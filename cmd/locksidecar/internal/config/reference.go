package config

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const referenceHead = `# Configuration

This page lists every field. ` + "`locksidecar config reference`" +
	` generates it from the tables that the program itself uses.

A value comes from one of these, each overriding the ones before it: the built-in default, the YAML file that ` + "`--config` or `" + FileVariable + "`" + `
names, the environment, flags. Times have units: ` + "`500ms`, `30s`, `1h30m`" + `. A list is ` +
	"`[a, b]`" + ` in the file and ` + "`a,b`" + ` elsewhere. An empty variable
counts as not set. An unknown or duplicate field is an error, and a file with an error is refused as a whole. An unknown flag is an error, too, but
an unknown variable is ignored. ` + "`locksidecar config check`" +
	` shows the values that differ from the defaults, and their origins (` + "`-a`" +
	`: all). With a key, it
shows the settings for a lock of that name.

SIGHUP (` + "`systemctl reload locksidecar`" +
	`) makes the daemon read the file again. It cannot change values from the environment or from flags. Fields
marked *restart* must keep their value. Otherwise the daemon refuses the whole new file and keeps its configuration (` + "`reload_refused`" + ` in the log).

[Stores](../operate/stores.md) describes the stores' URLs and their parameters. These variables are not fields of the file:

* ` + "`GOMAXPROCS`" + ` limits the threads for Go code. If it is not set, the daemon chooses.
* ` + "`GOGC` and `GOMEMLIMIT`" + ` control garbage collection. If neither is set, the daemon decides for large heaps: it collects them when they have grown by
  two thirds, and every five minutes.
* ` + "`XDG_RUNTIME_DIR`" + ` is the default directory of the socket for users other than root.
* ` + "`NOTIFY_SOCKET`, `WATCHDOG_USEC` and `LISTEN_FDS`" + ` are set by systemd.
`

// WriteReference writes a page in Markdown with every field.
func WriteReference(w io.Writer) error {
	p := page{Writer: w}
	p.say(referenceHead)
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
	value := "empty"
	if is != "" {
		value = code(is)
	}
	change := "SIGHUP"
	if s.Restart {
		change = "restart"
	}
	flag := "none"
	if s.Flag != "" {
		flag = code("--" + s.Flag)
	}
	p.say("\n### %s\n\n%s\n\n| value | default | flag | variable | changes by | example |\n|---|---|---|---|---|---|\n", s.Path, prose(s.Help, s.More))
	p.say("| %s | %s | %s | `%s` | %s | %s |\n",
		v.about(), value, flag, s.Variable(), change, code(inFile(s.Path, cmp.Or(s.Example, is))))
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
	p.say("\n## stores\n\nAdditional stores for namespaces, under names that you choose: `stores: {billing: {upstream: …}}`. They have no flags or variables, and " +
		"change by SIGHUP. A store that is removed from the file is closed once nothing is held there.\n\n| field | value | meaning | example |\n|---|---|---|---|\n")
	writeFields(p, storeFields)
}

func (p *page) namespaces() {
	p.say("\n## namespaces\n\nSettings for keys that begin with a prefix: `namespaces: {\"billing:\": {store: billing, ttl: 10s}}`. If several prefixes fit, the longest counts. " +
		"Namespaces have no flags or variables, and change by SIGHUP.\n\n| field | value | meaning | example |\n|---|---|---|---|\n")
	writeFields(p, ownFields)
	var shared []string
	for _, f := range policyFields {
		shared = append(shared, "["+code(f.Path)+"](#"+f.Path+")")
	}
	p.say("\nThese fields are described above; at the top level they apply to all keys: %s.\n",
		strings.Join(shared, ", "))
}

// writeFields writes the rows of a table of fields.
func writeFields[T any](p *page, fields []Field[T]) {
	for _, f := range fields {
		p.say("| `%s` | %s | %s | %s |\n", f.Path, f.value(new(T)).about(), prose(f.Help, f.More),
			code(f.Path+": "+f.Example))
	}
}

func (p *page) classes() {
	p.say("\n## classes\n\nNames under which metrics count the keys that begin with one or more prefixes: "+
		"`classes: {orders: \"order:\", jobs: [\"job:\", \"cron:\"]}`. A name consists of at most 40 characters from a-z, 0-9, _ and -. There can be %d prefixes. "+
		"Classes change by SIGHUP.\n", maxClasses)
}

// prose returns a flag's help as a sentence, followed by more.
func prose(help, more string) string {
	help = strings.ReplaceAll(help, "`", "")
	first, n := utf8.DecodeRuneInString(help)
	s := string(unicode.ToUpper(first)) + help[n:] + "."
	if more != "" {
		s += " " + more
	}
	return s
}

func code(s string) string { return "`" + s + "`" }
