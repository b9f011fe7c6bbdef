package cache

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// rerouted is a bench whose keys move from one store to another.
type rerouted struct {
	*bench
	from, to *Namespace
}

func newRerouted(t *testing.T, change func(*setup)) *rerouted {
	b := newBench(t, change)
	to := *b.ns
	to.Store, to.Use = &StoreTraits{ID: 1, Rebase: true, Queue: true}, new(Use)
	b.ns.Use = new(Use)
	return &rerouted{b, b.ns, &to}
}

func anybody(*Session, string, Mode, int64) (protocol.Code, error) { return protocol.OK, nil }

// reroute moves all keys to the other store.
func (b *rerouted) reroute(admit Admit) []Message {
	b.ns = b.to
	b.tab.Reroute(func(string) *Namespace { return b.to }, admit, b.now, &b.out)
	return b.take()
}

// at takes the only op, which must be for the store of ns.
func (b *rerouted) at(kind OpKind, ns *Namespace) Op {
	b.t.Helper()
	op := b.op(kind)
	if op.Store != ns.Store.ID {
		b.t.Fatalf("%v goes to store %d, want %d", kind, op.Store, ns.Store.ID)
	}
	return op
}

// users fails unless the stores have these numbers of users.
func (b *rerouted) users(from, to int) {
	b.t.Helper()
	if n, m := b.tab.Users(b.from.Store), b.tab.Users(b.to.Store); n != from || m != to {
		b.t.Errorf("%d users of the earlier store and %d of the present one, want %d and %d", n, m,
			from, to)
	}
}

func TestAWaiterInBackoffFollowsItsKey(t *testing.T) {
	b := newRerouted(t, nil)
	s := b.session()
	b.acquire(s, "k", waits)
	b.answer(b.at(OpJoin, b.from), Result{Status: Refused, Err: errors.New("no memory")})
	b.users(1, 0) // the waiter is in backoff
	b.reroute(anybody)
	b.users(0, 1)
	if b.from.Use.Waiters.Load() != 0 || b.to.Use.Waiters.Load() != 1 {
		t.Error("the waiter is counted in its earlier namespace")
	}
	ms := b.answer(b.at(OpJoin, b.to), Result{Status: Granted, Base: 5})
	b.only(ms, MsgGranted, protocol.OK)
}

func TestAMovedKeyLeavesTheQueueOfItsEarlierStore(t *testing.T) {
	b := newRerouted(t, nil)
	b.acquire(b.session(), "k", waits)
	b.answer(b.at(OpJoin, b.from), Result{Status: Queued})
	b.reroute(anybody)
	op := b.at(OpWithdraw, b.from)
	b.users(1, 0)
	b.answer(op, Result{Status: Done})
	b.users(0, 1)
	b.only(b.answer(b.at(OpJoin, b.to), Result{Status: Granted, Base: 5}), MsgGranted, protocol.OK)
}

// Clients continue between Follow and Reroute. A lease that ends meanwhile is not used again for
// another key: Reroute still refers to it.
func TestALeaseThatEndsBetweenFollowAndRerouteIsNotUsedAgain(t *testing.T) {
	b := newRerouted(t, nil)
	waiter, other := b.session(), b.session()
	b.acquire(other, "held", waits)
	b.granted(OpJoin, 5)
	b.acquire(waiter, "k", waits)
	b.answer(b.at(OpJoin, b.from), Result{Status: Refused, Err: errors.New("no memory")})
	b.ns = b.to
	route := func(string) *Namespace { return b.to }
	b.tab.Follow(route)
	b.tab.EndSession(waiter, 100, b.now, &b.out)
	b.acquire(other, "held", waits) // the table would use the lease of k again
	b.tab.Reroute(route, anybody, b.now, &b.out)
	b.users(1, 0)
}

