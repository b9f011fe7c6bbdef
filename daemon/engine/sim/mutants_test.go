package sim

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryMutantCompiles applies each patch with a planted fault to copies of the files that it
// changes. If LOCKSIDECAR_TEST_LONG is set, it also compiles the changed packages: a mutant that
// does not compile shows nothing.
func TestEveryMutantCompiles(t *testing.T) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	var patches []string
	for _, dir := range []string{"daemon/engine/sim/mutants", "bench/chaos/mutants"} {
		some, err := filepath.Glob(filepath.Join(root, dir, "*.patch"))
		if err != nil || len(some) == 0 {
			t.Fatalf("no patches in %s: %v", dir, err)
		}
		patches = append(patches, some...)
	}
	for _, patch := range patches {
		t.Run(strings.TrimSuffix(filepath.Base(patch), ".patch"), func(t *testing.T) {
			overlay, packages := applyPatch(t, root, patch)
			if os.Getenv("LOCKSIDECAR_TEST_LONG") == "" || len(packages) == 0 {
				return
			}
			build := exec.Command("go", append([]string{"build", "-o", os.DevNull, "-overlay", overlay},
				packages...)...)
			build.Dir = root
			if out, err := build.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// applyPatch applies a patch to copies of the files that it changes. It returns the name of an
// overlay file for the go command, and the changed packages.
func applyPatch(t *testing.T, root, patch string) (overlay string, packages []string) {
	t.Helper()
	text, err := os.ReadFile(patch)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	replace := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "+++ b/")
		if !ok {
			continue
		}
		source, err := os.ReadFile(filepath.Join(root, name))
		copied := filepath.Join(dir, name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(copied), 0o700)
		}
		if err == nil {
			err = os.WriteFile(copied, source, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(root, name)] = copied
		if at := "./" + filepath.Dir(name); strings.HasSuffix(name, ".go") &&
			!slices.Contains(packages, at) {
			packages = append(packages, at)
		}
	}
	apply := exec.Command("git", "apply", "-")
	apply.Dir, apply.Stdin = dir, bytes.NewReader(text)
	apply.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("apply the patch: %v\n%s", err, out)
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		t.Fatal(err)
	}
	return overlay, packages
}
