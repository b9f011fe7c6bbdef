package cache

import "github.com/locksidecar/locksidecar/protocol"

// This file handles inspections.

// peekAnswered handles the store's answer to a peek, and answers the inspections that wait for it.
func (t *Table) peekAnswered(l *Lease, r *Result, out *Effects) {
	m := Message{Kind: MsgInspected, Left: -1, Waiters: l.queue().n}
	switch r.Status {
	case Busy, Granted:
		m.Held, m.Left, m.Mode = protocol.HeldThere, r.Left, r.Mode
		if !l.isLock() {
			m.Mode = Permit
		}
		t.noteSuccess(l)
	case Done:
		t.noteSuccess(l)
	default:
		m = Message{Kind: MsgFailed, Code: protocol.Unavailable, Left: -1, Err: r.Err}
	}
	l.answerPeeks(m, out)
}

// answerPeeks answers the inspections that wait for the state of l, if there are any.
func (l *Lease) answerPeeks(m Message, out *Effects) {
	if l.optional == nil {
		return
	}
	for _, re := range l.optional.peeks {
		re.Session.addAsks(-1)
		m.Re = re
		out.Messages = append(out.Messages, m)
	}
	l.optional.peeks = nil
}

// hasPeeks reports whether inspections wait for the state of l.
func (l *Lease) hasPeeks() bool { return l.optional != nil && len(l.optional.peeks) > 0 }

// failPeeks answers the inspections of a key that nobody holds on this host, while its store is
// down.
func (t *Table) failPeeks(l *Lease, out *Effects) {
	if l.op == 0 && l.nHolds == 0 {
		l.answerPeeks(Message{Kind: MsgFailed, Code: protocol.Unavailable, Left: -1, Err: l.st.err},
			out)
	}
}

// peek queues re until the state of l is known.
func (l *Lease) peek(re Request) {
	re.Session.addAsks(1)
	r := l.withOptional()
	r.peeks = append(r.peeks, re)
}

// Inspect answers re with the state of a key: of its semaphore if mode is Permit, else of its
// lock. It asks the store if this host does not hold the key.
func (t *Table) Inspect(re Request, ns *Namespace, key []byte, mode Mode, now int64, out *Effects) {
	t.reuseDropped()
	if err := t.mayAsk(re.Session); err != nil {
		out.fail(re, protocol.Limit, err)
		return
	}
	if mode == Permit {
		t.inspectSemaphore(re, ns, key, now, out)
		return
	}
	l := t.locks[string(key)].lease()
	if l != nil {
		t.expire(l, now, out)
		if l.nHolds > 0 {
			m := t.inspectedHere(l, now)
			m.Re = re
			out.Messages = append(out.Messages, m)
			t.advance(l, now, out)
			return
		}
	} else {
		l = t.lease(key, ns)
	}
	l.peek(re)
	t.advance(l, now, out)
}

// inspectedHere returns the answer to an inspection of a lock that this host holds.
func (t *Table) inspectedHere(l *Lease, now int64) Message {
	return Message{Kind: MsgInspected, Held: protocol.HeldHere, Mode: l.heldMode,
		Holders: l.nHolds, Waiters: l.queue().n, Left: t.deadline(l) - now, Fence: l.newestFence()}
}

// newestFence returns the fence of the present or newest hold; 0 without one.
func (l *Lease) newestFence() uint64 {
	if f := l.held.fence; f != 0 {
		return f
	}
	for h := range l.holds.all() {
		if h.fence != 0 {
			return h.fence
		}
	}
	return 0
}
