package cache

import (
	"slices"
	"strings"
)

// What others want to know.

func (t *Table) peeked(l *Lease, r *Result, out *Effects) {
	m := Message{Kind: MsgInspected, Left: -1, Waiters: l.nWaits}
	switch r.Status {
	case Busy, Granted:
		m.Held, m.Left, m.Mode = 2, r.Left, r.Mode
		t.succeed(l)
	case Done:
		t.succeed(l)
	default:
		m = Message{Kind: MsgFailed, Code: CodeUnavailable, Left: -1, Err: r.Err}
	}
	l.answerPeeks(m, out)
}

func (l *Lease) answerPeeks(m Message, out *Effects) {
	for _, re := range l.rare.peeks {
		m.Re = re
		out.Messages = append(out.Messages, m)
	}
	l.rare.peeks = nil
}

// Inspect answers what is known of a key, asking the store if this host does not
// hold it.
func (t *Table) Inspect(re Request, ns *Namespace, key []byte, now int64, out *Effects) {
	l := t.leases[string(key)]
	if l != nil {
		t.expire(l, now, out)
		if l.nHolds > 0 {
			t.sayHeld(l, re, now, out)
			t.advance(l, now, out)
			return
		}
	} else {
		l = t.lease(key, ns)
	}
	r := l.rarely()
	r.peeks = append(r.peeks, re)
	t.advance(l, now, out)
}

func (t *Table) sayHeld(l *Lease, re Request, now int64, out *Effects) {
	out.Messages = append(out.Messages, Message{Kind: MsgInspected, Re: re, Held: 1, Mode: l.heldMode,
		Holders: l.nHolds, Waiters: l.nWaits, Left: t.deadline(l) - now, Fence: l.newestFence()})
}

// answerPeeks answers inspects that came before the lease did.
func (t *Table) answerPeeks(l *Lease, now int64, out *Effects) {
	if l.rare == nil || l.nHolds == 0 || l.op == OpPeek {
		return
	}
	for _, re := range l.rare.peeks {
		t.sayHeld(l, re, now, out)
	}
	l.rare.peeks = nil
}

func (l *Lease) newestFence() uint64 {
	f := l.fence
	for h := l.holds; h != nil && f == 0; h = h.next {
		f = h.fence
	}
	return f
}

// sorted is every lease in the order of their keys.
func (t *Table) sorted() []*Lease {
	ls := make([]*Lease, 0, len(t.leases))
	for _, l := range t.leases {
		ls = append(ls, l)
	}
	slices.SortFunc(ls, func(a, b *Lease) int { return strings.Compare(a.key, b.key) })
	return ls
}
