package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// The program accepts every configuration that a document shows. It also accepts the example file
// with the examples of its sections uncommented.
func TestConfigurationsInDocumentsAreAccepted(t *testing.T) {
	block := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	field := regexp.MustCompile(`(?m)^(upstream|namespaces|stores|socket|ttl|limits|log|classes|admin_listen):`)
	found := 0
	for _, page := range append(documents(t, "docs/*.md"),
		append(documents(t, "docs/*/*.md"), "README.md")...) {
		b, err := os.ReadFile(fromRoot(page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range block.FindAllStringSubmatch(string(b), -1) {
			if !field.MatchString(m[1]) {
				continue // a configuration of another program
			}
			found++
			accepted(t, page, m[1])
		}
	}
	if found == 0 {
		t.Error("no document shows a configuration")
	}
	b, err := os.ReadFile(fromRoot("deploy/locksidecar.example.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	lines, inside := strings.Split(string(b), "\n"), false
	for i, line := range lines { // under stores, namespaces and classes
		inside = line != "" && (inside || regexp.MustCompile(`^[a-z]+:$`).MatchString(line))
		if rest, comment := strings.CutPrefix(line, "#  "); inside && comment {
			lines[i] = "  " + rest
		}
	}
	accepted(t, "locksidecar.example.yaml", strings.Join(lines, "\n"))
}

// documents returns the documents that a pattern names, as paths from the root.
func documents(t *testing.T, pattern string) (pages []string) {
	t.Helper()
	files, err := filepath.Glob(fromRoot(pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d documents, %v", pattern, len(files), err)
	}
	for _, f := range files {
		page, err := filepath.Rel(fromRoot("."), f)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, filepath.ToSlash(page))
	}
	return pages
}

// accepted checks that text, a configuration in a document, has no fault.
func accepted(t *testing.T, page, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Main{Env: func(string) (string, bool) { return "", false }}
	if _, err := m.load(file, pflag.NewFlagSet("", pflag.ContinueOnError)); err != nil {
		t.Errorf("%s: %v", page, err)
	}
}
