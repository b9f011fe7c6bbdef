package cache

import (
	"github.com/locksidecar/locksidecar/cache/heap"
	"github.com/locksidecar/locksidecar/protocol"
)

// timer is a wake-up. A waiter's wake-up is the end of its wait; a lease's is its next step.
type timer struct {
	at int64
	l  *Lease // either l or w is set
	w  *waiter
}

type timerHeap = heap.Heap[timer, timerOrder]

// timerOrder orders timers by time, and records their places in timerIdx.
type timerOrder struct{}

func (timerOrder) Less(a, b timer) bool { return a.at < b.at }

func (timerOrder) Place(t timer, place int) {
	if t.w != nil {
		t.w.timerIdx = int32(place)
	} else {
		t.l.timerIdx = int32(place)
	}
}

// arm sets the wake-up of l to at; Forever means none. An earlier wake-up that is set stays: it
// advances the lease, which sets a new one.
func (t *Table) arm(l *Lease, at int64) {
	switch {
	case at == Forever:
		t.disarm(l)
	case l.timerIdx == 0:
		t.timers.Push(timer{at: at, l: l})
	case at < t.timers.At(int(l.timerIdx)).at:
		t.timers.Set(int(l.timerIdx), timer{at: at, l: l})
	}
}

func (t *Table) disarm(l *Lease) {
	if l.timerIdx != 0 {
		t.timers.Remove(int(l.timerIdx))
	}
}

// NextWake returns when Tick has to be called next; Forever if no wake-up is set.
func (t *Table) NextWake() int64 {
	at := Forever
	if t.timers.Len() > 0 {
		at = t.timers.At(1).at
	}
	for _, st := range t.stores {
		if st != nil && st.held > 0 {
			at = min(at, st.sessionUntil)
		}
	}
	return at
}

// Tick carries out up to limit wake-ups that are due. NextWake tells whether more are due.
func (t *Table) Tick(now int64, limit int, out *Effects) {
	for _, st := range t.stores {
		if st != nil && st.held > 0 && now >= st.sessionUntil {
			t.expireAll(st, now, out)
		}
	}
	for ; limit > 0 && t.timers.Len() > 0 && t.timers.At(1).at <= now; limit-- {
		top := t.timers.Remove(1)
		if top.w != nil {
			l := top.w.l
			t.endWait(top.w, now, out)
			t.advance(l, now, out)
		} else {
			t.advance(top.l, now, out)
		}
	}
}

// endWait answers a waiter whose deadline has passed. If the store fails, the answer names that
// failure, not the timeout.
func (t *Table) endWait(w *waiter, now int64, out *Effects) {
	if t.failingSince(w.l) != 0 {
		t.dismiss(w, protocol.Unavailable, -1, t.failure(w.l), now, out)
	} else {
		t.dismiss(w, protocol.Timeout, -1, nil, now, out)
	}
}