// A held lease stays where it is. Once it is released there, the next waiter gets the key at the
// present store.
func TestAHeldLeaseStaysAtItsStore(t *testing.T) {
	b := newRerouted(t, nil)
	holder, next := b.session(), b.session()
	b.acquire(holder, "k", waits)
	f := b.answer(b.at(OpJoin, b.from), Result{Status: Granted, Base: 5})[0].Fence
	b.acquire(next, "k", waits)
	b.reroute(anybody)
	b.users(1, 0)
	if m := b.acquire(holder, "k", nil)[0]; m.Kind != MsgGranted || m.Count != 2 ||
		m.Store != b.from.Store {
		t.Errorf("re-entry: %+v", m)
	}
	b.release(holder, "k", f)
	b.release(holder, "k", f)
	b.only(b.answer(b.at(OpRelease, b.from), Result{Status: Done}), MsgReleased, protocol.OK)
	b.users(0, 1)
	m := b.answer(b.at(OpJoin, b.to), Result{Status: Granted, Base: 6})[0]
	if m.Kind != MsgGranted || m.Re.Session != next || m.Store != b.to.Store {
		t.Errorf("%+v", m)
	}
}

func TestADegradedHoldIsAUserOfItsStore(t *testing.T) {
	b := newRerouted(t, mayDegrade)
	holder, next := b.session(), b.session()
	b.degraded(holder, waits)
	b.acquire(next, "k", waits)
	b.reroute(anybody)
	b.users(1, 0)
	// longer than waiters wait for a failing store: this one waits for the holder
	b.now += 20 * second
	b.tab.Tick(b.now, 10, &b.out)
	if ms := b.take(); len(ms) > 0 || len(b.ops) > 0 {
		t.Fatalf("the waiter behind a degraded hold: %+v, %v", ms, kinds(b.ops))
	}
	b.release(holder, "k", 0)
	b.users(0, 1)
	b.only(b.answer(b.at(OpJoin, b.to), Result{Status: Granted, Base: 6}), MsgGranted, protocol.OK)
}

// A semaphore moves even if it is never free: each new permit comes from the present store.
func TestABusySemaphoreMoves(t *testing.T) {
	b := newRerouted(t, nil)
	s := b.session()
	b.acquire(s, "k", permitOf(2, Forever))
	f := b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	b.acquire(s, "k", permitOf(2, Forever))
	b.answer(b.takeOps(OpJoin)[0], Result{Status: Queued})
	b.users(3, 0)
	b.reroute(anybody)
	ops := b.takeOps(OpWithdraw, OpJoin)
	if ops[0].Store != b.from.Store.ID || ops[1].Store != b.to.Store.ID {
		t.Fatalf("%+v", ops)
	}
	b.answer(ops[0], Result{Status: Done})
	b.users(1, 2) // the held permit; the semaphore and the requested permit
	b.grantPermit(ops[1], 6)
	b.release(s, "k", f)
	b.answer(b.at(OpRelease, b.from), Result{Status: Done})
	b.users(0, 2)
	b.tab.Forget(b.from.Store)
	b.tab.Inspect(Request{Session: s, ID: 99}, b.to, []byte("k"), Permit, b.now, &b.out)
	b.only(b.take(), MsgInspected, protocol.OK)
}

// The bases of two stores that decide them themselves may be the same. Permits of one semaphore
// have different fences all the same: each is released by its own.
func TestPermitsOfTwoStoresHaveDifferentFences(t *testing.T) {
	b := newRerouted(t, nil)
	s := b.session()
	b.acquire(s, "k", permitOf(2, Forever))
	f1 := b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	b.reroute(anybody)
	b.acquire(s, "k", permitOf(2, Forever))
	f2 := b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	if f1 == f2 {
		t.Errorf("both have the fence %d", f1)
	}
	for _, of := range []struct {
		fence uint64
		ns    *Namespace
	}{{f2, b.to}, {f1, b.from}} {
		b.release(s, "k", of.fence)
		b.only(b.answer(b.at(OpRelease, of.ns), Result{Status: Done}), MsgReleased, protocol.OK)
	}
	b.users(0, 0)
}

func TestAWaiterThatMayNotUseItsKeyAnyMoreIsRefused(t *testing.T) {
	b := newRerouted(t, nil)
	holder, denied, allowed := b.session(), b.session(), b.session()
	b.acquire(holder, "k", waits)
	b.granted(OpJoin, 5)
	b.acquire(denied, "k", waits)
	b.acquire(allowed, "k", waits)
	no := errors.New("not you")
	ms := b.reroute(func(s *Session, _ string, _ Mode, _ int64) (protocol.Code, error) {
		if s == denied {
			return protocol.Denied, no
		}
		return protocol.OK, nil
	})
	b.only(ms, MsgFailed, protocol.Denied)
	if ms[0].Re.Session != denied || ms[0].Err != no || allowed.Waiters.Load() != 1 {
		t.Errorf("%+v", ms)
	}
}

