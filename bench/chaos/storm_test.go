package chaos

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// shortStorms are seeds that together have every kind of store, two and three daemons, and every
// kind of move.
var shortStorms = []uint64{0, 2, 4, 6, 8}

var stormTurn = flag.Uint64("turn", 0, "the turn of the short storms: each has other seeds for the same stores")

// sameStores is the distance to another seed with the same stores and the same number of daemons.
const sameStores = 72

func TestShortStormHasNoViolations(t *testing.T) {
	if testing.Short() {
		t.Skip("-short")
	}
	s := settingOf(t, os.Getenv("LOCKSIDECAR_RACE_BIN"), "-race")
	t.Parallel() // together with the short run
	for i, seed := range shortStorms {
		drills := 0
		if i == 0 {
			drills = Drills / 2
		}
		seed += *stormTurn * sameStores
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			length := 9 * time.Second
			if long {
				length = time.Minute
			}
			r := RunStorm(s, seed, length, drills)
			if r.Discarded != "" {
				t.Log(r.Tell())
				r = RunStorm(s, seed+sameStores, length, drills)
			}
			t.Log(r.Tell())
			if len(r.Violations) > 0 {
				t.Fail()
			}
		})
	}
}

func TestShortStormsHaveEveryStore(t *testing.T) {
	had := map[string]bool{}
	for _, seed := range shortStorms {
		names := stormStores(seed)
		had[names[0]], had[names[1]] = true, true
		if stormStores(seed+sameStores) != names {
			t.Errorf("seed %d has %v, and seed %d has %v", seed, names, seed+sameStores,
				stormStores(seed+sameStores))
		}
	}
	for _, k := range stormKinds {
		if !had[k] {
			t.Errorf("%s: never", k)
		}
	}
}

func TestTheSourceHasTheMessagesOfTheLog(t *testing.T) {
	r := newLogRules()
	if r.err != nil {
		t.Fatal(r.err)
	}
	for _, m := range []string{"serving", "configuration reloaded", "lock lost", "draining"} {
		if !slices.Contains(r.messages, m) {
			t.Errorf("%q is not found", m)
		}
	}
}

func TestSeedsInARowHaveEveryStore(t *testing.T) {
	times := map[string]int{}
	for seed := range uint64(len(stormKinds)) {
		names := stormStores(1000 + seed)
		if names[0] == names[1] {
			t.Errorf("seed %d has %v", 1000+seed, names)
		}
		times[names[0]]++
		times[names[1]]++
	}
	for _, k := range stormKinds {
		if times[k] == 0 {
			t.Errorf("%s: never", k)
		}
	}
}

func TestBadFilesAreRefusedWithTheirWords(t *testing.T) {
	s := settingOf(t, os.Getenv("LOCKSIDECAR_RACE_BIN"), "-race")
	l := &layout{fixed: []string{`upstream: "memory:"`, "ttl: 2s"}, stores: map[string]string{},
		rooms: map[string]room{"x:": {}}}
	for _, f := range faultyLayouts() {
		if f.well {
			continue
		}
		file := filepath.Join(t.TempDir(), "conf.yaml")
		if err := os.WriteFile(file, []byte(f.text(l)), 0o600); err != nil {
			t.Fatal(err)
		}
		check := exec.Command(s.Bin, "config", "check", "--config", file)
		check.Env = append(os.Environ(), raceEnv)
		out, err := check.CombinedOutput()
		if err == nil || !f.words.Match(out) {
			t.Errorf("%s: %v, without %q: %s", f.name, err, f.words, out)
		}
	}
}
