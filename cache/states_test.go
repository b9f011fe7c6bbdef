package cache

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

var stateNames = [...]string{stateNone: "none", stateAsked: "asked", stateHeld: "held",
	stateReleasing: "releasing", stateClosed: "closed"}

// TestMain compares the transitions that the tests of this package have caused with those that
// doc.go lists.
func TestMain(m *testing.M) {
	var mu sync.Mutex
	seen := map[string]bool{}
	onEnter = func(from, to state) {
		mu.Lock()
		defer mu.Unlock()
		seen[stateNames[from]+" → "+stateNames[to]] = true
	}
	code := m.Run()
	some := flag.Lookup("test.run").Value.String() + flag.Lookup("test.skip").Value.String() +
		flag.Lookup("test.list").Value.String()
	if code == 0 && some == "" {
		code = compareTransitions(seen)
	}
	os.Exit(code)
}

// doc is doc.go, once TestTheDocumentHasADiagram has read it. A file that is read after the tests
// does not count as an input of theirs, and so a cached result could hide a change.
var doc []byte

func TestTheDocumentHasADiagram(t *testing.T) {
	var err error
	if doc, err = os.ReadFile("doc.go"); err != nil {
		t.Fatal(err)
	}
}

func TestTheDocumentNamesTheFiles(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\w+\.go`).FindAllString(string(text), -1)
	var files []string
	for _, e := range entries {
		name := e.Name()
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && name != "doc.go" {
			files = append(files, name)
		}
	}
	for _, name := range files {
		if !slices.Contains(names, name) {
			t.Errorf("doc.go does not name %s", name)
		}
	}
	for _, name := range names {
		if !slices.Contains(files, name) {
			t.Errorf("doc.go names %s, which does not exist", name)
		}
	}
}

func compareTransitions(seen map[string]bool) (code int) {
	listed := map[string]bool{}
	for line := range strings.Lines(string(doc)) {
		w := strings.Fields(line)
		if len(w) > 4 && w[0] == "//" && w[2] == "→" {
			listed[strings.Join(w[1:4], " ")] = true
		}
	}
	for _, both := range []struct {
		has, lacks map[string]bool
		text       string
	}{{seen, listed, "doc.go does not list the transition"},
		{listed, seen, "no test causes the transition"}} {
		var missing []string
		for tr := range both.has {
			if !both.lacks[tr] {
				missing = append(missing, tr)
			}
		}
		slices.Sort(missing)
		for _, tr := range missing {
			fmt.Println(both.text, tr)
			code = 1
		}
	}
	return code
}
