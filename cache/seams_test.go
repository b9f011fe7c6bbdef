package cache

import (
	"errors"
	"testing"
	"time"
)

// answersTry fails unless a shared try is answered within a minute.
func (b *bench) answersTry(s *Session) {
	b.t.Helper()
	ms := b.acquire(s, "k", func(q *Acquire) { q.Mode = Shared })
	for range 60 {
		ms = append(ms, b.tick(time.Second)...)
	}
	if len(ms) == 0 {
		b.t.Errorf("a try is not answered for a minute; ops %v", kinds(b.ops))
	}
}

// A degraded hold whose key has moved does not join and withdraw at its earlier store without end, once
// that is back and another host has the key there.
func TestDegradedMovedLoops(t *testing.T) {
	b := newRerouted(t, func(s *setup) { s.Local, s.LocalAfter = true, time.Second })
	holder := b.session()
	b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
	b.now += 2 * second
	if m := b.acquire(holder, "k", waits)[0]; !m.Degraded {
		t.Fatalf("%+v", m)
	}
	b.reroute(anybody)
	b.tab.StoreUp(b.from.Store, b.now, &b.out)
	b.take()
	n := 0
	for ; n < 100 && len(b.ops) > 0; n++ {
		op := b.ops[0]
		b.ops = b.ops[1:]
		if op.Kind == OpWithdraw {
			b.answer(op, Result{Status: Done})
		} else {
			b.answer(op, Result{Status: Queued})
		}
	}
	if n > 3 {
		t.Errorf("%d ops without any time passing", n)
	}
}

// A shared try behind a degraded shared hold of a key that has moved is answered.
func TestTryBehindDegradedMovedHangs(t *testing.T) {
	b := newRerouted(t, func(s *setup) { s.Local, s.LocalAfter = true, time.Second })
	holder, other := b.session(), b.session()
	b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
	b.now += 2 * second
	if m := b.acquire(holder, "k", shared)[0]; !m.Degraded {
		t.Fatalf("%+v", m)
	}
	b.reroute(anybody)
	b.answersTry(other)
}

// A lingering lease that is used again under a policy that has no linger any more wakes without end.
func TestLingerTakenAway(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	b.habitual(s, "k")
	l := b.tab.leases["k"]
	if l == nil || l.idleUntil() == 0 {
		t.Skip("does not linger")
	}
	to := *b.ns
	to.Linger = 0
	b.ns = &to // routes have changed, and this table has not been told yet
	m := b.acquire(s, "k", nil)[0]
	if m.Kind != MsgGranted {
		t.Fatalf("%+v", m)
	}
	b.tab.Reroute(func(string) *Namespace { return &to }, anybody, b.now, &b.out)
	b.take()
	b.now += 3 * second
	n := 0
	for ; n < 1000 && b.tab.NextWake() <= b.now; n++ {
		b.tab.Tick(b.now, 1, &b.out)
		b.now++
	}
	b.take()
	if n == 1000 {
		t.Errorf("the held lease wakes the table every nanosecond: idleUntil %d, now %d", l.idleUntil(), b.now)
	}
}

// A semaphore that has moved away from a store that is down: a permit that is owed there refuses those
// who wait at the present store, which works.
func TestSemaphoreMovedFromADownStore(t *testing.T) {
	b := newRerouted(t, nil)
	s, w := b.session(), b.session()
	b.acquire(s, "k", permitOf(2, Forever))
	f := b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	b.reroute(anybody)
	b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
	b.take()
	b.now += 10 * second
	b.acquire(w, "k", permitOf(2, Forever))
	b.answer(b.at(OpJoin, b.to), Result{Status: Queued})
	ms := append(b.release(s, "k", f), b.tick(time.Millisecond)...)
	for _, m := range ms {
		if m.Re.Session == w {
			t.Errorf("who waits at a store that works: code %d, %v", m.Code, m.Err)
		}
	}
}

// So too with a try.
func TestSemaphoreTryMovedFromADownStore(t *testing.T) {
	b := newRerouted(t, nil)
	s, w := b.session(), b.session()
	b.acquire(s, "k", permitOf(2, Forever))
	f := b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	b.reroute(anybody)
	b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
	b.take()
	b.acquire(w, "k", permitOf(2, 0))
	for _, m := range b.release(s, "k", f) {
		if m.Re.Session == w {
			t.Errorf("who tries at a store that works: code %d, %v", m.Code, m.Err)
		}
	}
}