func TestAnInspectionIsAUserOfItsStore(t *testing.T) {
	b := newRerouted(t, nil)
	b.tab.Inspect(Request{Session: b.session(), ID: 1}, b.from, []byte("k"), Exclusive, b.now,
		&b.out)
	b.take()
	b.reroute(anybody)
	b.users(1, 0)
	b.only(b.answer(b.at(OpPeek, b.from), Result{Status: Done}), MsgInspected, protocol.OK)
	b.users(0, 0)
}

// The renewer of the earlier store forgets a lease before the renewer of the present one tracks it.
func TestALeaseIsTrackedAtOneStore(t *testing.T) {
	b := newRerouted(t, nil)
	holder, next := b.session(), b.session()
	b.acquire(holder, "k", waits)
	b.granted(OpJoin, 5)
	b.acquire(next, "k", waits)
	b.reroute(anybody)
	b.tab.Hint(b.from.Store, Hint{Kind: HintGone, Key: "k"}, b.now, &b.out)
	b.take()
	op := b.at(OpRenew, b.from)
	b.tab.Result(&op, &Result{Status: NotHeld}, b.now, b.now, &b.out)
	var tracked []int
	for _, tr := range b.out.Tracks {
		if tr.Until == 0 {
			tracked = append(tracked, tr.Store)
		}
	}
	if len(tracked) != 1 || tracked[0] != b.from.Store.ID {
		t.Errorf("forgotten at %v", tracked)
	}
	b.take()
	b.at(OpJoin, b.to)
}

// The loss of one silent reader does not spare or drop the next one of the same session.
func TestLoseSilentEndsEveryReaderOfASession(t *testing.T) {
	b := newBench(t, func(s *setup) { s.Namespace.Heartbeat = 5 * time.Second })
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Owner = Shared, 1 })
	b.granted(OpTry, 7)
	b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Wait, q.Owner = Shared, Forever, 2 })
	b.now += 60 * second // the lease is past its deadline and has not been ticked
	b.tab.LoseSilent(s, b.now-60*second, 0, b.now, &b.out)
	lost := 0
	for _, m := range b.take() {
		if m.Kind == MsgLost && m.Reason == protocol.LostSilent {
			lost++
		}
	}
	if lost != 2 || s.Holds.Load() != 0 {
		t.Errorf("%d holds are lost as silent, and %d remain", lost, s.Holds.Load())
	}
}

// The loss of a store session drops more permits than the table keeps for reuse. The loop over the
// leases skips the dropped ones.
func TestTheLossOfAStoreSessionEndsManyPermits(t *testing.T) {
	b := newBench(t, func(c *setup) {
		c.Session, c.SessionTTL, c.Store.Rebase = true,
			10*time.Second, false
	})
	b.tab.SessionUntil(b.ns.Store, 1, b.now+10*second, b.now, &b.out)
	s := b.session()
	const many = 3 * maxFree
	for range many {
		b.acquire(s, "k", permitOf(many, Forever))
		ops := b.ops
		b.ops = nil
		for _, op := range ops {
			granted := Result{Status: Granted, Base: 5, Session: b.now + 10*second, SessionNo: 1}
			b.tab.Result(&op, &granted, b.now, b.now, &b.out)
		}
		b.take()
	}
	b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out)
	b.take()
	if b.tab.Len() != 0 || b.tab.Users(b.ns.Store) != 0 || s.Holds.Load() != 0 {
		t.Errorf("%d keys, %d leases and %d holds remain", b.tab.Len(), b.tab.Users(b.ns.Store),
			s.Holds.Load())
	}
}

