package cache

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// newPairBench is a bench whose store is two stores at once. Leases live by a session of one of
// them, and by TTLs.
func newPairBench(t *testing.T) *bench {
	b := newBench(t, func(s *setup) {
		s.Store.Pair, s.Store.Session, s.Store.SessionTTL, s.Store.TTLs = true, true,
			10*time.Second, true
	})
	b.tab.SessionUntil(b.ns.Store, 1, b.now+10*second, b.now, &b.out)
	return b
}

// One of two stores has lost the lease. The other one may have it still: there it keeps other hosts
// out until the validity that was stated to the holder has ended, and is then released.
func TestALeaseThatOneOfTwoStoresHasLostIsReleasedInTheOther(t *testing.T) {
	losses := map[string]func(*bench){
		"the session is lost": func(b *bench) { b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out) },
		"a later session begins": func(b *bench) {
			b.tab.SessionUntil(b.ns.Store, 2, b.now+10*second, b.now, &b.out)
		},
		"a renewal finds it gone": func(b *bench) {
			l := b.tab.locks["k"].lease()
			b.tab.RenewDue(l, l.token, b.now, &b.out)
			b.take()
			b.result(b.op(OpRenew), Result{Status: NotHeld})
		},
		"the next process has no session": func(b *bench) {
			b.tab.NotTakenOver(b.ns.Store, b.now,
				&b.out)
		},
	}
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			b := newPairBench(t)
			holder, next := b.session(), b.session()
			b.acquire(holder, "k", func(q *Acquire) { q.TTL = 8 * second })
			b.granted(OpTry, 5)
			end := b.tab.deadline(b.tab.locks["k"].lease())
			token := b.tab.locks["k"].token
			lose(b)
			b.only(b.take(), MsgLost, protocol.OK)
			b.only(b.acquire(next, "k", nil), MsgFailed, protocol.Busy) // a try
			b.acquire(next, "k", waits)
			if ms := b.tick(time.Duration(end - 1 - b.now)); len(ms) > 0 || len(b.ops) > 0 {
				t.Fatalf("before the end of the stated validity: %+v, %v", ms, kinds(b.ops))
			}
			b.tick(1)
			release := b.op(OpRelease)
			if release.Token != token {
				t.Errorf("token %d is released, want %d", release.Token, token)
			}
			b.answer(release, Result{Status: Done})
			b.op(OpJoin)
		})
	}
}

// A key that a lost lease keeps closed is busy for tries, also while the store is down and this
// host may grant alone.
func TestAClosedKeyIsBusyWhileItsStoreIsDown(t *testing.T) {
	for _, local := range []bool{false, true} {
		b := newPairBench(t)
		b.ns.Local, b.ns.LocalAfter = local, time.Second
		b.acquire(b.session(), "k", func(q *Acquire) { q.TTL = 8 * second })
		b.granted(OpTry, 5)
		b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out)
		b.tab.StoreDown(b.ns.Store, errors.New("down"), b.now, &b.out)
		b.take()
		code := protocol.Unavailable
		if local {
			code = protocol.Busy
		}
		b.only(b.acquire(b.session(), "k", nil), MsgFailed, code)
	}
}

// The release of a lease of two stores is not answered, and one of them loses its session
// meanwhile.
func TestAReleaseInTwoStoresIsSentAgainAfterALostSession(t *testing.T) {
	b := newPairBench(t)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 5)
	b.release(s, "k", f)
	b.answer(b.op(OpRelease), Result{Status: Unknown})
	b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out)
	b.take()
	b.tick(time.Second)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}

// One of two stores has lost its session, and the other one, where leases have TTLs, never answers
// again. The key opens when the lease must have ended there, and can then move to its next store.
func TestALeaseOfALostSessionEndsInTheOtherStoreWithItsTTL(t *testing.T) {
	for _, releasing := range []bool{false, true} {
		b := newPairBench(t)
		s := b.session()
		b.acquire(s, "k", func(q *Acquire) { q.TTL = 8 * second })
		f := b.granted(OpTry, 5)
		if releasing {
			b.release(s, "k", f)
			b.answer(b.op(OpRelease), Result{Status: Unknown})
		}
		b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out)
		b.take()
		for range 40 {
			b.tick(time.Second)
			for len(b.ops) > 0 {
				b.answer(b.op(OpRelease), Result{Status: Unknown})
			}
		}
		b.empty()
	}
}

