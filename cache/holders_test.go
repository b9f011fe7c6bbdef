package cache

import (
	"slices"
	"testing"
)

func TestHoldersOfCountsValidHoldsAndWaiters(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	want := func(what, key string, permit bool, held, all, waiters int) {
		t.Helper()
		got, n, w := b.tab.HoldersOf(key, permit, 1, b.now)
		if len(got) != held || n != all || w != waiters {
			t.Errorf("%s: %+v, %d holds, %d waiters", what, got, n, w)
		}
		for _, h := range got {
			if h.Session != s || h.Key != key || h.Until <= b.now {
				t.Errorf("%s: %+v", what, h)
			}
		}
	}
	want("an unknown key", "k", false, 0, 0, 0)
	b.acquire(s, "k", nil)
	want("a key that is being acquired", "k", false, 0, 0, 1)
	b.granted(OpTry, 1)
	want("a held lock", "k", false, 1, 1, 0)
	want("a semaphore of that name", "k", true, 0, 0, 0)
	b.acquire(b.session(), "k", waits)
	want("a held lock with a waiter", "k", false, 1, 1, 1)

	b.acquire(s, "r", func(q *Acquire) { q.Mode = Shared })
	b.granted(OpTry, 2)
	b.acquire(s, "r", func(q *Acquire) { q.Mode, q.Owner = Shared, 2 })
	want("two readers", "r", false, 1, 2, 0)

	b.now = b.tab.locks["k"].held.until
	want("a lease that has ended", "k", false, 0, 0, 1)
}

func TestHeldForCountsFromTheGrantOfTheLease(t *testing.T) {
	b := newBench(t, nil)
	s, other := b.session(), &StoreTraits{ID: 7}
	want := func(what, key string, permit bool, tokens []uint64, held ...int64) {
		t.Helper()
		if got := b.tab.HeldFor(b.ns.Store, key, permit, tokens, b.now); !slices.Equal(got, held) {
			t.Errorf("%s: %d, want %d", what, got, held)
		}
	}
	b.acquire(s, "k", nil)
	token := b.tab.locks["k"].token
	want("a key that is being acquired", "k", false, []uint64{token}, 0)
	b.granted(OpTry, 1)
	want("a lease that was just granted", "k", false, []uint64{token}, 1)
	b.now += 1000
	want("a held lock, and other tokens", "k", false, []uint64{token + 1, token, 0}, 0, 1000, 0)
	want("a permit of that token", "k", true, []uint64{token}, 0)
	want("an unknown key", "none", false, []uint64{token}, 0)
	if got := b.tab.HeldFor(other, "k", false, []uint64{token}, b.now); got[0] != 0 {
		t.Errorf("another store: %d", got)
	}
	b.acquire(s, "s", func(q *Acquire) { q.Mode, q.Limit = Permit, 3 })
	permit := b.tab.semaphores["s"].permits[0].token
	b.granted(OpTry, 1)
	b.now += 500
	want("a permit", "s", true, []uint64{permit}, 500)
	want("a lock of that token", "s", false, []uint64{permit}, 0)

	b.now = b.tab.locks["k"].held.until
	want("a lease that has ended", "k", false, []uint64{token}, 0)
}
