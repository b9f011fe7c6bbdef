package cache

import "testing"

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

	b.now = b.tab.leases["k"].until
	want("a lease that has ended", "k", false, 0, 0, 1)
}
