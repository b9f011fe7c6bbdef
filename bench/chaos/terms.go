package chaos

import "slices"

// reentries checks that an owner that re-enters its hold gets the same fence, and keeps it after a
// downgrade. After a downgrade, no re-entry is exclusive.
func reentries(v *verdict, ps []*op) {
	type id struct {
		w int
		n int64
	}
	outer := map[id]*op{}
	for _, p := range ps {
		if p.of == 0 {
			outer[id{p.w, p.n}] = p
		}
		if p.lowered() && p.lowFence != p.fence {
			v.fail("downgrade", "%s: %v has fence %d·%d after its downgrade", p.key, p, p.lowFence>>10,
				p.lowFence&1023)
		}
	}
	for _, p := range ps {
		o := outer[id{p.w, p.of}]
		if p.of == 0 || !p.granted() || o == nil {
			continue
		}
		if p.fence != o.fence {
			v.fail("re-entry", "%s: %v re-enters fence %d·%d", p.key, p, o.fence>>10, o.fence&1023)
		}
		if !p.shared && (o.shared || o.lowered() && o.low < p.asked) {
			v.fail("upgrade", "%s: %v was shared, and is let in exclusively", p.key, o)
		}
	}
}

// fresh checks that a re-entry is reported only to an owner that holds the key. There is an
// exception while an earlier acquire or release of that owner is in flight. The check also shows
// that a failed acquire of several keys has kept none of them.
func fresh(v *verdict, ps []*op) {
	type who struct{ w, o int }
	open := map[who]bool{}
	for _, p := range ps { // in the order of the requests
		at := who{p.w, p.o}
		if p.of == 0 && p.granted() && p.count > 1 && !open[at] {
			v.fail("left behind", "%s: %v is its owner's %d. at once", p.key, p, p.count)
		}
		open[at] = p.answered == 0 || !p.granted() && p.result == "silence"
	}
}

// whole checks that an acquire of several keys is granted all of them or none.
func whole(v *verdict, all []*op) {
	type id struct {
		w     int
		group int64
	}
	first := map[id]*op{}
	for _, p := range all {
		if p.group == 0 || p.killed > 0 {
			continue
		}
		o := first[id{p.w, p.group}]
		if o == nil {
			first[id{p.w, p.group}] = p
		} else if o.granted() != p.granted() {
			v.fail("all or nothing", "worker %d owner %d asked for %s and %s together: %q and %q", p.w, p.o,
				o.key, p.key, o.result, p.result)
		}
	}
}

// refused are refusals that no client here gives a reason for, in the words of each language.
var refused = []string{"invalid", "Invalid", "unsupported", "Unsupported", "denied", "Denied"}

// refusals checks that no request was refused as impossible.
func refusals(v *verdict, all []*op) {
	for _, p := range all {
		for _, r := range []string{p.result, p.gaveResult, p.lowResult} {
			if slices.Contains(refused, r) {
				v.fail("refused", "%s: %v: %s", p.key, p, r)
			}
		}
	}
}
