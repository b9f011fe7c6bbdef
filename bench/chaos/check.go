package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Violation is a promise that was broken.
type Violation struct {
	Check string // the name of the check
	Text  string
}

func (v Violation) String() string { return v.Check + ": " + v.Text }

// most is the maximum number of violations that are reported for one check.
const most = 5

type verdict struct {
	found    []Violation
	count    map[string]int
	forgiven int // overlaps at a time at which the store may have forgotten a lock
}

func (v *verdict) fail(check, format string, args ...any) {
	if v.count == nil {
		v.count = map[string]int{}
	}
	if v.count[check]++; v.count[check] <= most {
		v.found = append(v.found, Violation{check, fmt.Sprintf(format, args...)})
	}
}

// Check runs all checks that need only the history. It also returns the number of overlaps that the
// store does not promise to prevent.
func (h *History) Check() (found []Violation, forgiven int) {
	var v verdict
	all := h.ops()
	byKey := map[string][]*op{}
	for _, p := range all {
		byKey[p.key] = append(byKey[p.key], p)
	}
	for _, ps := range byKey {
		if ps[0].permits > 0 {
			h.permitted(&v, ps)
			continue
		}
		h.disjoint(&v, ps)
		h.rising(&v, ps)
		reentries(&v, ps)
		fresh(&v, ps)
	}
	unlike(&v, all)
	whole(&v, all)
	h.waits(&v, all)
	refusals(&v, all)
	return v.found, v.forgiven
}

func (p *op) String() string {
	mode := "exclusive"
	switch {
	case p.permits > 0:
		mode = "permit"
	case p.shared:
		mode = "shared"
	}
	return fmt.Sprintf("worker %d owner %d at daemon %d (acquire %d, %s, fence %d·%d)", p.w, p.o,
		p.host, p.n, mode, p.fence>>10, p.fence&1023)
}

// belief is a time in which a client believed that it held a key, in one mode.
type belief struct {
	*op
	span
	shared bool
}

// beliefs returns the beliefs of all holds, in the order of their beginnings. A client that sends a
// downgrade believes in a shared hold from then on.
func (h *History) beliefs(ps []*op) (bs []belief) {
	for _, p := range ps {
		if !p.held() {
			continue
		}
		s := h.believed(p)
		if p.lower > 0 && p.lower < s.to {
			bs = append(bs, belief{p, span{p.lower, s.to}, true})
			s.to = p.lower
		}
		bs = append(bs, belief{p, s, p.shared})
	}
	slices.SortFunc(bs, func(a, b belief) int { return cmp.Compare(a.from, b.from) })
	return slices.DeleteFunc(bs, func(b belief) bool { return b.to <= b.from })
}

// disjoint checks that two clients, one of which holds exclusively, never believe at the same time
// that they hold.
func (h *History) disjoint(v *verdict, ps []*op) {
	var open []belief
	for _, b := range h.beliefs(ps) {
		open = slices.DeleteFunc(open, func(a belief) bool { return a.to <= b.from })
		for _, a := range open {
			if a.shared && b.shared {
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

// rising checks that each later hold has a larger fence, except for two readers. If both grants
// were valid when they were read, the later hold is the one whose client was told later. If the
// store may have forgotten a lock in between, the client of the later hold must also have sent its
// request after the other client was told.
func (h *History) rising(v *verdict, ps []*op) {
	held := slices.DeleteFunc(slices.Clone(ps), func(p *op) bool { return !p.granted() || p.of != 0 })
	slices.SortFunc(held, func(a, b *op) int { return cmp.Compare(a.answered, b.answered) })
	for _, p := range held {
		sound(v, p)
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

// sound checks that a grant has a fence, and was not over when it was requested.
func sound(v *verdict, p *op) {
	if p.fence == 0 || p.fence >= 1<<63 {
		v.fail("fence", "%s: %v", p.key, p)
	}
	if p.deadline > 0 && p.deadline < p.asked {
		v.fail("past deadline", "%s: %v was granted until %d, and had asked at %d", p.key, p,
			p.deadline, p.asked)
	}
}

// overrun is how much longer than requested a wait may take. It covers the time after which a
// client gives up a daemon that does not answer, and the delays of a busy machine.
const overrun = 20 * time.Second

// waits checks that every wait ends, and a bounded one in time. Waits of a process that was stopped
// or killed are exempt.
func (h *History) waits(v *verdict, all []*op) {
	for _, p := range all {
		if p.killed > 0 {
			continue
		}
		if p.answered == 0 {
			v.fail("wait", "%s: worker %d owner %d has no answer to acquire %d, asked at %d", p.key, p.w,
				p.o, p.n, p.asked)
			continue
		}
		if p.granted() && p.gave > 0 && p.given == 0 {
			v.fail("wait", "%s: %v has no answer to its release", p.key, p)
		}
		if p.lower > 0 && p.low == 0 {
			v.fail("wait", "%s: %v has no answer to its downgrade", p.key, p)
		}
		late := time.Duration(p.answered-p.asked) - overrun - time.Duration(p.wait)*time.Millisecond
		for _, f := range h.Frozen[p.w] {
			late -= time.Duration(max(0, min(f.to, p.answered)-max(f.from, p.asked)))
		}
		if p.wait >= 0 && late > 0 {
			v.fail("wait", "%s: acquire %d of worker %d with a wait of %d ms took %v", p.key, p.n, p.w,
				p.wait, time.Duration(p.answered-p.asked))
		}
	}
}
