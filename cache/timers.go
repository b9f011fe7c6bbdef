package cache

// timerHeap is a binary heap of wake-ups. A waiter's wake-up is the end of its wait; a lease's is its next step.
// Positions are counted from 1. Each waiter or lease has its own position, so that its timer can be removed.
type timerHeap []timer

type timer struct {
	at int64
	l  *Lease // either l or w is set
	w  *waiter
}

func (t timer) place(i int) {
	if t.w != nil {
		t.w.timerIdx = int32(i)
	} else {
		t.l.timerIdx = int32(i)
	}
}

func (h *timerHeap) push(t timer) {
	*h = append(*h, t)
	h.up(len(*h) - 1)
}

func (h timerHeap) up(i int) {
	t := h[i]
	for i > 0 {
		p := (i - 1) / 2
		if h[p].at <= t.at {
			break
		}
		h[i] = h[p]
		h[i].place(i + 1)
		i = p
	}
	h[i] = t
	t.place(i + 1)
}

func (h timerHeap) down(i int) {
	t := h[i]
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if c+1 < len(h) && h[c+1].at < h[c].at {
			c++
		}
		if t.at <= h[c].at {
			break
		}
		h[i] = h[c]
		h[i].place(i + 1)
		i = c
	}
	h[i] = t
	t.place(i + 1)
}

// remove removes the timer at position i, counted from 1.
func (h *timerHeap) remove(i int32) {
	at := int(i) - 1
	old := *h
	last := len(old) - 1
	old[at].place(0)
	moved := old[last]
	old[last] = timer{}
	*h = old[:last]
	if at == last {
		return
	}
	old[at] = moved
	moved.place(at + 1)
	h.down(at)
	h.up(int(moved.idx()) - 1)
}

func (t timer) idx() int32 {
	if t.w != nil {
		return t.w.timerIdx
	}
	return t.l.timerIdx
}

// arm sets the wake-up of l to at; Forever means none. An earlier wake-up that is set stays: it advances the
// lease, which sets a new one.
func (t *Table) arm(l *Lease, at int64) {
	switch {
	case at == Forever:
		t.disarm(l)
	case l.timerIdx == 0:
		t.timers.push(timer{at: at, l: l})
	case at < t.timers[l.timerIdx-1].at:
		t.timers[l.timerIdx-1].at = at
		t.timers.up(int(l.timerIdx) - 1)
	}
}

func (t *Table) disarm(l *Lease) {
	if l.timerIdx != 0 {
		t.timers.remove(l.timerIdx)
	}
}

// NextWake returns when Tick has to be called next; Forever if no wake-up is set.
func (t *Table) NextWake() int64 {
	at := Forever
	if len(t.timers) > 0 {
		at = t.timers[0].at
	}
	for _, st := range t.stores {
		if st != nil && st.held > 0 {
			at = min(at, st.session)
		}
	}
	return at
}

// Tick carries out up to most wake-ups that are due. NextWake tells whether more are due.
func (t *Table) Tick(now int64, most int, out *Effects) {
	for _, st := range t.stores {
		if st != nil && st.held > 0 && now >= st.session {
			t.expireAll(st, now, out)
		}
	}
	for ; most > 0 && len(t.timers) > 0 && t.timers[0].at <= now; most-- {
		top := t.timers[0]
		t.timers.remove(1)
		if top.w != nil {
			l := top.w.l
			t.endWait(top.w, now, out)
			t.advance(l, now, out)
		} else {
			t.advance(top.l, now, out)
		}
	}
}

// endWait answers a waiter whose deadline has passed. If the store fails, the answer names that failure, not the
// timeout.
func (t *Table) endWait(w *waiter, now int64, out *Effects) {
	if t.failingSince(w.l) != 0 {
		t.dismiss(w, CodeUnavailable, -1, t.failure(w.l), now, out)
	} else {
		t.dismiss(w, CodeTimeout, -1, nil, now, out)
	}
}
