package cache

import "testing"

// A key moves while this host has its lease, or a request for it in flight. The new store is asked
// for a base above all that the earlier store has given, also after the reload.
func TestTheFloorMovesWithALease(t *testing.T) {
	for _, answeredLate := range []bool{false, true} {
		b := newRerouted(t, nil)
		holder, next := b.session(), b.session()
		b.acquire(holder, "k", waits)
		op := b.at(OpJoin, b.from)
		granted := Result{Status: Granted, Base: 5000}
		if answeredLate {
			b.reroute(anybody)
			b.answer(op, granted) // the waiter is routed elsewhere, so the lease is given back
		} else {
			fence := b.answer(op, granted)[0].Fence
			b.acquire(next, "k", waits)
			b.reroute(anybody)
			b.release(holder, "k", fence)
		}
		b.answer(b.at(OpRelease, b.from), Result{Status: Done})
		if op := b.at(OpJoin, b.to); op.Floor != 5000 {
			t.Errorf("answered late %v: the floor at the new store is %d, want 5000", answeredLate,
				op.Floor)
		}
	}
}

// A store answers after the routes have changed, and before Reroute has found the key's lease. The
// lease ends meanwhile. The next one, at the new store, is asked for above what the earlier store
// has given.
func TestTheFloorMovesWithALeaseThatEndsBeforeReroute(t *testing.T) {
	b := newRerouted(t, nil)
	s := b.session()
	b.acquire(s, "k", waits)
	op := b.at(OpJoin, b.from)
	b.tab.Carry(b.to.Store, b.tab.Known(b.from.Store, 0))
	b.tab.Leave(b.from.Store, b.to.Store, 0)
	fence := b.answer(op, Result{Status: Granted, Base: 5000})[0].Fence
	b.release(s, "k", fence)
	b.answer(b.at(OpRelease, b.from), Result{Status: Done})
	b.ns = b.to
	b.acquire(s, "k", waits)
	if op := b.at(OpJoin, b.to); op.Floor != 5000 {
		t.Errorf("the floor at the new store is %d, want 5000", op.Floor)
	}
	b.reroute(anybody)
	if len(b.tab.leaving) > 0 {
		t.Error("the move does not end")
	}
}

// Where bases are the store's own order, they count with the epoch that lifted them. A floor cannot
// raise them; the table remembers it for the next store.
func TestFloorsAtAStoreWithItsOwnOrder(t *testing.T) {
	b := newBench(t, func(x *setup) { x.Rebase, x.Epoch = false, 1000 })
	own, raised := b.ns.Store, &StoreTraits{ID: 1, Rebase: true}
	known := func(want uint64) {
		t.Helper()
		if is := b.tab.Known(own, b.ns.Epoch); is != want {
			t.Errorf("known: %d, want %d", is, want)
		}
	}
	known(0)
	s := b.session()
	b.acquire(s, "k", waits)
	if op := b.ops[0]; op.Floor != 0 {
		t.Errorf("it is asked with the floor %d", op.Floor)
	}
	fence := b.granted(OpJoin, 7)
	known(1007)
	b.tab.Carry(own, 1006)
	known(1007)
	b.tab.Carry(own, 9000)
	known(9000)
	b.release(s, "k", fence)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.acquire(s, "k", waits)
	if op := b.op(OpJoin); op.Floor != 0 {
		t.Errorf("it is asked with the floor %d", op.Floor)
	}
	b.tab.Carry(raised, b.tab.Known(own, b.ns.Epoch))
	if is := b.tab.Known(raised, 0); is != 9000 {
		t.Errorf("known at the next store: %d, want 9000", is)
	}
}

// The store that is two at once has no new bases for a held lease, but new ones are above the
// floor.
func TestAStoreWithFloorsIsAskedForABaseAboveThem(t *testing.T) {
	b := newBench(t, func(x *setup) { x.Rebase, x.Floors, x.Epoch = false, true, 50 })
	b.tab.Carry(b.ns.Store, 300)
	s := b.session()
	b.acquire(s, "k", waits)
	op := b.op(OpJoin)
	if op.Floor != 300 {
		t.Errorf("the floor is %d, want 300", op.Floor)
	}
	if fence := b.answer(op, Result{Status: Granted,
		Base: 301})[0].Fence; fence>>handoffBits != 301 {
		t.Errorf("the base is %d, want 301", fence>>handoffBits)
	}
}

// A wrong base of one store does not use up the bases of another. The largest fence_epoch is
// carried.
func TestAFloorThatIsOutOfRangeIsNotCarried(t *testing.T) {
	b := newRerouted(t, nil)
	to := b.to.Store
	const largest = 1<<52 - 1 // fence_epoch
	for _, x := range []struct{ base, known uint64 }{
		{MaxBase, 0}, {maxCarried + 1, 0}, {largest + 1_000_000_000_000,
			largest + 1_000_000_000_000}, {maxCarried, maxCarried}, {MaxBase, maxCarried},
	} {
		if ok := to.Carries(x.base, 0); ok != (x.base <= maxCarried) {
			t.Errorf("Carries(%d) is %v", x.base, ok)
		}
		b.tab.Carry(to, x.base)
		if is := b.tab.Known(to, 0); is != x.known {
			t.Errorf("after %d the new store's floor is %d, want %d", x.base, is, x.known)
		}
	}
}
