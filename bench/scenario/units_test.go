package scenario

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// TestUnits runs the scene in windows too small to say anything: all that SCALE.md
// is computed from is measured, and nothing is wrong.
func TestUnits(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the daemon")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	e := &Env{Ctx: t.Context(), Root: "../..", Dir: dir, Short: true, Rounds: 1, Window: 250 * time.Millisecond, Report: &harness.Report{}, Logf: t.Logf}
	if err := units(e); err != nil {
		t.Fatal(err)
	}
	for _, f := range e.Report.Faults {
		t.Error(f)
	}
	text, err := os.ReadFile(scaleFile)
	if err != nil {
		t.Fatal(err)
	}
	for name := range readCosts(t, string(text)).of {
		if e.Report.Values(unitsScene, name, "cpu_us") == nil && e.Report.Values(unitsScene, name, "bytes") == nil {
			t.Errorf("%q was not measured", name)
		}
	}
}