// A reload that introduces a heartbeat does not end a hold before its stated validity, which its
// owner may rely on.
func TestANewHeartbeatSparesHoldsUntilTheirStatedValidityEnds(t *testing.T) {
	b := newBench(t, nil)
	to := *b.ns
	to.Heartbeat = 5 * time.Second
	s := b.session()
	b.acquire(s, "k", nil)
	b.granted(OpTry, 5)
	heard, stated := b.now, LeaseDeadline(b.now, 30*second)
	b.tab.Reroute(func(string) *Namespace { return &to }, anybody, b.now, &b.out)
	b.ns = &to
	b.now += 6 * second
	const lead = 2 * second
	if is := b.tab.LoseSilent(s, heard, lead, b.now, &b.out); is.Again != stated-lead ||
		is.Until != stated {
		t.Errorf("%+v, want a check %v before the validity is over, at %d", is, lead, stated)
	}
	if ms := b.take(); len(ms) > 0 {
		t.Fatalf("%+v", ms)
	}
	b.tab.Hint(b.ns.Store, Hint{Kind: HintGone, Key: "k"}, b.now, &b.out) // has it renewed
	b.take()
	b.answer(b.op(OpRenew), Result{Status: Done})
	b.now = stated - lead
	if is := b.tab.LoseSilent(s, heard, lead, b.now, &b.out); is.Again != Forever ||
		is.Until != Forever {
		t.Errorf("%+v, want no other check", is)
	}
	if m := b.only(b.take(), MsgLost, protocol.OK); m.Reason != protocol.LostSilent {
		t.Errorf("lost for reason %d", m.Reason)
	}
	next := b.session()
	b.acquire(next, "k", func(q *Acquire) { q.Wait, q.TTL = Forever, 3*second })
	b.now = stated - 1
	b.tab.LoseSilent(s, heard, lead, b.now, &b.out)
	if ms := append(b.take(), b.tick(0)...); len(ms) > 0 {
		t.Fatalf("the key is not closed until the stated validity is over: %+v", ms)
	}
	if m := b.only(b.tick(1), MsgGranted, protocol.OK); m.Re.Session != next {
		t.Errorf("%+v", m)
	}
}

// The leases and permits that are still at another store than their keys are counted there, held or
// not.
func TestMovedLeasesAreCounted(t *testing.T) {
	b := newRerouted(t, nil)
	count := func(want ...int64) {
		t.Helper()
		_, stores := b.tab.AddStats(nil, nil)
		for i, n := range want {
			if stores[i].Moved != n {
				t.Errorf("store %d: %d moved leases, want %d", i, stores[i].Moved, n)
			}
		}
	}
	s := b.session()
	b.acquire(s, "k", waits)
	f := b.granted(OpJoin, 5)
	b.acquire(s, "k", permitOf(2, Forever))
	p := b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	b.acquire(s, "queued", waits)
	b.answer(b.op(OpJoin), Result{Status: Queued})
	count(0)
	b.reroute(anybody)
	count(3, 0)
	n := 0
	b.tab.EachMoved(func(_ string, from, to *StoreTraits) {
		if n++; from != b.from.Store || to != b.to.Store {
			t.Errorf("moved from store %d to store %d", from.ID, to.ID)
		}
	})
	if n != 2 {
		t.Errorf("%d held leases have moved, want 2", n)
	}
	b.answer(b.op(OpWithdraw), Result{Status: Done})
	b.op(OpJoin)
	count(2, 0)
	b.release(s, "k", f)
	b.answer(b.op(OpRelease), Result{Status: Done})
	count(1, 0)
	b.release(s, "k", p)
	b.answer(b.op(OpRelease), Result{Status: Done})
	count(0, 0)
}

// After a takeover without the store's session, a suspended holder may believe in its lock until
// the validity that was stated to it ends. So the key does not open at another store before that,
// with a waiter or without one.
func TestAKeyThatWasLostAtATakeoverOpensWhenItsStatedValidityEnds(t *testing.T) {
	for n := range 4 {
		waited, movedBefore := n%2 == 0, n < 2
		b := newRerouted(t, nil)
		holder, next := b.session(), b.session()
		b.acquire(holder, "k", waits)
		b.answer(b.at(OpJoin, b.from), Result{Status: Granted, Base: 5})
		end := b.tab.deadline(b.tab.locks["k"].lease())
		if waited {
			b.acquire(next, "k", waits)
		}
		if movedBefore {
			b.reroute(anybody)
		}
		b.tab.NotTakenOver(b.from.Store, b.now, &b.out)
		b.only(b.take(), MsgLost, protocol.OK)
		b.reroute(anybody)
		if !waited {
			b.only(b.acquire(next, "k", nil), MsgFailed, protocol.Busy) // a try
			b.acquire(next, "k", waits)
		}
		b.users(1, 0)
		if ms := b.tick(time.Duration(end - 1 - b.now)); len(ms) > 0 || len(b.ops) > 0 {
			t.Fatalf("before the end of the stated validity: %+v, %v", ms, kinds(b.ops))
		}
		b.tick(1)
		b.users(0, 1)
		b.only(b.answer(b.at(OpJoin, b.to), Result{Status: Granted, Base: 6}), MsgGranted,
			protocol.OK)
	}
}

