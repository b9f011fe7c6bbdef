package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Violation is a promise that was broken.
type Violation struct {
	Check string // which of the checks
	Text  string
}

func (v Violation) String() string { return v.Check + ": " + v.Text }

// most is how many violations of one check are told apart.
const most = 5

type verdict struct {
	found    []Violation
	count    map[string]int
	forgiven int // overlaps over a moment at which the store may have forgotten
}

func (v *verdict) fail(check, format string, args ...any) {
	if v.count == nil {
		v.count = map[string]int{}
	}
	if v.count[check]++; v.count[check] <= most {
		v.found = append(v.found, Violation{check, fmt.Sprintf(format, args...)})
	}
}

// Check looks for all that a history can show by itself. It returns how many overlaps are
// of the kind that the store does not promise to prevent, too.
func (h *History) Check() (found []Violation, forgiven int) {
	var v verdict
	all := h.ops()
	byKey := map[string][]*op{}
	for _, p := range all {
		byKey[p.key] = append(byKey[p.key], p)
	}
	for _, ps := range byKey {
		h.disjoint(&v, ps)
		h.rising(&v, ps)
		reentries(&v, ps)
	}
	h.waits(&v, all)
	return v.found, v.forgiven
}

func (p *op) String() string {
	mode := "exclusive"
	if p.shared {
		mode = "shared"
	}
	return fmt.Sprintf("worker %d owner %d at daemon %d (acquire %d, %s, fence %d·%d)", p.w, p.o, p.host, p.n, mode, p.fence>>10, p.fence&1023)
}

// disjoint: two clients of which one holds exclusively never believe at the same time
// that they hold.
func (h *History) disjoint(v *verdict, ps []*op) {
	type belief struct {
		*op
		span
	}
	var bs []belief
	for _, p := range ps {
		if p.held() {
			bs = append(bs, belief{p, h.believed(p)})
		}
	}
	slices.SortFunc(bs, func(a, b belief) int { return cmp.Compare(a.from, b.from) })
	var open []belief
	for _, b := range bs {
		open = slices.DeleteFunc(open, func(a belief) bool { return a.to <= b.from })
		for _, a := range open {
			if a.shared && b.shared || b.to <= b.from {
				continue
			}
			if h.forgives(a.op, b.op) || h.forgives(b.op, a.op) {
				v.forgiven++
				continue
			}
			v.fail("two holders", "%s: %v and %v, together for %v; the first until %d, the second from %d",
				a.key, a.op, b.op, time.Duration(min(a.to, b.to)-b.from), a.to, b.from)
		}
		open = append(open, b)
	}
}

// rising: the fence of whoever holds later is greater, of two readers apart. Later is
// who was told later, for grants that were valid when they were read; over a moment at
// which the store may have forgotten, who asked when the other had been told.
func (h *History) rising(v *verdict, ps []*op) {
	held := slices.DeleteFunc(slices.Clone(ps), func(p *op) bool { return !p.granted() || p.of != 0 })
	slices.SortFunc(held, func(a, b *op) int { return cmp.Compare(a.answered, b.answered) })
	for _, p := range held {
		if p.fence == 0 || p.fence >= 1<<63 {
			v.fail("fence", "%s: %v", p.key, p)
		}
		if p.deadline > 0 && p.deadline < p.asked {
			v.fail("past deadline", "%s: %v was granted until %d, and had asked at %d", p.key, p, p.deadline, p.asked)
		}
	}
	for i, b := range held {
		for j := i - 1; j >= 0; j-- {
			a := held[j]
			if a.shared && b.shared || a.fence < b.fence {
				continue
			}
			apart := a.answered < b.asked
			if h.forgives(b, a) || !apart && (!a.held() || !b.held() || h.forgives(a, b)) {
				continue
			}
			v.fail("fence order", "%s: %v at %d, after %v at %d", b.key, b, b.answered, a, a.answered)
			break
		}
	}
}

// reentries: one who holds gets the same fence again.
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
	}
	for _, p := range ps {
		o := outer[id{p.w, p.of}]
		if p.of == 0 || !p.granted() || o == nil || p.fence == o.fence {
			continue
		}
		v.fail("re-entry", "%s: %v re-enters fence %d·%d", p.key, p, o.fence>>10, o.fence&1023)
	}
}

// overrun is how much longer than it asked for a wait may take: a client's own patience
// with a silent daemon, and a busy machine's.
const overrun = 20 * time.Second

// waits: every wait ends, and a bounded one in time, unless its process stood still or
// was killed.
func (h *History) waits(v *verdict, all []*op) {
	for _, p := range all {
		if p.killed > 0 {
			continue
		}
		if p.answered == 0 {
			v.fail("wait", "%s: worker %d owner %d has no answer to acquire %d, asked at %d", p.key, p.w, p.o, p.n, p.asked)
			continue
		}
		if p.granted() && p.gave > 0 && p.given == 0 {
			v.fail("wait", "%s: %v has no answer to its release", p.key, p)
		}
		late := time.Duration(p.answered-p.asked) - overrun - time.Duration(p.wait)*time.Millisecond
		for _, f := range h.Frozen[p.w] {
			late -= time.Duration(max(0, min(f.to, p.answered)-max(f.from, p.asked)))
		}
		if p.wait >= 0 && late > 0 {
			v.fail("wait", "%s: acquire %d of worker %d with a wait of %d ms took %v", p.key, p.n, p.w, p.wait, time.Duration(p.answered-p.asked))
		}
	}
}
