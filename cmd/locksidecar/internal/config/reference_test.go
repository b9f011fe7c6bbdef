package config_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

var writeReference = flag.Bool("write", false, "write the configuration's reference anew")

const reference = "../../../../docs/reference/configuration.md"

func TestTheReferenceIsWhatTheProgramSays(t *testing.T) {
	var b bytes.Buffer
	if err := config.WriteReference(&b); err != nil {
		t.Fatal(err)
	}
	if *writeReference {
		if err := os.WriteFile(reference, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(reference); err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("%s is not what the program says (%v); write it with: go test ./cmd/locksidecar/internal/config -args -write", reference, err)
	}
	for _, s := range config.Settings() {
		if !strings.Contains(b.String(), "\n### "+s.Path+"\n") {
			t.Errorf("%s is not in the reference", s.Path)
		}
	}
}

// Each example is accepted as it is written, and is not the default.
func TestTheReferencesExamples(t *testing.T) {
	var b bytes.Buffer
	if err := config.WriteReference(&b); err != nil {
		t.Fatal(err)
	}
	text, namespaces, _ := strings.Cut(b.String(), "\n## namespaces\n")
	example := regexp.MustCompile("(?m)(?:; |\\| )`([^`|]+: [^`|]+)`(?: \\|)?$")
	count := 0
	for _, part := range []struct{ text, around string }{
		{text, "%s\n"},
		{namespaces, "stores: {billing: {upstream: 'redis://h'}}\nnamespaces: {'x:': {%s}}\n"},
	} {
		for _, m := range example.FindAllStringSubmatch(part.text, -1) {
			count++
			in := m[1]
			if strings.HasPrefix(in, "both") {
				in += ", store: billing"
			}
			c, err := load(t, fmt.Sprintf(part.around, in), nil)
			if err != nil {
				t.Errorf("%s: %v", m[1], err)
			}
			if part.text == text && !changes(c) {
				t.Errorf("%s is the default", m[1])
			}
		}
	}
	if want := len(config.Settings()) + 4; count != want {
		t.Errorf("%d examples, want %d", count, want)
	}
}

func changes(c *config.Config) bool {
	d := config.Default(environ{}.get)
	for _, s := range config.Settings() {
		if s.Value(c) != s.Value(d) {
			return true
		}
	}
	return false
}
