package daemon_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/locksidecar/locksidecar/"

// mayImport says which of our packages each may import. A package counts with
// everything below it, unless it has a line of its own.
var mayImport = map[string][]string{
	"protocol":        {},
	"protocol/sock":   {},
	"protocol/client": {"protocol", "protocol/sock"},
	"protocol/conformance": {"protocol", "protocol/sock", "protocol/client", "renewer",
		"upstream/embedded", "daemon", "daemon/engine"},
	"cache":              {"protocol"},
	"upstream":           {"cache"},
	"upstream/driverkit": {"protocol/sock", "cache", "upstream"},
	"upstream/nearest":   {},
	"upstream/storeurl":  {"upstream/nearest"},
	"upstream/embedded":  {"cache", "upstream", "upstream/driverkit"},
	"upstream/redis": {"protocol/sock", "cache", "upstream", "upstream/driverkit",
		"upstream/storeurl"},
	"upstream/redlock": {"cache", "upstream", "upstream/driverkit", "upstream/storeurl"},
	"upstream/etcd": {"protocol/sock", "cache", "upstream", "upstream/driverkit",
		"upstream/storeurl"},
	"upstream/zookeeper": {"protocol/sock", "cache", "upstream", "upstream/driverkit",
		"upstream/storeurl"},
	"upstream/mysql":            {"cache", "upstream", "upstream/driverkit", "upstream/storeurl"},
	"upstream/postgres":         {"cache", "upstream", "upstream/driverkit", "upstream/storeurl"},
	"upstream/both":             {"cache", "upstream", "upstream/driverkit"},
	"upstream/storetest":        {"cache", "upstream"},
	"upstream/testserver":       {"upstream/testserver/ports"},
	"upstream/testserver/ports": {},
	"renewer":                   {"cache"},
	"daemon": {"protocol", "protocol/sock", "cache", "upstream", "renewer",
		"daemon/engine", "daemon/admin", "daemon/audit", "daemon/listen", "daemon/peer",
		"daemon/takeover"},
	"daemon/engine": {"protocol", "cache", "upstream", "renewer"},
	"daemon/audit":  {"protocol", "cache", "daemon/engine"},
	"daemon/listen": {},
	"daemon/peer":   {"protocol/sock", "daemon/engine"},
	"daemon/admin": {"protocol", "cache", "upstream", "daemon/engine", "daemon/listen",
		"daemon/peer", "daemon/admin/page"},
	"daemon/admin/page": {"protocol", "daemon/engine"},
	"daemon/takeover": {"protocol/sock", "cache", "upstream", "daemon/engine",
		"daemon/admin", "daemon/listen"},
	"daemon/engine/enginetest": {"protocol", "cache", "upstream", "upstream/embedded",
		"daemon/engine"},
	"daemon/engine/sim": {"protocol", "cache", "upstream", "upstream/both", "renewer",
		"daemon/engine"},
	"cmd/locksidecar": {"protocol", "protocol/client", "protocol/conformance", "cache", "upstream",
		"upstream/nearest", "upstream/storeurl", "upstream/driverkit", "upstream/embedded",
		"upstream/redis",
		"upstream/redlock", "upstream/etcd", "upstream/zookeeper", "upstream/mysql", "upstream/postgres",
		"upstream/both", "renewer", "daemon", "daemon/engine", "daemon/audit", "daemon/admin",
		"daemon/takeover", "cmd/locksidecar"},
	"bench":      {"protocol", "protocol/client", "upstream/testserver/ports", "bench"},
	"docs/style": {},
}

// rule finds the line for a package: its own, or the line of the nearest folder.
func rule(pkg string) string {
	for {
		if _, ok := mayImport[pkg]; ok {
			return pkg
		}
		i := strings.LastIndexByte(pkg, '/')
		if i < 0 {
			return ""
		}
		pkg = pkg[:i]
	}
}

func TestArrowsGoDown(t *testing.T) {
	cmd := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		pkg := strings.TrimPrefix(f[0], module)
		mine := rule(pkg)
		if mine == "" {
			t.Errorf("%s has no line in mayImport", pkg)
			continue
		}
		allowed := map[string]bool{mine: true}
		for _, p := range mayImport[mine] {
			allowed[p] = true
		}
		for _, imp := range f[1:] {
			if to, ours := strings.CutPrefix(imp, module); ours && !allowed[rule(to)] {
				t.Errorf("%s imports %s", pkg, to)
			}
		}
	}
}

// The engine is a functional core: it has no sockets, files or log of its own, and reads no clock
// but the one that it was given. That is what lets the simulator run it in virtual time.
func TestTheEngineIsPure(t *testing.T) {
	files, err := filepath.Glob("engine/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			switch path, _ := strconv.Unquote(imp.Path.Value); path {
			case "net", "net/http", "os", "os/exec", "syscall", "log", "go.uber.org/zap":
				t.Errorf("%s imports %s", name, path)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" &&
					slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker",
						"AfterFunc"}, s.Sel.Name) {
					t.Errorf("%s uses time.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
}
