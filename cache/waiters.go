package cache

// The queue of a key on this host.

func (t *Table) enqueue(l *Lease, q *Acquire, now int64) {
	var w *waiter
	if n := len(t.freeWaits); n > 0 {
		w, t.freeWaits = t.freeWaits[n-1], t.freeWaits[:n-1]
	} else {
		w = new(waiter)
	}
	*w = waiter{l: l, req: q.Re, owner: q.Owner, ttl: q.TTL, mode: q.Mode, fixed: q.Fixed, permits: 1,
		try: q.Wait == 0, deadline: Forever}
	if !w.try && q.Wait < Forever-now {
		w.deadline = now + q.Wait
		t.timers.push(timer{at: w.deadline, w: w})
	}
	if w.prev = l.waitTail; w.prev != nil {
		w.prev.next = w
	} else {
		l.waitHead = w
	}
	l.waitTail = w
	l.nWaits++
	s := w.req.Session
	s.Waiters.Add(1)
	x := &s.index[t.cfg.Shard]
	if w.sNext = x.waits; w.sNext != nil {
		w.sNext.sPrev = w
	}
	x.waits = w
	t.mark(s)
}

// mark keeps the session's bit for this shard true.
func (t *Table) mark(s *Session) {
	x := &s.index[t.cfg.Shard]
	bit := uint64(1) << t.cfg.Shard
	if x.holds != nil || x.waits != nil {
		if s.Shards.Load()&bit == 0 {
			s.Shards.Or(bit)
		}
	} else {
		s.Shards.And(^bit)
	}
}

func (t *Table) dropWaiter(w *waiter) {
	l, s := w.l, w.req.Session
	if w.timerIdx != 0 {
		t.timers.remove(w.timerIdx)
	}
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.waitHead = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.waitTail = w.prev
	}
	l.nWaits--
	s.Waiters.Add(-1)
	x := &s.index[t.cfg.Shard]
	if w.sPrev != nil {
		w.sPrev.sNext = w.sNext
	} else {
		x.waits = w.sNext
	}
	if w.sNext != nil {
		w.sNext.sPrev = w.sPrev
	}
	t.mark(s)
	*w = waiter{}
	if len(t.freeWaits) < freeMost {
		t.freeWaits = append(t.freeWaits, w)
	}
}