// One of two stores loses its session while a lease of both lingers. The last hold was released in
// time, so it is not lost, even if the release of the lease finds that a store does not know it.
func TestALingeringLeaseOfTwoStoresWithALostSessionIsNoLoss(t *testing.T) {
	b := newBench(t, func(s *setup) {
		s.Store.Pair, s.Store.Session, s.Store.SessionTTL = true, true, 10*time.Second
		lingering(s)
	})
	b.tab.SessionUntil(b.ns.Store, 1, b.now+10*second, b.now, &b.out)
	b.habitual(b.session(), "k")
	b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out)
	b.take()
	b.result(b.op(OpRelease), Result{Status: NotHeld})
	if lost := b.lostNotices(); len(lost) > 0 {
		t.Errorf("%+v", lost)
	}
	b.wantLost(0)
	b.tick(time.Minute)
	b.empty()
}

// An unlock by force of a key that a lost lease keeps closed says when the key opens.
func TestAnUnlockByForceSaysWhenAClosedKeyOpens(t *testing.T) {
	b := newPairBench(t)
	b.acquire(b.session(), "k", func(q *Acquire) { q.TTL = 8 * second })
	b.granted(OpTry, 5)
	end := b.tab.deadline(b.tab.locks["k"].lease())
	b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out)
	b.take()
	if ended, free := b.tab.Force("k", false, 0, b.now, &b.out); len(ended) > 0 || free != end {
		t.Errorf("%d holds ended, and the key is free in %v; want %v", len(ended),
			time.Duration(free-b.now), time.Duration(end-b.now))
	}
}

// An acquire in two stores is not answered. Then the session of one is lost, and the other one
// never answers again. The key can move to another store when the TTL of what may be left has
// ended.
func TestAnUnansweredAcquireOfALostSessionEndsWithItsTTL(t *testing.T) {
	b := newRerouted(t, func(s *setup) {
		s.Store.Pair, s.Store.Session, s.Store.SessionTTL, s.Store.TTLs = true, true,
			10*time.Second, true
	})
	b.tab.SessionUntil(b.from.Store, 1, b.now+10*second, b.now, &b.out)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL = 8 * second; waits(q) })
	b.result(b.at(OpJoin, b.from), Result{Status: Unknown})
	b.tab.SessionLost(b.from.Store, 1, b.now, &b.out)
	b.reroute(anybody)
	for range 20 {
		b.tick(time.Second)
		for len(b.ops) > 0 {
			b.result(b.at(OpWithdraw, b.from), Result{Status: Unknown})
		}
	}
	b.users(0, 0)
	b.empty()
}

// A pair of stores is down, because one of the two is. A lease is released in the other one all the
// same, and is forgotten when what the one may still have has ended with its TTL.
func TestALeaseOfTwoStoresIsReleasedWhileOneIsDown(t *testing.T) {
	b := newPairBench(t)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL = 8 * second })
	f := b.granted(OpTry, 5)
	b.tab.StoreDown(b.ns.Store, errors.New("no answer"), b.now, &b.out)
	b.release(s, "k", f)
	b.answer(b.op(OpRelease), Result{Status: Unknown, Expires: true})
	begun, sent := b.now, 1
	for len(b.tab.locks) > 0 && b.now < begun+60*second {
		b.tick(time.Second)
		for len(b.ops) > 0 {
			b.answer(b.op(OpRelease), Result{Status: Unknown, Expires: true})
			sent++
		}
	}
	if took := b.now - begun; took < 8*second || took > 17*second || sent < 3 {
		t.Errorf("the lease is forgotten after %v and %d releases, want 8 to 17 s and several",
			time.Duration(took), sent)
	}
	b.empty()
}

