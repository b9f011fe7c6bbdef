package cache

import (
	"fmt"
	"strings"
	"testing"
)

// holdID is a hold as its owner knows it.
type holdID struct {
	session      uint64
	key          string
	owner, fence uint64
}

// invariants checks a table after each event.
type invariants struct {
	valid     map[holdID]int64 // until when each hold was valid after the last event
	exclusive map[string]uint64
	any       map[string]uint64 // the largest fence of a key: of exclusive holders, and of all
}

// TestHoldsOfARandomTable checks invariants, whatever stores answer. A key has one exclusive holder
// or any number of readers, and a permit has one holder. Fences rise. No validity is taken back
// unless the owner is told.
func TestHoldsOfARandomTable(t *testing.T) {
	for seed := range uint64(*randomSeeds) {
		w := newWorld(seed)
		v := invariants{map[holdID]int64{}, map[string]uint64{}, map[string]uint64{}}
		moved := false // its stores do not carry fences to each other
		var log []string
		for range 150 {
			what := w.event()
			w.take()
			log = append(append(log, what), w.seen...)
			moved = moved || w.routing || what == "reroute"
			if fault := v.check(w.tab, !moved); fault != "" {
				t.Fatalf("seed %d\n%s\n%s", seed, strings.Join(log, "\n"), fault)
			}
		}
	}
}

// check returns what is wrong with t; empty if nothing is.
func (v *invariants) check(t *Table, fences bool) string {
	valid := map[holdID]int64{}
	for _, l := range t.sorted() {
		isPermit := l.permit() != nil
		for h := range l.holds.all() {
			switch {
			case l.nHolds > 1 && (h.mode == Exclusive || isPermit):
				return fmt.Sprintf("%s has %d holds, one in mode %v", l.key, l.nHolds, h.mode)
			case h.mode == Exclusive && l.state == stateHeld && l.mode != Exclusive:
				return fmt.Sprintf("%s is held exclusively by a lease in mode %v", l.key, l.mode)
			case h.fence == 0: // degraded
				continue
			case fences && !isPermit && h.fence < v.exclusive[l.key],
				fences && h.mode == Exclusive && h.fence < v.any[l.key]:
				return fmt.Sprintf("%s has fence %d after %d", l.key, h.fence, v.any[l.key])
			}
			if h.mode == Exclusive {
				v.exclusive[l.key] = h.fence
			}
			if !isPermit {
				v.any[l.key] = max(v.any[l.key], h.fence)
			}
			if h.detached() {
				continue
			}
			id := holdID{h.s.ID, l.key, h.owner, h.fence}
			if valid[id] = t.validUntil(h); !h.forced && valid[id] < v.valid[id] {
				return fmt.Sprintf("%s was valid until %d, and now until %d", l.key, v.valid[id],
					valid[id])
			}
		}
	}
	v.valid = valid
	return ""
}
