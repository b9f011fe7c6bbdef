package cache

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Keys that move away from a store that is down, or that fails.

// The earlier store of a moved key comes back, and another host has the key there. A degraded hold
// of the key then causes at most one acquire and one withdrawal at that store.
func TestADegradedHoldOfAMovedKeyDoesNotRepeatItsRequest(t *testing.T) {
	b := newRerouted(t, mayDegrade)
	b.degraded(b.session(), waits)
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
		t.Errorf("%d ops at one instant", n)
	}
}

func TestATryBehindADegradedHoldOfAMovedKeyIsAnswered(t *testing.T) {
	b := newRerouted(t, mayDegrade)
	b.degraded(b.session(), shared)
	b.reroute(anybody)
	b.answersSharedTry(b.session())
}

// movedFromADownStore returns a session that holds a permit of the semaphore k at the earlier
// store, which is down, and the fence of the permit. New permits come from the present store.
func (b *rerouted) movedFromADownStore() (holder *Session, fence uint64) {
	b.t.Helper()
	holder = b.session()
	b.acquire(holder, "k", permitOf(2, Forever))
	fence = b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	b.reroute(anybody)
	b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
	b.take()
	return holder, fence
}

// The pending release of a permit at a store that is down does not fail the waiters at the present
// store.
func TestASemaphoreThatHasMovedFromADownStoreKeepsItsWaiters(t *testing.T) {
	b := newRerouted(t, nil)
	holder, fence := b.movedFromADownStore()
	b.now += 10 * second
	waiter := b.session()
	b.acquire(waiter, "k", permitOf(2, Forever))
	b.answer(b.at(OpJoin, b.to), Result{Status: Queued})
	b.noMessage(waiter, append(b.release(holder, "k", fence), b.tick(time.Millisecond)...))
}

func TestASemaphoreThatHasMovedFromADownStoreKeepsItsTries(t *testing.T) {
	b := newRerouted(t, nil)
	holder, fence := b.movedFromADownStore()
	other := b.session()
	b.acquire(other, "k", permitOf(2, 0))
	b.noMessage(other, b.release(holder, "k", fence))
}

// The earlier store has not answered an inspection of the semaphore. That does not delay the answer
// to a try, which the present store refuses.
func TestATryOfAMovedSemaphoreDoesNotWaitForAnInspection(t *testing.T) {
	b := newRerouted(t, nil)
	b.tab.Inspect(Request{Session: b.session(), ID: 98}, b.ns, []byte("k"), Permit, b.now, &b.out)
	b.take()
	b.at(OpPeek, b.from)
	b.reroute(anybody)
	b.acquire(b.session(), "k", permitOf(2, 0))
	ms := b.answer(b.at(OpTry, b.to), Result{Status: Refused, Err: errors.New("read-only")})
	b.only(ms, MsgFailed, protocol.Unavailable)
}

// noMessage fails if one of the messages is for s.
func (b *bench) noMessage(s *Session, ms []Message) {
	b.t.Helper()
	for _, m := range ms {
		if m.Re.Session == s {
			b.t.Errorf("the session gets code %d, %v", m.Code, m.Err)
		}
	}
}

// waitsBehindAShortLease has a session hold k for a second and another one wait for it. It returns
// the holder and its fence after k has moved.
func (b *rerouted) waitsBehindAShortLease() (holder *Session, fence uint64) {
	b.t.Helper()
	short := func(q *Acquire) { q.TTL, q.Wait = second, Forever }
	holder = b.session()
	b.acquire(holder, "k", short)
	fence = b.granted(OpJoin, 5)
	b.acquire(b.session(), "k", short)
	b.reroute(anybody)
	return holder, fence
}

// The earlier store refuses every release, so the lease there ends with its TTL. The next acquire
// goes to the present store.
func TestAMovedKeyIsNotAcquiredAtItsEarlierStoreAgain(t *testing.T) {
	b := newRerouted(t, nil)
	holder, fence := b.waitsBehindAShortLease()
	b.ops = nil
	b.release(holder, "k", fence)
	for range 40 {
		for len(b.ops) > 0 {
			op := b.ops[0]
			b.ops = b.ops[1:]
			if op.Store == b.to.Store.ID {
				return
			}
			if op.Kind == OpTry || op.Kind == OpJoin {
				t.Fatalf("%v goes to store %d", op.Kind, op.Store)
			}
			b.answer(op, Result{Status: Refused, Err: errors.New("read-only")})
		}
		b.tick(100 * time.Millisecond)
	}
	t.Error("no op goes to the present store")
}

// A waiter does not wait for a store that is down any longer than the TTL of the lease there.
func TestAKeyThatHasMovedFromADownStoreIsAcquiredWhenItsTTLEnds(t *testing.T) {
	b := newRerouted(t, nil)
	holder, fence := b.waitsBehindAShortLease()
	b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
	b.take()
	b.release(holder, "k", fence)
	released, end := b.now, b.tab.locks["k"].releasing.endsAt
	for range 100 {
		b.tick(100 * time.Millisecond)
		if len(b.ops) > 0 {
			break
		}
	}
	if len(b.ops) == 0 || b.now-end > second/2 {
		t.Errorf("requested %v after the release; the TTL ended after %v; ops %v",
			time.Duration(b.now-released), time.Duration(end-released), kinds(b.ops))
	}
}

// The host asks a store with an order of its own for the lease of a degraded hold, and the key
// moves away and back. The answer gets the epoch of the namespace that routed the key there,
// whenever it comes and whenever the store was asked.
func TestTheAnswerOfAnEarlierStoreIsLiftedByItsEpoch(t *testing.T) {
	for _, askedAfterTheMove := range []bool{false, true} {
		b := newRerouted(t, func(x *setup) {
			mayDegrade(x)
			x.Rebase, x.Epoch = false, 1000
		})
		b.to.Epoch = 0
		from, holder, next := b.ns, b.session(), b.session()
		b.degraded(holder, waits)
		if askedAfterTheMove {
			b.reroute(anybody)
		}
		b.tab.StoreUp(b.from.Store, b.now, &b.out)
		b.take()
		op := b.at(OpJoin, b.from)
		if !askedAfterTheMove {
			b.reroute(anybody)
		}
		b.answer(op, Result{Status: Granted, Base: 7})
		b.ns = from
		b.tab.Reroute(func(string) *Namespace { return from }, anybody, b.now, &b.out)
		b.take()
		b.acquire(next, "k", waits)
		ms := b.release(holder, "k", 0)
		if fence := ms[0].Fence; fence>>handoffBits != 1007 {
			t.Errorf("asked after the move %v: the next fence has base %d, want 1007: %+v",
				askedAfterTheMove, fence>>handoffBits, ms)
		}
	}
}
