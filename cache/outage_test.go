package cache

import (
	"errors"
	"testing"
	"time"
)

// A host that grants alone has nobody who could take a hold from it. What it has
// stated runs out all the same when it stands still: who asks then is told anew.
func TestAHoldGrantedAloneIsNotStatedPastItsDeadline(t *testing.T) {
	b := newBench(t, func(x *setup) { x.Local, x.LocalAfter = true, 1 })
	s := b.session()
	b.tab.StoreDown(b.ns.Store, nil, b.now, &b.out)
	b.now++
	m := b.only(b.acquire(s, "k", nil), MsgGranted, CodeOK)
	if !m.Degraded || m.Until != b.now+30*second {
		t.Fatalf("%+v", m)
	}
	says := func(what string, m Message) {
		t.Helper()
		if m.Until != b.now+30*second {
			t.Errorf("%s: valid for %d s", what, (m.Until-b.now)/second)
		}
	}
	b.now += 40 * second
	says("re-entry", b.only(b.acquire(s, "k", nil), MsgGranted, CodeOK))
	b.now += 40 * second
	m, _ = b.tab.Restate(s, []byte("k"), 0, 0, b.now, &b.out)
	says("restated", m)
	b.now += 40 * second
	b.id++
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: b.id}, Key: []byte("k")}, b.now, &b.out)
	says("downgrade", b.only(b.take(), MsgGranted, CodeOK))
}

func mayDegrade(x *setup) { x.Local, x.LocalAfter = true, time.Second }

// degraded has s acquire k degraded: the store is down, and has been for long enough.
func (b *bench) degraded(s *Session, change func(*Acquire)) {
	b.t.Helper()
	b.tab.StoreDown(b.ns.Store, errors.New("down"), b.now, &b.out)
	b.now += 2 * second
	if m := b.acquire(s, "k", change)[0]; !m.Degraded {
		b.t.Fatalf("the grant is not degraded: %+v", m)
	}
}

// answersSharedTry fails unless a shared try for k is answered within a minute.
func (b *bench) answersSharedTry(s *Session) {
	b.t.Helper()
	ms := b.acquire(s, "k", func(q *Acquire) { q.Mode = Shared })
	for range 60 {
		ms = append(ms, b.tick(time.Second)...)
	}
	if len(ms) == 0 {
		b.t.Errorf("a try is not answered for a minute; ops %v", kinds(b.ops))
	}
}

// The store comes back only for a moment. Until this host may grant degraded holds again, a shared try cannot
// join one of the first outage.
func TestATryBehindADegradedHoldIsAnsweredInTheNextOutage(t *testing.T) {
	b := newBench(t, mayDegrade)
	b.degraded(b.session(), shared)
	st := b.ns.Store
	b.tab.StoreUp(st, b.now, &b.out)
	b.take()
	b.answer(b.op(OpJoin), Result{Status: Refused, Err: errors.New("still loading")})
	b.ops = nil
	b.tab.StoreDown(st, errors.New("down"), b.now, &b.out)
	b.take()
	b.now += second / 2
	b.answersSharedTry(b.session())
}

// A reload increases the time before this host may grant degraded holds. Until then a shared try cannot join
// an earlier one.
func TestATryBehindADegradedHoldIsAnsweredAfterLocalAfterGrows(t *testing.T) {
	b := newBench(t, mayDegrade)
	b.degraded(b.session(), shared)
	to := *b.ns
	to.LocalAfter = 10 * time.Second
	b.ns = &to
	b.tab.Reroute(func(string) *Namespace { return &to }, anybody, b.now, &b.out)
	b.take()
	b.answersSharedTry(b.session())
}

// A degraded hold is downgraded while the store is asked for it again. The lease that comes is exclusive, and
// is made shared: readers on other hosts need not wait for this one.
func TestAHoldThatIsDowngradedWhileItsStoreReturnsIsSharedThere(t *testing.T) {
	b := newBench(t, mayDegrade)
	s := b.session()
	b.degraded(s, waits)
	b.tab.StoreUp(b.ns.Store, b.now, &b.out)
	b.take()
	join := b.op(OpJoin)
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 99}, Key: []byte("k")}, b.now, &b.out)
	b.only(b.take(), MsgGranted, CodeOK)
	b.answer(join, Result{Status: Granted, Base: 5})
	b.answer(b.op(OpDowngrade), Result{Status: Done})
	b.release(s, "k", 0)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}
