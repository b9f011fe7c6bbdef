package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// block is a fenced block of a document.
type block struct {
	page, language, text string
	line                 int
	notRun               string // the reason, from a comment before the block
}

// ranElsewhere names the test that runs or checks the blocks of a language.
var ranElsewhere = map[string]string{
	"yaml":   "TestConfigurationsInDocumentsAreAccepted",
	"python": "clients/python/tests/test_guide.py",
	"sql":    "clients/python/tests/test_guide.py",
	"java":   "GuideTest.java",
	"xml":    "GuideTest.java, which compares the version",
}

// pagesWithBlocks returns all documents for users, and those that show commands to contributors.
func pagesWithBlocks(t *testing.T) []string {
	return slices.Concat([]string{"README.md", "clients/README.md"},
		documents(t, "docs/*.md"), documents(t, "docs/*/*.md"),
		documents(t, "clients/*/README.md"), documents(t, "clients/examples/*/README.md"))
}

var (
	fence    = regexp.MustCompile("^( *)```(\\w*)$")
	excuse   = regexp.MustCompile(`^ *<!-- not run: (.+) -->$`)
	indented = regexp.MustCompile(`^    \S`)
)

// blocks returns the blocks of a page. Each has a language. None is marked by indentation, which
// cannot name one.
func blocks(t *testing.T, page string) (all []block) {
	t.Helper()
	var b *block
	before, list := "", false
	for i, line := range strings.Split(slurp(t, page), "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case b != nil && strings.TrimSpace(line) == "```":
			all, b = append(all, *b), nil
		case b != nil:
			b.text += line + "\n"
		case m != nil:
			b = &block{page: page, language: m[2], line: i + 1}
			if m[2] == "" {
				t.Errorf("%s:%d: the block has no language", page, i+1)
			}
			if e := excuse.FindStringSubmatch(before); e != nil {
				b.notRun = e[1]
			}
		case strings.HasPrefix(line, "* ") || regexp.MustCompile(`^\d+\. `).MatchString(line):
			list = true
		case indented.MatchString(line) && before == "" && !list:
			t.Errorf("%s:%d: a block without a fence", page, i+1)
		case line != "" && line[0] != ' ':
			list = false
		}
		before = line
	}
	if b != nil {
		t.Errorf("%s:%d: the block does not end", page, b.line)
	}
	return all
}

// Each block of a document runs here or in another test, or a comment before it says why not.
func TestBlocksInDocumentsRun(t *testing.T) {
	ran := 0
	for _, page := range pagesWithBlocks(t) {
		for _, b := range blocks(t, page) {
			switch {
			case b.notRun != "" || ranElsewhere[b.language] != "":
			case b.language == "sh" || b.language == "console" || b.language == "js":
				ran++
				t.Run(strings.ReplaceAll(page, "/", "_"), func(t *testing.T) {
					t.Parallel()
					newReader(t).follows(b)
				})
			default:
				t.Errorf("%s:%d: no test runs a block of %q, and no comment says why",
					page, b.line, b.language)
			}
		}
	}
	if ran < 10 {
		t.Errorf("only %d blocks run", ran)
	}
}

// reader carries out blocks in a directory with the files that documents assume, beside a daemon.
type reader struct{ *host }

func newReader(t *testing.T) *reader {
	t.Helper()
	program, err := exec.LookPath("locksidecar")
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{bareHost(t)}
	r.write("report.sh", "#!/bin/sh\n")
	r.write("scheduler", "#!/bin/sh\n")
	r.write("FILE", "upstream: 'memory:'\n")
	if err := os.Mkdir(filepath.Join(r.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(r.dir, "bin", "locksidecar")); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *reader) write(name, text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

// follows carries out a block, as a reader does.
func (r *reader) follows(b block) {
	r.t.Helper()
	text := strings.ReplaceAll(b.text, "/run/locksidecar/locksidecar.sock", r.socket)
	if url := regexp.MustCompile(`redis://[a-z0-9.]+:6379`); url.MatchString(text) {
		text = url.ReplaceAllLiteralString(text, testserver.StartRedis(r.t).URL())
	}
	if !strings.Contains(text, "locksidecar serve") || strings.Contains(text, "--takeover") {
		r.serve("--config", "FILE")
	}
	if strings.Contains(text, "unlock --force KEY") {
		r.run("lock", "KEY", "--", "sh", "-c", "echo up; read x").line()
	}
	switch b.language {
	case "sh":
		r.script(b, text)
	case "console":
		r.console(b, text)
	case "js":
		r.javascript(text)
	}
}

// shell starts commands. There is no systemd here, so a function does what our unit does.
func (r *reader) shell(commands string) *proc {
	r.t.Helper()
	pid := 0
	if r.daemon != nil {
		pid = r.daemon.cmd.Process.Pid
	}
	return launch(r.t, r.dir, r.env, "bash", "-ec", fmt.Sprintf(
		`systemctl() { [ "$*" = "reload locksidecar" ] && kill -HUP %d; }`+"\n%s", pid, commands))
}

// script carries out a block of commands. One that serves continues to run beside the others.
func (r *reader) script(b block, text string) {
	r.t.Helper()
	serve := regexp.MustCompile(`(?m)^\S*locksidecar serve\b.*`)
	if command := serve.FindString(text); command != "" {
		old := r.daemon
		r.daemon = r.shell("exec " + command)
		if old != nil {
			old.ends(0)
		}
		r.ready()
		text = serve.ReplaceAllString(text, "")
	}
	p := r.shell(text)
	if p.ends(0); r.t.Failed() {
		r.t.Logf("%s:%d", b.page, b.line)
	}
}

// console carries out the commands of a block, and compares what they print. An empty line begins
// another shell, beside which the first commands continue to run.
func (r *reader) console(b block, text string) {
	r.t.Helper()
	shells := strings.Split(strings.TrimSuffix(text, "\n"), "\n\n")
	for i, shell := range shells {
		for _, part := range strings.Split("\n"+shell, "\n$ ")[1:] {
			command, shown, _ := strings.Cut(part, "\n")
			p := r.shell("exec 2>&1\n" + command)
			var printed string
			if i < len(shells)-1 {
				for range strings.Split(shown, "\n") {
					printed += p.line() + "\n"
				}
			} else {
				printed = p.rest()
				p.ends(0)
			}
			if sample(printed) != sample(shown) {
				r.t.Errorf("%s:%d: %s prints\n%s, not\n%s", b.page, b.line, command, printed, shown)
			}
		}
	}
}

// sample returns a text with N for each number and one space for many.
func sample(s string) string {
	s = regexp.MustCompile(`[0-9]+(\.[0-9]+)?(ms|s)?\b`).ReplaceAllString(s, "N")
	return strings.TrimSpace(regexp.MustCompile(` +`).ReplaceAllString(s, " "))
}

// javascript runs a block with the client of the examples.
func (r *reader) javascript(text string) {
	r.t.Helper()
	r.write("locksidecar.mjs", slurp(r.t, "clients/examples/node/locksidecar.mjs"))
	r.write("shown.mjs", text+"client.close();\nfunction charge() {}\nvar order;\n")
	launch(r.t, r.dir, r.env, "node", "shown.mjs").ends(0)
}