// A place in the queues of two stores is given up while the pair is down.
func TestAPlaceInTwoStoresIsWithdrawnWhileOneIsDown(t *testing.T) {
	b := newPairBench(t)
	s := b.session()
	b.acquire(s, "k", waits)
	b.result(b.op(OpJoin), Result{Status: Queued})
	b.tab.StoreDown(b.ns.Store, errors.New("no answer"), b.now, &b.out)
	b.tab.EndSession(s, 100, b.now, &b.out)
	b.take()
	b.answer(b.op(OpWithdraw), Result{Status: Done})
	b.empty()
}

// A lease of two stores was asked for with a TTL of a minute, and has passed on to an owner who
// wants two seconds. It is released in one store, and the other one does not answer. It has the
// lease for the rest of the minute. Until that is over, the release is sent again, as to a single
// store.
func TestALeaseOfTwoStoresIsReleasedUntilItsLongestTTLHasEnded(t *testing.T) {
	b := newPairBench(t)
	first, next := b.session(), b.session()
	b.acquire(first, "k", func(q *Acquire) { q.TTL = 60 * second })
	f := b.granted(OpTry, 5)
	end := b.tab.locks["k"].held.until
	b.acquire(next, "k", func(q *Acquire) { q.TTL, q.Wait = 2*second, Forever })
	fence := uint64(0)
	for _, m := range b.release(first, "k", f) {
		if m.Kind == MsgGranted {
			fence = m.Fence
		}
	}
	if fence == 0 {
		t.Fatal("no handoff")
	}
	b.tab.StoreDown(b.ns.Store, errors.New("no answer"), b.now, &b.out)
	b.release(next, "k", fence)
	b.keptUntil(end, Result{Status: Unknown, Expires: true})
}

// keptUntil answers all ops with r, and fails if the table forgets its key before end.
func (b *bench) keptUntil(end int64, r Result) {
	b.t.Helper()
	for b.now < end-second {
		for len(b.ops) > 0 {
			op := b.ops[0]
			b.ops = b.ops[1:]
			b.answer(op, r)
		}
		b.tick(time.Second)
		if len(b.tab.locks) == 0 {
			b.t.Fatalf("it is forgotten %v before the store ends it", time.Duration(end-b.now))
		}
	}
}

// An acquire with a TTL of a minute is not answered, so the store may have granted it. Its owner
// gives up. Another owner's acquire, with a TTL of two seconds, uses the same token, and that owner
// gives up, too. The table repeats the withdrawal of the token until the minute is over.
func TestATokenIsWithdrawnUntilItsLongestTTLHasEnded(t *testing.T) {
	b := newBench(t, nil)
	first, next := b.session(), b.session()
	b.acquire(first, "k", func(q *Acquire) { q.TTL, q.Wait = 60*second, Forever })
	b.answer(b.op(OpJoin), Result{Status: Unknown})
	end := b.now + 60*second
	b.acquire(next, "k", func(q *Acquire) { q.TTL, q.Wait = 2*second, Forever })
	b.tab.EndSession(first, 100, b.now, &b.out)
	b.tick(time.Second)
	b.answer(b.op(OpJoin), Result{Status: Unknown})
	b.tab.EndSession(next, 100, b.now, &b.out)
	b.take()
	b.keptUntil(end, Result{Status: Unknown})
}

// One of two stores is away for ten minutes, and its part of the lease does not end with a TTL. The
// release is carried out by the other one, which is not asked again and again. When the pair is up,
// the release is sent at once.
func TestALeaseThatOneOfTwoStoresHasReleasedIsSeldomReleasedAgain(t *testing.T) {
	b := newPairBench(t)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL = 8 * second })
	f := b.granted(OpTry, 5)
	b.tab.StoreDown(b.ns.Store, errors.New("no answer"), b.now, &b.out)
	b.release(s, "k", f)
	sent := 0
	for range 600 {
		b.tick(time.Second)
		for len(b.ops) > 0 {
			b.answer(b.op(OpRelease), Result{Status: Unknown, Partly: true})
			sent++
		}
	}
	if sent < 5 || sent > 20 {
		t.Errorf("%d releases in ten minutes, want one each minute or so", sent)
	}
	b.tab.StoreUp(b.ns.Store, b.now, &b.out)
	b.take()
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}
