package cache

// Inspections.

func (t *Table) peeked(l *Lease, r *Result, out *Effects) {
	m := Message{Kind: MsgInspected, Left: -1, Waiters: l.nWaits}
	switch r.Status {
	case Busy, Granted:
		m.Held, m.Left, m.Mode = 2, r.Left, r.Mode
		if l.sem != nil {
			m.Mode = Permit
		}
		t.succeed(l)
	case Done:
		t.succeed(l)
	default:
		m = Message{Kind: MsgFailed, Code: CodeUnavailable, Left: -1, Err: r.Err}
	}
	l.answerPeeks(m, out)
}

func (l *Lease) answerPeeks(m Message, out *Effects) {
	for _, re := range l.optional.peeks {
		re.Session.addAsks(-1)
		m.Re = re
		out.Messages = append(out.Messages, m)
	}
	l.optional.peeks = nil
}

// peek queues re until the state of l is known.
func (l *Lease) peek(re Request) {
	re.Session.addAsks(1)
	r := l.withOptional()
	r.peeks = append(r.peeks, re)
}

// Inspect answers re with the state of a key: of its semaphore if mode is Permit, else of its lock. It asks
// the store if this host does not hold the key.
func (t *Table) Inspect(re Request, ns *Namespace, key []byte, mode Mode, now int64, out *Effects) {
	if err := t.mayAsk(re.Session); err != nil {
		out.fail(re, CodeLimit, err)
		return
	}
	if mode == Permit {
		t.inspectSemaphore(re, ns, key, now, out)
		return
	}
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
	l.peek(re)
	t.advance(l, now, out)
}

func (t *Table) sayHeld(l *Lease, re Request, now int64, out *Effects) {
	out.Messages = append(out.Messages, Message{Kind: MsgInspected, Re: re, Held: 1, Mode: l.heldMode,
		Holders: l.nHolds, Waiters: l.nWaits, Left: t.deadline(l) - now, Fence: l.newestFence()})
}

// answerPeeks answers the inspections that came before the lease.
func (t *Table) answerPeeks(l *Lease, now int64, out *Effects) {
	if l.optional == nil || l.nHolds == 0 || l.op == OpPeek {
		return
	}
	for _, re := range l.optional.peeks {
		re.Session.addAsks(-1)
		t.sayHeld(l, re, now, out)
	}
	l.optional.peeks = nil
}

func (l *Lease) newestFence() uint64 {
	f := l.fence
	for h := l.holds; h != nil && f == 0; h = h.next {
		f = h.fence
	}
	return f
}
