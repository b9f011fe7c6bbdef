package sim

import (
	"bufio"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// readOnly are the exported methods that no run calls, and why: each only reads what a table knows.
var readOnly = map[string]string{
	"Table.EachMoved":        "lists the locks that a reload leaves at an earlier store, for its checks and its log",
	"Table.HeldFor":          "answers another host's question for how long a lock has been held",
	"Table.KnowsKey":         "marks rows of a store's listing, which a goroutine of the daemon fetches",
	"Table.Shortest":         "bounds how long a takeover may take",
	"Engine.CountFault":      "counts connections that are refused before they have a session",
	"Engine.Draining":        "an accessor",
	"Engine.EachMoved":       "lists the locks that a reload leaves at an earlier store",
	"Engine.HeldFor":         "answers another host's question for how long a lock has been held",
	"Engine.HolderElsewhere": "part of a query of a store",
	"Engine.InFlight":        "counts batches, for a takeover that waits for them",
	"Engine.MainPending":     "counts ops, for a takeover that waits for them",
	"Engine.Unanswered":      "counts ops, for a daemon that waits for them at its end",
	"Engine.PendingEnds":     "counts releases, for a daemon that waits for them at its end",
	"Engine.Shortest":        "bounds how long a takeover may take",
	"Engine.Ready":           "tells whether locks can be acquired, for /readyz",
	"Engine.Self":            "an accessor",
	"Engine.SetSelf":         "set once, before the first session",
	"Engine.StoreFor":        "an accessor",
	"Engine.ViewHold":        "describes a hold for a view",
	"Session.Holds":          "an accessor",
	"Session.Peer":           "an accessor",
	"Session.Client":         "an accessor",
	"Session.Transport":      "an accessor",
	"Session.Ended":          "an accessor",
	"Session.Closing":        "an accessor",
	"Session.Killed":         "an accessor",
}

// method is an exported method, with where it is.
type method struct {
	name        string
	file        string // its directory's name and its own
	first, last int    // lines
}

// methods finds the exported methods of types in a package.
func methods(t *testing.T, dir string, of ...string) (all []method) {
	t.Helper()
	fset, files := sources(t, dir)
	for _, f := range files {
		name, err := filepath.Abs(fset.Position(f.Pos()).Filename)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || !fn.Name.IsExported() {
				continue
			}
			on := fn.Recv.List[0].Type
			if star, ok := on.(*ast.StarExpr); ok {
				on = star.X
			}
			for _, receiver := range of {
				if id, ok := on.(*ast.Ident); ok && id.Name == receiver {
					all = append(all, method{receiver + "." + fn.Name.Name,
						filepath.Base(filepath.Dir(name)) + "/" + filepath.Base(name),
						fset.Position(fn.Body.Lbrace).Line, fset.Position(fn.Body.Rbrace).Line})
				}
			}
		}
	}
	return all
}

// covered runs some seeds, and returns the lines of code of each file that they have reached.
func covered(t *testing.T) map[string]map[int]bool {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "profile")
	cmd := exec.Command("go", "test", "-count=1", "-vet=off", "-run", "TestSeeds$",
		"-coverpkg=../../../cache,..", "-coverprofile="+profile, ".",
		"-args", "-seeds=32", "-minutes=3")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(profile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// github.com/…/cache/acquire.go:22.69,26.3 3 1
	line := regexp.MustCompile(`([^/]+/[^/]+\.go):(\d+)\.\d+,(\d+)\.\d+ \d+ (\d+)$`)
	lines := make(map[string]map[int]bool)
	for s := bufio.NewScanner(f); s.Scan(); {
		m := line.FindStringSubmatch(s.Text())
		if m == nil || m[4] == "0" {
			continue
		}
		if lines[m[1]] == nil {
			lines[m[1]] = make(map[int]bool)
		}
		first, _ := strconv.Atoi(m[2])
		last, _ := strconv.Atoi(m[3])
		for n := first; n <= last; n++ {
			lines[m[1]][n] = true
		}
	}
	return lines
}

// TestEveryInputIsExercised fails unless some seeds call each exported method of the engine, of its
// sessions and of the lock table. So no new kind of event stays outside the simulator.
func TestEveryInputIsExercised(t *testing.T) {
	if raceDetector {
		t.Skip("it builds the simulator anew; make test-sim runs it")
	}
	all := append(methods(t, "..", "Engine", "Session"), methods(t, "../../../cache", "Table")...)
	if len(all) < 70 {
		t.Fatalf("only %d methods", len(all))
	}
	lines := covered(t)
	known := make(map[string]bool)
	for _, m := range all {
		known[m.name] = true
		called := false
		for n := m.first; n <= m.last && !called; n++ {
			called = lines[m.file][n]
		}
		if why := readOnly[m.name]; !called && why == "" {
			t.Errorf("no run calls %s (%s:%d)", m.name, m.file, m.first)
		} else if called && why != "" {
			t.Errorf("%s is called, and is listed as not called: %s", m.name, why)
		}
	}
	for name := range readOnly {
		if !known[name] {
			t.Errorf("%s does not exist", name)
		}
	}
}
