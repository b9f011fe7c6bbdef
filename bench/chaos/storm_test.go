package chaos

import (
	"os"
	"slices"
	"testing"
	"time"
)

// Two episodes of fixed seeds, with four kinds of store and each action of an operator.
func TestShortStormHasNoViolations(t *testing.T) {
	if testing.Short() || os.Getenv("LOCKSIDECAR_STORM") == "" {
		t.Skip("the short storm runs where LOCKSIDECAR_STORM is set")
	}
	s := settingOf(t, os.Getenv("LOCKSIDECAR_RACE_BIN"), "-race")
	for _, seed := range []uint64{9, 10} {
		r := RunStorm(s, seed, 22*time.Second)
		t.Log(r.Tell())
		if len(r.Violations) > 0 {
			t.Fail()
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
