package scenario

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
)

// TestMain lets this program be a worker and a bare server too.
func TestMain(m *testing.M) {
	harness.Main(load.Program)
	goleak.VerifyTestMain(m)
}

// TestScenes runs the quick ones against a real daemon, in windows too small to
// say anything of speed: everything is measured, nothing is wrong.
func TestScenes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs the daemon")
	}
	dir, err := os.MkdirTemp("", "bench-") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	e := &Env{
		Ctx: t.Context(), Root: "../..", Dir: dir, Short: true, Rounds: 1, Warm: 50 * time.Millisecond, Window: 250 * time.Millisecond, Soak: ShortSoak,
		Report: &harness.Report{}, Logf: t.Logf,
	}
	e.peersErr = exec.ErrNotFound // the peers' modules need not be here
	scenes := map[string]func(*Env) error{"handover": handoff, "local": local, "etcd": etcdPairs}
	if _, err := exec.LookPath("redis-server"); err == nil {
		scenes["matrix"], scenes["cluster"], scenes["watching"] = matrixOf, clusterPairs, beingWatched
		scenes["alone"], scenes["openloop"], scenes["affine"] = alone, openLoop, affine
		scenes["crowd"], scenes["herd"], scenes["fleet"] = crowded, herds, fleets
		scenes["endurance"], scenes["soak"] = endurance, soak
		if runtime.GOOS == "linux" {
			scenes["takeover"] = takeovers
		}
	}
	if _, err := exec.LookPath("mariadb-install-db"); err == nil {
		scenes["mysql"] = mysqlPairs
	}
	for name, run := range scenes {
		if err := run(e); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	for _, f := range e.Report.Faults {
		t.Error(f)
	}
	soaked := 0.0
	for _, r := range e.Report.Rows {
		if len(r.Rounds) != 1 {
			t.Errorf("%s, %s has %d rounds", r.Scene, r.Name, len(r.Rounds))
		}
		for _, m := range r.Rounds {
			if r.Scene == soakScene { // of moments
				soaked += m["ops_s"]
			} else if m["ops_s"] <= 0 {
				t.Errorf("%s, %s: %v", r.Scene, r.Name, m)
			}
		}
	}
	if scenes["soak"] != nil && soaked == 0 {
		t.Error("the soak has done nothing")
	}
	t.Log(e.Report.Markdown())
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
