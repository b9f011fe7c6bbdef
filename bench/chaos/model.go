package chaos

import (
	"fmt"
	"maps"
	"time"

	"github.com/anishathalye/porcupine"
)

// This file has the model of one key at one daemon: a re-entrant mutex with shared mode, downgrades
// and fences. Each daemon has a model of its own. Between daemons, a hold may end by its deadline
// alone, which other daemons do not record as an event.

type step int

const (
	enter step = iota
	leave      // a successful release
	// vanish ends a hold that may have ended by itself: the hold was lost, or the answer to its
	// release was lost.
	vanish
	lower // a successful downgrade
)

type input struct {
	step
	holder
	shared  bool
	permits int // number of permits, of a semaphore
}

// holder is one owner's hold. If the owner acquires the key again, the fence differs.
type holder struct {
	worker, owner int
	fence         uint64
}

// modelHold is what the model knows of a hold.
type modelHold struct {
	count  int
	shared bool
}

// mutex is a state. It is never changed.
type mutex struct {
	holders map[holder]modelHold
	writer  uint64 // the highest fence of an exclusive holder
	any     uint64 // the highest fence of any holder
}

func (m mutex) step(in input) (mutex, bool) {
	g, holds := m.holders[in.holder]
	next := mutex{maps.Clone(m.holders), m.writer, m.any}
	if next.holders == nil {
		next.holders = map[holder]modelHold{}
	}
	switch in.step {
	case enter:
		if holds {
			if g.shared && !in.shared {
				return m, false
			}
			g.count++
			next.holders[in.holder] = g
			return next, true
		}
		for _, o := range m.holders {
			if !in.shared || !o.shared {
				return m, false
			}
		}
		if in.fence <= m.writer || !in.shared && in.fence <= m.any {
			return m, false
		}
		next.holders[in.holder] = modelHold{1, in.shared}
		next.any = max(m.any, in.fence)
		if !in.shared {
			next.writer = in.fence
		}
	case leave:
		if !holds {
			return m, false
		}
		if g.count--; g.count > 0 {
			next.holders[in.holder] = g
		} else {
			delete(next.holders, in.holder)
		}
	case vanish:
		delete(next.holders, in.holder)
	case lower:
		if !holds {
			return m, false
		}
		next.holders[in.holder] = modelHold{g.count, true}
	}
	return next, true
}

var model = porcupine.Model{
	Init: func() any { return mutex{} },
	Step: func(state, in, _ any) (bool, any) {
		next, ok := state.(mutex).step(in.(input))
		return ok, next
	},
	Equal: func(a, b any) bool {
		x, y := a.(mutex), b.(mutex)
		return x.writer == y.writer && x.any == y.any && maps.Equal(x.holders, y.holders)
	},
	DescribeOperation: func(in, _ any) string {
		i := in.(input)
		return fmt.Sprintf("%s %v", [...]string{"enter", "leave", "vanish", "lower"}[i.step], i.holder)
	},
}

// Modelled counts how the partitions of a history fared with the model.
type Modelled struct{ OK, Illegal, Unknown int }

// Model checks each key at each daemon, and takes at most each for one of them.
func (h *History) Model(each time.Duration) (m Modelled, found []Violation) {
	type place struct {
		host int
		key  string
	}
	parts := map[place][]*op{}
	for _, p := range h.ops() {
		parts[place{p.host, p.key}] = append(parts[place{p.host, p.key}], p)
	}
	var v verdict
	for at, ps := range parts {
		what, name, all := model, "re-entrant fenced mutex", h.operations
		if ps[0].permits > 0 {
			what, name, all = semaphore, "semaphore", h.permitOperations
		}
		switch porcupine.CheckOperationsTimeout(what, all(ps), each) {
		case porcupine.Ok:
			m.OK++
		case porcupine.Unknown:
			m.Unknown++
		case porcupine.Illegal:
			m.Illegal++
			v.fail("model", "%s at daemon %d is no %s", at.key, at.host, name)
		}
	}
	return m, v.found
}

// operations returns the operations on one key at one daemon. An acquire that was not granted does
// not constrain the model, and the result of an acquire without an answer is unknown.
func (h *History) operations(ps []*op) (all []porcupine.Operation) {
	var fresh []*op
	for _, p := range ps {
		if p.granted() && p.of == 0 {
			fresh = append(fresh, p)
		}
	}
	add := func(p *op, in input, call, ret int64) {
		all = append(all, porcupine.Operation{ClientId: p.w<<8 | p.o, Input: in, Call: call, Return: ret})
	}
	for _, p := range ps {
		if !p.granted() {
			continue
		}
		in := input{step: enter, holder: holder{p.w, p.o, p.fence}, shared: p.shared}
		add(p, in, p.asked, p.answered)
		if p.lowered() {
			in.step = lower
			add(p, in, p.lower, p.low)
		}
		in.step = leave
		if p.released() && !h.cutOff(p) {
			add(p, in, p.gave, p.given)
			continue
		}
		in.step = vanish
		add(p, in, h.earliest(p), needed(p, fresh))
	}
	return all
}

// earliest returns when a hold may first have ended by itself. That is not before the last check
// that found it valid. But if the store had forgotten the hold, or its connection was cut, that
// message may have been on its way.
func (h *History) earliest(p *op) int64 {
	from := p.seen
	for _, t := range h.Cut[p.w] {
		if t > p.asked {
			from = min(from, t)
		}
	}
	for _, f := range h.Forgets {
		if f.of(p) && p.asked <= f.to && p.seen >= f.from {
			from = min(from, f.from)
		}
	}
	return max(p.asked, from)
}

// needed returns when another owner is first known to hold after p. If p's hold ever excluded that
// owner, it must have ended by then. A later end would make no difference.
func needed(p *op, fresh []*op) int64 {
	end := int64(forever)
	for _, o := range fresh {
		beside := o.shared && (p.shared || p.lowered())
		if o != p && o.held() && o.answered > max(p.answered, p.seen) && !beside {
			end = min(end, o.answered)
		}
	}
	return end
}
