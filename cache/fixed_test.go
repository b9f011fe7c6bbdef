package cache

import (
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
)

// A fixed hold lasts for the TTL that its owner asked for, less only what the request to the store
// took, whichever waiter's TTL the lease was requested with.

// fixedFor makes acquires of a fixed hold for ttl, which wait.
func fixedFor(ttl int64) func(*Acquire) {
	return func(q *Acquire) { q.Fixed, q.TTL, q.Wait = true, ttl, Forever }
}

// lasts checks that the hold of m ends ttl from now, and that its lease is renewed until then.
func (b *bench) lasts(m Message, ttl int64) {
	b.t.Helper()
	if left := m.End - b.now; left != ttl {
		b.t.Errorf("the hold ends in %d ms, want %d ms", left/1e6, ttl/1e6)
	}
	b.tick(0)
	for l := range b.tab.all() {
		if l.held.fence == m.Fence && l.held.until < m.End && !l.tracked {
			b.t.Errorf("the lease ends in %d ms and is not renewed", (l.held.until-b.now)/1e6)
		}
	}
}

func TestAFixedHoldOutlastsALeaseThatWasRequestedForACanceledWaiter(t *testing.T) {
	b := newBench(t, nil)
	gone, next := b.session(), b.session()
	b.acquire(gone, "k", func(q *Acquire) { q.TTL, q.Wait = 10*second, Forever })
	b.acquire(next, "k", fixedFor(60*second))
	op := b.op(OpJoin)
	b.tab.EndWaits(gone, b.now, &b.out)
	b.take()
	b.lasts(b.only(b.answer(op, Result{Status: Granted, Base: 7}), MsgGranted, protocol.OK),
		60*second)
}

func TestAFixedPermitOutlastsALeaseThatWasRequestedForAnotherWaiter(t *testing.T) {
	b := newBench(t, nil)
	for _, ttl := range []int64{10 * second, 60 * second} {
		b.acquire(b.session(), "k", func(q *Acquire) {
			permitOf(5, Forever)(q)
			q.Fixed,
				q.TTL = true, ttl
		})
	}
	ops := b.takeOps(OpJoin, OpJoin)
	b.grantPermit(ops[0], 7)
	b.lasts(b.grantPermit(ops[1], 8), 60*second)
}

// The lease was requested with 10 s. Meanwhile this host has granted the key alone for 60 s.
func TestAFixedHoldOutlastsALeaseThatWasRequestedBeforeAnOutage(t *testing.T) {
	b := newBench(t, func(c *setup) { c.Local = true })
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL, q.Wait = 10*second, Forever })
	op := b.op(OpJoin)
	b.tab.EndWaits(s, b.now, &b.out)
	b.take()
	b.tab.StoreDown(b.ns.Store, nil, b.now, &b.out)
	b.only(b.acquire(s, "k", fixedFor(60*second)), MsgGranted, protocol.OK)
	b.tab.StoreUp(b.ns.Store, b.now, &b.out)
	b.take()
	next := b.session()
	b.acquire(next, "k", fixedFor(60*second))
	b.only(b.release(s, "k", 0), MsgReleased, protocol.OK)
	b.lasts(b.only(b.answer(op, Result{Status: Granted, Base: 7}), MsgGranted, protocol.OK),
		60*second)
}

// A hold that ends with its lease needs no renewal.
func TestAFixedHoldEndsWithALeaseThatWasRequestedWithItsTTL(t *testing.T) {
	b := newBench(t, nil)
	b.acquire(b.session(), "k", fixedFor(60*second))
	m := b.only(b.answer(b.op(OpJoin), Result{Status: Granted, Base: 7}), MsgGranted, protocol.OK)
	if want := LeaseDeadline(b.now, 60*second); m.End != want {
		t.Errorf("the hold ends at %d, want %d", m.End, want)
	}
}
