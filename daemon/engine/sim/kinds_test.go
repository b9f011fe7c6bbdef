package sim

import (
	"errors"
	"go/ast"
	"go/constant"
	"go/parser"
	gotoken "go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// noImports makes types resolve nothing outside a package: its constants need nothing else.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("not imported") }

// sources are the Go files of a package, without its tests.
func sources(t *testing.T, dir string) (fset *gotoken.FileSet, files []*ast.File) {
	t.Helper()
	fset = gotoken.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(fset, name, b, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return fset, files
}

// constants are the exported constants of a package, by name, whose type is of that name or, where
// it is empty, whose names begin with prefix.
func constants(t *testing.T, dir, of, prefix string) map[string]int {
	t.Helper()
	fset, files := sources(t, dir)
	conf := types.Config{Importer: noImports{}, IgnoreFuncBodies: true, Error: func(error) {}}
	pkg, _ := conf.Check(dir, fset, files, nil)
	found := make(map[string]int)
	for _, name := range pkg.Scope().Names() {
		c, ok := pkg.Scope().Lookup(name).(*types.Const)
		if !ok || !c.Exported() {
			continue
		}
		if named, ok := c.Type().(*types.Named); ok && named.Obj().Name() == of || of == "" &&
			strings.HasPrefix(name, prefix) {
			n, _ := constant.Int64Val(c.Val())
			found[name] = int(n)
		}
	}
	return found
}

// TestEveryKindIsCounted checks that Counts has a row for each kind of request, answer, push, op,
// result, hint and notice. TestSeeds checks that each of these rows was counted (Counts.Missing).
func TestEveryKindIsCounted(t *testing.T) {
	const cache, protocol = "../../../cache", "../../../protocol"
	for _, k := range []struct {
		dir, of, prefix string
		least           int
		count           func(c *Counts, n int)
	}{
		{protocol, "Op", "", 12, func(c *Counts, n int) { c.Requests[n]++ }},
		{protocol, "Code", "", 17, func(c *Counts, n int) { c.Replies[n]++ }},
		{protocol, "Event", "", 5, func(c *Counts, n int) { c.Pushes[n-64]++ }},
		{protocol, "Reason", "", 8, func(c *Counts, n int) { c.Lost[n]++ }},
		{protocol, "", "Held", 3, func(c *Counts, n int) { c.Inspects[n]++ }},
		{cache, "OpKind", "", 7, func(c *Counts, n int) { c.Ops[n]++ }},
		{cache, "Status", "", 7, func(c *Counts, n int) { c.Results[n]++ }},
		{protocol, "Mode", "", 3, func(c *Counts, n int) { c.Modes[n]++ }},
		{cache, "HintKind", "", 4, func(c *Counts, n int) { c.Hints[n]++ }},
		{cache, "NoticeKind", "", 4, func(c *Counts, n int) { c.Notices[n]++ }},
		{cache, "Cause", "", 4, func(c *Counts, n int) { c.Causes[n]++ }},
	} {
		all := constants(t, k.dir, k.of, k.prefix)
		if len(all) < k.least {
			t.Errorf("%s %s%s: only %d kinds: %v", k.dir, k.of, k.prefix, len(all),
				slices.Sorted(maps.Keys(all)))
		}
		for name, n := range all {
			if name == "LostUnconfirmed" {
				continue // only clients use it
			}
			var c Counts
			k.count(&c, n)
			rows := 0
			c.each(func(_, _ string, n int) { rows += n })
			if rows != 1 {
				t.Errorf("%s: %d rows of the counts show %s", k.dir, rows, name)
			}
		}
	}
}

// TestEveryFlagIsCounted finds a count for each flag of a request.
func TestEveryFlagIsCounted(t *testing.T) {
	// FlagHolders, of an inspect, is counted by the tally "holders named".
	if all := constants(t, "../../../protocol", "", "Flag"); len(all) != len(flagNames)+1 {
		t.Errorf("flags are %v, and %v are counted", all, flagNames)
	}
}
