// Check reads what is in deploy/ as those do for whom it is made, only stricter: an
// unknown field is a fault. It has a module of its own, so that the product does
// not depend on what is needed for it.
//
//	check manifests FILE...      Kubernetes objects, by the types of its API
//	check config FILE...         the same; prints the daemon's configuration in them
//	check compose FILE...        compose files
//	check containerfile FILE...  what an image is built from
//	check dashboard FILE...      Grafana dashboards; prints their queries, as Prometheus' rules
//
// A file named - is standard input. It ends with 1 and says why if something is
// wrong, and says what it has seen if not.
package main

import (
	"fmt"
	"io"
	"os"
)

var checks = map[string]func(name string, data []byte) error{
	"manifests":     manifests,
	"config":        daemonConfig,
	"compose":       compose,
	"containerfile": containerfile,
	"dashboard":     dashboard,
}

func main() {
	if len(os.Args) < 3 || checks[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: check manifests|config|compose|containerfile|dashboard FILE...")
		os.Exit(64)
	}
	code := 0
	for _, name := range os.Args[2:] {
		data, err := read(name)
		if err == nil {
			err = checks[os.Args[1]](name, data)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			code = 1
		}
	}
	os.Exit(code)
}

func read(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(name)
}
