package cache

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Priority waiters are not a feature. Their patch shows that a change of the queue discipline
// needs one file and under 100 lines. The test applies it to a copy, and runs a test of it in
// place of the package.
func TestPriorityWaitersAreAChangeOfOneFile(t *testing.T) {
	const variants = "../daemon/engine/sim/variants/"
	patch, err := os.ReadFile(variants + "priority-waiters.patch")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(patch)) {
		switch {
		case strings.HasPrefix(line, "+++ ") && line != "+++ b/cache/queue.go\n":
			t.Errorf("the patch changes another file: %s", line)
		case strings.HasPrefix(line, "+++ "), strings.HasPrefix(line, "--- "):
		case line[0] == '+', line[0] == '-':
			lines++
		}
	}
	if lines >= 100 {
		t.Errorf("the patch has %d lines", lines)
	}

	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("queue.go")
	if err == nil {
		err = os.MkdirAll(filepath.Join(dir, "cache"), 0o700)
	}
	changed := filepath.Join(dir, "cache", "queue.go")
	if err == nil {
		err = os.WriteFile(changed, source, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	apply := exec.Command("git", "apply", "-")
	apply.Dir, apply.Stdin = dir, bytes.NewReader(patch)
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("apply the patch: %v\n%s", err, out)
	}

	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	test, err := filepath.Abs(variants + "priority_test.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(here, "queue.go"):         changed,
		filepath.Join(here, "priority_test.go"): test}})
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "test", "-overlay", list, "-count=1", "-v", "-run",
		"TestPriorityWaitersAreServedFirst", ".").CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestPriorityWaitersAreServedFirst")) {
		t.Fatalf("%v\n%s", err, out)
	}
}
