package chaos

import (
	"cmp"
	"maps"
	"slices"

	"github.com/anishathalye/porcupine"
)

// permitted checks that on all hosts together, at most as many clients believe in a permit as there
// are permits.
func (h *History) permitted(v *verdict, ps []*op) {
	for _, p := range ps {
		if p.granted() {
			sound(v, p)
		}
	}
	var open []belief
	for _, b := range h.beliefs(ps) {
		open = append(slices.DeleteFunc(open, func(a belief) bool { return a.to <= b.from }), b)
		if len(open) <= b.permits {
			continue
		}
		known := slices.DeleteFunc(slices.Clone(open), func(a belief) bool {
			return a.op != b.op && (h.forgives(a.op, b.op) || h.forgives(b.op, a.op))
		})
		if len(known) <= b.permits {
			v.forgiven++
			continue
		}
		v.fail("too many permits", "%s: %d of %d at %d, the last %v, beside %v", b.key, len(known),
			b.permits, b.from, b.op, known[0].op)
	}
}

// unlike checks that no two permits of a key have the same fence, and that no permit has the fence
// of a lock.
func unlike(v *verdict, all []*op) {
	type name struct {
		key   string
		fence uint64
	}
	locks, permits := map[name]*op{}, map[name]*op{}
	for _, p := range all {
		if !p.granted() {
			continue
		}
		at := name{p.name, p.fence}
		if p.permits == 0 {
			locks[at] = p
			continue
		}
		if o := permits[at]; o != nil {
			v.fail("permits alike", "%s: %v and %v", p.key, o, p)
		}
		permits[at] = p
	}
	for at, p := range permits {
		if o := locks[at]; o != nil {
			v.fail("permits alike", "%s: %v, and of the lock %v", p.key, p, o)
		}
	}
}

// pool is the model of a semaphore at one daemon: the holders of its permits, by their fences. It
// does not have the permits of other daemons, so it shows less than permitted. But it looks at
// releases, and not at what clients believe.
type pool map[holder]bool

func (m pool) step(in input) (pool, bool) {
	next := maps.Clone(m)
	switch in.step {
	case enter:
		if len(m) >= in.permits || m[in.holder] {
			return m, false
		}
		next[in.holder] = true
	case leave:
		if !m[in.holder] {
			return m, false
		}
		delete(next, in.holder)
	case vanish:
		delete(next, in.holder)
	}
	return next, true
}

var semaphore = porcupine.Model{
	Init: func() any { return pool{} },
	Step: func(state, in, _ any) (bool, any) {
		next, ok := state.(pool).step(in.(input))
		return ok, next
	},
	Equal:             func(a, b any) bool { return maps.Equal(a.(pool), b.(pool)) },
	DescribeOperation: model.DescribeOperation,
}

// permitOperations returns the operations on one semaphore at one daemon. A permit that ends by
// itself is assumed to end at the first possible moment, because it cannot exclude another one
// after that. A permit that the store has forgotten counts as such, however it was released.
func (h *History) permitOperations(ps []*op) (all []porcupine.Operation) {
	for _, p := range ps {
		if !p.granted() {
			continue
		}
		add := func(s step, call, ret int64) {
			in := input{step: s, holder: holder{p.w, p.o, p.fence}, permits: p.permits}
			all = append(all, porcupine.Operation{ClientId: p.w<<8 | p.o, Input: in,
				Call: call, Return: ret})
		}
		add(enter, p.asked, p.answered)
		forgotten := slices.ContainsFunc(h.Forgets, func(f forget) bool {
			return f.of(p) && p.asked <= f.to && (p.given == 0 || p.given >= f.from)
		})
		if p.released() && !h.cutOff(p) && !forgotten {
			add(leave, p.gave, p.given)
			continue
		}
		at := max(h.earliest(p), p.asked)
		add(vanish, at, max(at, p.answered))
	}
	slices.SortStableFunc(all, func(a, b porcupine.Operation) int {
		return cmp.Compare(a.Call, b.Call)
	})
	return all
}
