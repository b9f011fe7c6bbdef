package scenario

import (
	"os/exec"
	"testing"
)

// TestUnits runs the scene in windows that are too short for meaningful results. It checks that
// everything is measured from which bench/COSTS.md is computed, and nothing is wrong.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	e := shortEnv(t)
	if err := units(e); err != nil {
		t.Fatal(err)
	}
	for _, f := range e.Report.Faults {
		t.Error(f)
	}
	for name := range readCosts(t, readPage(t, costsFile)).of {
		if e.Report.Values(unitsScene, name, "cpu_us") == nil &&
			e.Report.Values(unitsScene, name, "bytes") == nil {
			t.Errorf("%q was not measured", name)
		}
	}
}
