package cache

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// While a host grants alone, no other host can take its holds. The validity that it has stated ends
// nevertheless if the host is frozen. A client that acquires the key again then gets a new
// validity.
func TestAHoldGrantedAloneIsNotStatedPastItsDeadline(t *testing.T) {
	b := newBench(t, func(x *setup) { x.Local, x.LocalAfter = true, 1 })
	s := b.session()
	b.tab.StoreDown(b.ns.Store, nil, b.now, &b.out)
	b.now++
	m := b.only(b.acquire(s, "k", nil), MsgGranted, protocol.OK)
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
	says("re-entry", b.only(b.acquire(s, "k", nil), MsgGranted, protocol.OK))
	b.now += 40 * second
	m, _ = b.tab.Restate(s, []byte("k"), 0, 0, b.now, &b.out)
	says("restated", m)
	b.now += 40 * second
	b.id++
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: b.id}, Key: []byte("k")}, b.now, &b.out)
	says("downgrade", b.only(b.take(), MsgGranted, protocol.OK))
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

// The store comes back only for a moment. Until this host may grant degraded holds again, a shared
// try cannot join one of the first outage.
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

// A reload increases the time before this host may grant degraded holds. Until then a shared try
// cannot join an earlier one.
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

// The store hangs: it has not answered an acquire when it is found to be down. The waiter does not
// wait for that answer as well.
func TestAGrantWithoutTheStoreDoesNotWaitForAnAnswerDue(t *testing.T) {
	b := newBench(t, mayDegrade)
	b.acquire(b.session(), "k", waits)
	b.tab.StoreDown(b.ns.Store, errors.New("down"), b.now, &b.out)
	b.acquire(b.session(), "k", waits)
	if m := b.only(b.tick(time.Second), MsgGranted, protocol.OK); !m.Degraded {
		t.Errorf("the grant is not degraded: %+v", m)
	}
}

// The store hangs for so long that the lease has ended when the answer comes. It ends no degraded
// hold.
func TestAGrantThatComesTooLateEndsNoDegradedHold(t *testing.T) {
	b := newBench(t, mayDegrade)
	s := b.session()
	b.acquire(s, "k", waits)
	op, sent := b.op(OpJoin), b.now
	b.degradedLater(s, 2*time.Second)
	b.now += 40 * second
	b.tab.Result(&op, &Result{Status: Granted, Base: 5}, sent, b.now, &b.out)
	b.noMessage(s, b.take())
	b.tab.StoreUp(b.ns.Store, b.now, &b.out)
	b.noMessage(s, b.take())
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.answer(b.op(OpJoin), Result{Status: Granted, Base: 6})
	b.release(s, "k", 0)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}

// degradedLater fails unless the waiter of s gets a degraded hold within the given time: the store
// has just gone down.
func (b *bench) degradedLater(s *Session, d time.Duration) {
	b.t.Helper()
	b.tab.StoreDown(b.ns.Store, errors.New("down"), b.now, &b.out)
	if m := b.only(b.tick(d), MsgGranted, protocol.OK); m.Re.Session != s || !m.Degraded {
		b.t.Fatalf("the grant is not degraded: %+v", m)
	}
}

// A shared lease is asked for, and is granted when this host has granted the key exclusively
// without the store. It is given up: with it, readers on other hosts would hold the key beside the
// exclusive holder.
func TestASharedLeaseDoesNotServeADegradedExclusiveHold(t *testing.T) {
	b := newBench(t, mayDegrade)
	reader, writer := b.session(), b.session()
	b.acquire(reader, "k", shared)
	join := b.op(OpJoin)
	b.acquire(writer, "k", waits)
	b.tab.EndSession(reader, 100, b.now, &b.out)
	b.degradedLater(writer, 2*time.Second)
	b.noMessage(writer, b.answer(join, Result{Status: Granted, Base: 5}))
	b.tab.StoreUp(b.ns.Store, b.now, &b.out)
	b.noMessage(writer, b.take())
	b.answer(b.op(OpRelease), Result{Status: Done})
	if op := b.op(OpJoin); op.Mode != Exclusive {
		t.Errorf("the lease is asked for in mode %v", op.Mode)
	}
}

// The answer to a request that was in flight when the store went down is a failure. That delays no
// degraded grant.
func TestATryIsGrantedAloneAfterAFailedRequest(t *testing.T) {
	b := newBench(t, mayDegrade)
	first, s := b.session(), b.session()
	b.acquire(first, "k", waits)
	join := b.op(OpJoin)
	b.degradedLater(first, 2*time.Second)
	b.answer(join, Result{Status: Unknown, Err: errors.New("no answer")})
	b.only(b.acquire(s, "k", nil), MsgFailed, protocol.Busy)
	b.only(b.release(first, "k", 0), MsgReleased, protocol.OK)
	if m := b.only(b.acquire(s, "k", nil), MsgGranted, protocol.OK); !m.Degraded {
		t.Errorf("the grant is not degraded: %+v", m)
	}
}

// Readers join a degraded shared hold whether they try or wait.
func TestASharedTryJoinsADegradedHold(t *testing.T) {
	tries := func(q *Acquire) { q.Mode = Shared }
	for name, change := range map[string]func(*setup){
		"queued at the store": mayDegrade,
		"with a plain locker": func(x *setup) { mayDegrade(x); x.Tenure = 500 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, change)
			b.acquire(b.session(), "k", shared)
			join := b.op(OpJoin)
			b.tab.StoreDown(b.ns.Store, errors.New("down"), b.now, &b.out)
			b.take()
			b.answer(join, Result{Status: Queued})
			b.only(b.tick(2*time.Second), MsgGranted, protocol.OK)
			b.only(b.acquire(b.session(), "k", shared), MsgGranted, protocol.OK)
			b.only(b.acquire(b.session(), "k", tries), MsgGranted, protocol.OK)
		})
	}
}

// A handoff needs a renewal, and the store is down. The waiter does not wait for the end of the
// lease.
func TestAHandoffThatNeedsARenewalIsDegraded(t *testing.T) {
	b := newBench(t, mayDegrade)
	holder, waiter := b.session(), b.session()
	b.acquire(holder, "k", waits)
	f := b.granted(OpJoin, 5)
	b.acquire(waiter, "k", waits)
	b.now += 21 * second
	b.tab.StoreDown(b.ns.Store, errors.New("down"), b.now, &b.out)
	b.take()
	b.only(b.release(holder, "k", f), MsgReleased, protocol.OK)
	b.answer(b.op(OpRenew), Result{Status: Unknown})
	b.tick(2 * time.Second)
	if m := b.only(b.tick(time.Millisecond), MsgGranted, protocol.OK); !m.Degraded ||
		m.Re.Session != waiter {
		t.Errorf("the grant is not degraded: %+v", m)
	}
}

// A degraded hold is downgraded while the store is asked for it again. The lease that comes is
// exclusive, and is made shared: readers on other hosts need not wait for this one.
func TestAHoldThatIsDowngradedWhileItsStoreReturnsIsSharedThere(t *testing.T) {
	b := newBench(t, mayDegrade)
	s := b.session()
	b.degraded(s, waits)
	b.tab.StoreUp(b.ns.Store, b.now, &b.out)
	b.take()
	join := b.op(OpJoin)
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 99}, Key: []byte("k")}, b.now, &b.out)
	b.only(b.take(), MsgGranted, protocol.OK)
	b.answer(join, Result{Status: Granted, Base: 5})
	b.answer(b.op(OpDowngrade), Result{Status: Done})
	b.release(s, "k", 0)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}