// While the store has not answered an inspection, a closed key does not wake the table again and
// again.
func TestAClosedKeyWaitsForAnInspection(t *testing.T) {
	b := newRerouted(t, nil)
	s := b.session()
	b.acquire(s, "k", waits)
	b.answer(b.at(OpJoin, b.from), Result{Status: Granted, Base: 5})
	end := b.tab.deadline(b.tab.locks["k"].lease())
	b.tab.NotTakenOver(b.from.Store, b.now, &b.out)
	b.take()
	b.tab.Inspect(Request{Session: s, ID: 77}, b.from, []byte("k"), Exclusive, b.now, &b.out)
	b.take()
	peek := b.op(OpPeek)
	b.tick(time.Duration(end - b.now))
	if at := b.tab.NextWake(); at != Forever {
		t.Errorf("the table wakes %d ns later, before the answer", at-b.now)
	}
	b.only(b.answer(peek, Result{Status: Done}), MsgInspected, protocol.OK)
	b.empty()
}

// A reload shortens the waits that are longer than the new max_wait allows, counted from their
// beginning.
func TestAShorterMaxWaitReachesWaiters(t *testing.T) {
	b := newBench(t, nil)
	s, brief, patient := b.session(), b.session(), b.session()
	b.acquire(s, "k", nil)
	b.granted(OpTry, 5)
	b.acquire(brief, "k", func(q *Acquire) { q.Wait = 3 * second })
	b.acquire(patient, "k", waits)
	b.now += second
	to := *b.ns
	to.MaxWait = 5 * time.Second
	b.tab.Reroute(func(string) *Namespace { return &to }, anybody, b.now, &b.out)
	b.ns = &to
	if ms := b.take(); len(ms) > 0 {
		t.Fatalf("%+v", ms)
	}
	for _, want := range []struct {
		s  *Session
		at time.Duration
	}{{brief, 2 * time.Second}, {patient, 2 * time.Second}} {
		if ms := b.tick(want.at - 1); len(ms) > 0 {
			t.Fatalf("early: %+v", ms)
		}
		if m := b.only(b.tick(1), MsgFailed, protocol.Timeout); m.Re.Session != want.s {
			t.Error("the wrong wait has ended")
		}
	}
}

// A re-entry comes between the change of the routes and Reroute. It applies the new policy to its
// key, which lets another reader join. Reroute sees no change, and lets the reader in all the same.
func TestReroutePassesNoKeyThatARequestHasMovedAlready(t *testing.T) {
	b := newBench(t, nil)
	shared := func(wait int64) func(*Acquire) {
		return func(q *Acquire) {
			q.Mode, q.Wait = Shared,
				wait
		}
	}
	s, next := b.session(), b.session()
	b.acquire(s, "k", shared(0))
	b.granted(OpTry, 5)
	b.tab.Hint(b.ns.Store, Hint{Kind: HintContended, Key: "k"}, b.now, &b.out)
	b.tick(time.Second) // the time for joining readers is over
	if ms := b.acquire(next, "k", shared(Forever)); len(ms) > 0 {
		t.Fatalf("%+v", ms)
	}
	to := *b.ns
	to.MaxHandoffs, to.MaxHandoffTime = 100, time.Minute
	b.ns = &to
	b.only(b.acquire(s, "k", shared(0)), MsgGranted, protocol.OK)
	b.tab.Reroute(func(string) *Namespace { return &to }, anybody, b.now, &b.out)
	if m := b.only(b.take(), MsgGranted, protocol.OK); m.Re.Session != next {
		t.Error("the other reader waits")
	}
}
