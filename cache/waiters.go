package cache

// The queue of a key on this host.

func (t *Table) enqueue(l *Lease, q *Acquire, now int64) {
	var w *waiter
	if n := len(t.freeWaits); n > 0 {
		w, t.freeWaits = t.freeWaits[n-1], t.freeWaits[:n-1]
	} else {
		w = new(waiter)
	}
	*w = waiter{l: l, req: q.Re, owner: q.Owner, ttl: q.TTL, mode: q.Mode, fixed: q.Fixed,
		try: q.Wait == 0, deadline: Forever, since: now, contended: l.nHolds > 0 || l.nWaits > 0}
	if !w.try && q.Wait < Forever-now {
		w.deadline = now + q.Wait
	}
	t.queue(w)
}

// queue appends w to the queue of its key, and counts it.
func (t *Table) queue(w *waiter) {
	l := w.l
	if w.deadline != Forever {
		t.timers.push(timer{at: w.deadline, w: w})
	}
	if w.prev = l.waitTail; w.prev != nil {
		w.prev.next = w
	} else {
		l.waitHead = w
	}
	l.waitTail = w
	l.nWaits++
	l.countKinds(w, 1)
	l.countWaiter(w)
	s := w.req.Session
	s.Waiters.Add(1)
	s.User.addWaiters(1)
	l.ns.Use.addWaiters(1)
	t.statsOf(l.ns).Waiters++
	t.waits.add(w)
	x := &s.index[t.cfg.Shard]
	if w.sNext = x.waits; w.sNext != nil {
		w.sNext.sPrev = w
	}
	x.waits = w
	t.mark(s)
}

// shortenWait ends the wait of w at deadline, if it would end later.
func (t *Table) shortenWait(w *waiter, deadline int64) {
	if deadline >= w.deadline {
		return
	}
	w.deadline = deadline
	if w.timerIdx != 0 {
		t.timers.remove(w.timerIdx)
	}
	t.timers.push(timer{at: deadline, w: w})
}

// countKinds adds n to the counts of the kinds of w. The counts make a search through the queue unnecessary.
func (l *Lease) countKinds(w *waiter, n int32) {
	if w.try {
		l.nTries += n
	}
	if w.mode == Exclusive {
		l.nWriters += n
	}
}

// countWaiter counts w among its owner's waits, once the queue is long.
func (l *Lease) countWaiter(w *waiter) {
	if l.nWaits <= indexHolds && (l.optional == nil || l.optional.byWaiter == nil) {
		return
	}
	r := l.withOptional()
	if r.byWaiter == nil {
		r.byWaiter = make(map[ownerKey]int32, 2*indexHolds)
		for o := l.waitHead; o != w; o = o.next {
			r.byWaiter[ownerKey{o.req.Session, o.owner}]++
		}
	}
	r.byWaiter[ownerKey{w.req.Session, w.owner}]++
}

// uncountWaiter reverses countWaiter. w is no longer counted in l.nWaits.
func (l *Lease) uncountWaiter(w *waiter) {
	r := l.optional
	if r == nil || r.byWaiter == nil {
		return
	}
	k := ownerKey{w.req.Session, w.owner}
	if r.byWaiter[k]--; r.byWaiter[k] == 0 {
		delete(r.byWaiter, k)
	}
	if l.nWaits == 0 {
		r.byWaiter = nil
	}
}

// mark updates the bit of this shard in s.Shards.
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
	l.countKinds(w, -1)
	t.waits.remove(w)
	l.uncountWaiter(w)
	s.Waiters.Add(-1)
	s.User.addWaiters(-1)
	l.ns.Use.addWaiters(-1)
	c := t.statsOf(l.ns)
	if c.Waiters--; w.contended && !w.try {
		c.Contended++
	}
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
	if len(t.freeWaits) < maxFree {
		t.freeWaits = append(t.freeWaits, w)
	}
}

// markContended records for each waiter that it has to wait.
func (l *Lease) markContended() {
	for w := l.waitHead; w != nil; w = w.next {
		w.contended = true
	}
}
