package conformance

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const nodeDir = "../../clients/examples/node"

// TestNodeExample tests the example client for Node.js. A missing node is a failure, because make
// test installs it. LOCKSIDECAR_TEST_NODE names another node, and "none" skips the test.
func TestNodeExample(t *testing.T) {
	t.Parallel()
	node := os.Getenv("LOCKSIDECAR_TEST_NODE")
	switch node {
	case "none":
		t.Skip("LOCKSIDECAR_TEST_NODE is none")
	case "":
		node = "node"
	}
	if _, err := exec.LookPath(node); err != nil {
		t.Fatalf("no Node.js to test with (apt-get install nodejs, or LOCKSIDECAR_TEST_NODE=none): %v",
			err)
	}
	example := []string{node, filepath.Join(nodeDir, "conformance.mjs")}
	passes(t, Options{Command: example}, "many", "any", "keep", "permits", "fork", "quiet", "unlock")
}

// TestNodeExampleIsShort checks the length that the example and PROTOCOL.md state.
func TestNodeExampleIsShort(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(nodeDir, "locksidecar.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	longest := slices.MaxFunc(lines, func(a, b string) int { return len(a) - len(b) })
	if len(lines) >= 200 || len(longest) > 150 {
		t.Errorf("%d lines, the longest of %d bytes", len(lines), len(longest))
	}
}