// What has moved and is over at its earlier store by its TTL is asked for there again.
func TestMovedIsAskedOfTheEarlierStoreAgain(t *testing.T) {
	b := newRerouted(t, func(s *setup) {})
	holder, next := b.session(), b.session()
	b.acquire(holder, "k", func(q *Acquire) { q.TTL, q.Wait = second, Forever })
	f := b.granted(OpJoin, 5)
	b.acquire(next, "k", func(q *Acquire) { q.TTL, q.Wait = second, Forever })
	b.reroute(anybody)
	b.ops = nil
	b.release(holder, "k", f)
	for range 40 { // the store refuses whatever it is asked
		for len(b.ops) > 0 {
			op := b.ops[0]
			b.ops = b.ops[1:]
			if op.Store == b.to.Store.ID {
				return
			}
			if op.Kind == OpTry || op.Kind == OpJoin {
				t.Fatalf("%v is asked of store %d", op.Kind, op.Store)
			}
			b.answer(op, Result{Status: Refused, Err: errors.New("read-only")})
		}
		b.tick(100 * time.Millisecond)
	}
	t.Error("never asked of the present store")
}

// A key that has moved from a store that is down is asked for elsewhere as soon as its TTL is over.
func TestMovedFromADownStoreIsLate(t *testing.T) {
	b := newRerouted(t, nil)
	holder, next := b.session(), b.session()
	b.acquire(holder, "k", func(q *Acquire) { q.TTL, q.Wait = second, Forever })
	f := b.granted(OpJoin, 5)
	b.acquire(next, "k", func(q *Acquire) { q.TTL, q.Wait = second, Forever })
	b.reroute(anybody)
	b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
	b.take()
	b.release(holder, "k", f)
	at := b.now
	over := b.tab.leases["k"].oweUntil
	for range 100 {
		b.tick(100 * time.Millisecond)
		if len(b.ops) > 0 {
			break
		}
	}
	if len(b.ops) == 0 || b.now-over > second/2 {
		t.Errorf("asked %v after the release, the TTL was over after %v: %v", time.Duration(b.now-at), time.Duration(over-at), kinds(b.ops))
	}
}

// A store that comes back for a moment: readers who come before this host may decide alone again are not
// let in to a degraded hold of readers, and a try among them is not answered.
func TestTryBehindADegradedHoldWhenTheStoreFlaps(t *testing.T) {
	b := newBench(t, func(s *setup) { s.Local, s.LocalAfter = true, time.Second })
	holder, other := b.session(), b.session()
	st := b.ns.Store
	b.tab.StoreDown(st, errors.New("down"), b.now, &b.out)
	b.now += 2 * second
	if m := b.acquire(holder, "k", shared)[0]; !m.Degraded {
		t.Fatalf("%+v", m)
	}
	b.tab.StoreUp(st, b.now, &b.out)
	b.take()
	b.answer(b.op(OpJoin), Result{Status: Refused, Err: errors.New("still loading")})
	b.ops = nil
	b.tab.StoreDown(st, errors.New("down"), b.now, &b.out)
	b.take()
	b.now += second / 2
	b.answersTry(other)
}

// So too when a reload has this host wait longer before it decides alone.
func TestTryBehindADegradedHoldWhenLocalAfterGrows(t *testing.T) {
	b := newBench(t, func(s *setup) { s.Local, s.LocalAfter = true, time.Second })
	holder, other := b.session(), b.session()
	b.tab.StoreDown(b.ns.Store, errors.New("down"), b.now, &b.out)
	b.now += 2 * second
	if m := b.acquire(holder, "k", shared)[0]; !m.Degraded {
		t.Fatalf("%+v", m)
	}
	to := *b.ns
	to.LocalAfter = 10 * time.Second
	b.ns = &to
	b.tab.Reroute(func(string) *Namespace { return &to }, anybody, b.now, &b.out)
	b.take()
	b.answersTry(other)
}
