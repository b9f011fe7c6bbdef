package config

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

const referenceHead = `# Configuration

Every field, from the tables that the program itself reads by: ` + "`locksidecar config reference`" + ` writes this page.

A value is the built-in default, unless the YAML file that ` + "`--config` or `" + FileVariable + "`" + ` names has another; the environment counts more
than the file, and flags count more than the environment. Times have units: ` + "`500ms`, `30s`, `1h30m`" + `. A list is ` + "`[a, b]`" + ` in the file and
` + "`a,b`" + ` elsewhere. A variable that is empty counts as not set. A field that is not known, or stands there twice, is an error, and a file with
an error is refused as a whole. ` + "`locksidecar config check`" + ` shows what a configuration comes to and where each value is from, and
with a key what a lock of that name would get.

SIGHUP (` + "`systemctl reload locksidecar`" + `) has the file read again. What the environment or a flag says cannot change so, and what is marked
*restart* has to stay as it is: else all of the new file is refused, and the daemon goes on as before (` + "`reload_refused`" + ` in the log).

Stores' URLs and their parameters are in [STORES.md](../upstream/STORES.md). Variables that are no field of the file: ` + "`GOMAXPROCS`" + ` bounds the threads
for Go code (the daemon chooses, where it is not set), ` + "`GOGC` and `GOMEMLIMIT`" + ` say when the heap is collected (the daemon decides for large ones, where
neither is set: when they have grown by two thirds, and each five minutes), ` + "`XDG_RUNTIME_DIR`" + ` is where the socket of a user who is not root is by default, and
` + "`NOTIFY_SOCKET`, `WATCHDOG_USEC`, `LISTEN_FDS`" + ` are systemd's.
`

// WriteReference writes a page in Markdown with every field there is.
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
	change := "SIGHUP"
	if s.Restart {
		change = "restart"
	}
	flag := "none"
	if s.Flag != "" {
		flag = code("--" + s.Flag)
	}
	p.say("\n### %s\n\n%s\n\n| value | default | flag | variable | changes by | example |\n|---|---|---|---|---|---|\n", s.Path, prose(s.Help, s.More))
	p.say("| %s | %s | %s | `%s` | %s | %s |\n", about(v), orWord(is, "empty"), flag, s.Variable(), change, code(inFile(s.Path, s.example(is))))
}

func (s *Setting) example(is string) string {
	if s.Example == "" {
		return is
	}
	return s.Example
}

// inFile is a value as the file has it, on one line.
func inFile(path, v string) string {
	in := strings.Split(path, ".")
	text := in[len(in)-1] + ": " + v
	for i := len(in) - 2; i >= 0; i-- {
		text = in[i] + ": {" + text + "}"
	}
	return text
}

func (p *page) stores() {
	p.say("\n## stores\n\nMore stores for namespaces to use, by names of your own: `stores: {billing: {upstream: …}}`. They have neither flags nor variables, and " +
		"change by SIGHUP: a store that is not named any more is closed when nothing is held there any more.\n\n| field | value | what it is | example |\n|---|---|---|---|\n")
	for _, f := range storeSettings {
		p.field(f.name, f.value(&Store{}), f.help, f.more, f.example)
	}
}

func (p *page) namespaces() {
	p.say("\n## namespaces\n\nThe keys that begin with a prefix; the longest prefix that fits counts: `namespaces: {\"billing:\": {store: billing, ttl: 10s}}`. " +
		"They have neither flags nor variables, and change by SIGHUP.\n\n| field | value | what it is | example |\n|---|---|---|---|\n")
	n := &Namespace{}
	for _, f := range spaceSettings {
		p.field(f.name, f.value(n), f.help, f.more, f.example)
	}
	var own []string
	for _, f := range policySettings {
		own = append(own, "["+code(f.name)+"](#"+f.name+")")
	}
	p.say("\nThese are as above, and hold for all keys where they stand at the top: %s.\n", strings.Join(own, ", "))
}

func (p *page) field(name string, v pflag.Value, help, more, example string) {
	p.say("| `%s` | %s | %s | %s |\n", name, about(v), prose(help, more), code(name+": "+example))
}

func (p *page) classes() {
	p.say("\n## classes\n\nNames under which metrics count keys that begin with a prefix, or with one of several: "+
		"`classes: {orders: \"order:\", jobs: [\"job:\", \"cron:\"]}`. A name is of a-z, 0-9, _ and -, at most 40 of them; there can be %d prefixes. "+
		"They change by SIGHUP.\n", maxClasses)
}

// about is what a value's type says of it.
func about(v pflag.Value) string { return v.(value).about() }

// prose makes a flag's help a sentence, with what more there is to say.
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

func orWord(s, word string) string {
	if s == "" {
		return word
	}
	return code(s)
}
