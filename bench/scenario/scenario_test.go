package scenario

import (
	"os/exec"
	"runtime"
	"testing"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// TestScenes runs the quick scenes against a real daemon, in windows that are too short for results
// about speed. It checks that everything is measured, and nothing is wrong.
func TestScenes(t *testing.T) {
	scenes := map[string]func(*Env) error{"handoff": handoff, "local": local, "etcd": etcdPairs}
	if _, err := exec.LookPath("redis-server"); err == nil {
		scenes["matrix"], scenes["cluster"], scenes["watching"] = matrixOf, clusterPairs, beingWatched
		scenes["alone"], scenes["openloop"], scenes["affine"] = alone, openLoop, affine
		scenes["crowd"], scenes["herd"], scenes["fleet"] = crowded, herds, fleets
		scenes["endurance"], scenes[soakScene] = endurance, soak
		if runtime.GOOS == "linux" {
			scenes["takeover"] = takeovers
		}
	}
	if _, err := exec.LookPath("mariadb-install-db"); err == nil {
		scenes["mysql"] = mysqlPairs
	}
	if _, err := harness.PostgresProgram("initdb"); err == nil {
		scenes["postgres"] = postgresPairs
	}
	for name, run := range scenes {
		t.Run(name, func(t *testing.T) {
			e := shortEnv(t)
			if err := run(e); err != nil {
				t.Fatal(err)
			}
			for _, f := range e.Report.Faults {
				t.Error(f)
			}
			if len(e.Report.Rows) == 0 {
				t.Error("nothing was measured")
			}
			total := 0.0
			for _, r := range e.Report.Rows {
				if len(r.Rounds) != 1 {
					t.Errorf("%s, %s has %d rounds", r.Scene, r.Name, len(r.Rounds))
				}
				for _, m := range r.Rounds {
					total += m["ops_s"]
					if m["ops_s"] <= 0 && r.Scene != soakScene { // the rows of soak are moments
						t.Errorf("%s, %s: %v", r.Scene, r.Name, m)
					}
				}
			}
			if total == 0 {
				t.Error("nothing was done")
			}
			t.Log(e.Report.Markdown())
		})
	}
}

func TestKeysOfTheMillion(t *testing.T) {
	seen := map[string]bool{}
	for _, i := range []int{0, 1, 9, 10, 99, 99_999, 100_000, 999_999} {
		k := string(load.RenewKey(nil, i))
		if len(k) != 24 || seen[k] {
			t.Errorf("key %d is %q", i, k)
		}
		seen[k] = true
	}
}
