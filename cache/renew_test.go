package cache

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A client's renewal is in flight when its hold is downgraded. The answer to a renewal of the
// exclusive lease means nothing any more, so the client is answered by a renewal of the shared one.
func TestAClientsRenewalIsAnsweredBehindADowngrade(t *testing.T) {
	for _, c := range []struct {
		name  string
		early *Result // the answer to the first renewal if it comes before that to the downgrade
	}{
		{"renewal last", nil},
		{"renewal first", &Result{Status: NotHeld}}, // the store had made the lease shared by then
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, nil)
			s := b.session()
			b.acquire(s, "k", func(q *Acquire) { q.Fixed = true }) // nothing else renews it
			f := b.granted(OpTry, 5)
			b.tab.Renew(&Renew{Re: Request{Session: s, ID: 98}, Key: []byte("k"), Fence: f}, b.now,
				&b.out)
			b.take()
			renewal := b.op(OpRenew)
			if until := b.tab.locks["k"].held.until; renewal.Until != until {
				t.Errorf("its answer counts until %d, and the lease ends at %d", renewal.Until, until)
			}
			b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 99}, Key: []byte("k"), Fence: f},
				b.now, &b.out)
			b.only(b.take(), MsgGranted, protocol.OK)
			downgrade := b.op(OpDowngrade)
			if c.early != nil {
				b.answer(renewal, *c.early)
			}
			b.answer(downgrade, Result{Status: Done})
			again := b.op(OpRenew)
			if c.early == nil {
				b.answer(renewal, Result{Status: Done})
			}
			if m := b.only(b.answer(again, Result{Status: Done}), MsgGranted,
				protocol.OK); m.Re.ID != 98 {
				t.Errorf("request %d is answered", m.Re.ID)
			}
			if n := s.Asks.Load(); n != 0 {
				t.Errorf("%d answers are outstanding", n)
			}
		})
	}
}

// Two readers share a lease. One renews with a short TTL, and the other one's validity stays as
// long as it was.
func TestARenewalDoesNotShortenTheTTLOfOtherReaders(t *testing.T) {
	for name, change := range map[string]func(*setup){"the lease is renewed": nil,
		"the session is": func(x *setup) {
			x.Session, x.SessionTTL, x.Rebase = true, time.Minute, false
		}, "degraded": mayDegrade} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, change)
			b.tab.SessionUntil(b.ns.Store, 1, b.now+60*second, b.now, &b.out)
			long, short := b.session(), b.session()
			if name == "degraded" {
				b.degraded(long, shared)
			} else {
				b.acquire(long, "k", shared)
				b.granted(OpJoin, 5)
			}
			f := b.only(b.acquire(short, "k", shared), MsgGranted, protocol.OK).Fence
			renew := func(id uint64) {
				b.tab.Renew(&Renew{Re: Request{Session: short, ID: id}, Key: []byte("k"), Fence: f,
					TTL: 2 * second}, b.now, &b.out)
				b.take()
				if name == "the lease is renewed" {
					b.answer(b.op(OpRenew), Result{Status: Done})
				}
			}
			renew(98)
			if ttl := b.tab.locks["k"].ttl; ttl != 30*second {
				t.Errorf("the lease's TTL is %v", time.Duration(ttl))
			}
			b.release(long, "k", f)
			renew(99)
			if ttl := b.tab.locks["k"].ttl; ttl != 2*second {
				t.Errorf("the TTL of the last reader's lease is %v", time.Duration(ttl))
			}
		})
	}
}

// A lease that ends by a TTL of its own, and with the store session: a handoff to a hold with a
// longer TTL renews the lease first.
func TestAHandoffRenewsALeaseWithATTLAtAStoreWithASession(t *testing.T) {
	b := newBench(t, func(s *setup) {
		s.Session, s.SessionTTL, s.TTLs, s.Rebase = true, 30*time.Second, true, false
	})
	s, w := b.session(), b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL = 20 * second })
	granted := Result{Status: Granted, Base: 5, Session: b.now + 30*second, SessionNo: 1}
	fence := b.only(b.answer(b.op(OpTry), granted), MsgGranted, protocol.OK).Fence
	b.acquire(w, "k", func(q *Acquire) { q.TTL, q.Wait = 70*second, Forever })
	b.release(s, "k", fence)
	m := b.answer(b.op(OpRenew), Result{Status: Done})
	for _, m := range m {
		if m.Kind == MsgGranted && m.Re.Session == w {
			return
		}
	}
	t.Errorf("the waiter gets no lock: %+v", m)
}

// behindUnansweredDowngrade returns a bench with a lease whose downgrade was not answered. Its hold
// has been released, and a reader with a longer TTL waits for it.
func behindUnansweredDowngrade(t *testing.T) *bench {
	t.Helper()
	b := newBench(t, nil)
	s, reader := b.session(), b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL = 20 * second })
	fence := b.granted(OpTry, 5)
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 99}, Key: []byte("k"), Fence: fence},
		b.now, &b.out)
	b.take()
	b.answer(b.op(OpDowngrade), Result{Status: Unknown})
	b.acquire(reader, "k", func(q *Acquire) { q.TTL, q.Wait, q.Mode = 70*second, Forever, Shared })
	b.release(s, "k", fence)
	return b
}

// A reader waits for the renewal of a lease whose downgrade was not answered.
func TestAHandoffBehindAnUnansweredDowngradeDoesNotWakeTheTableAgainAndAgain(t *testing.T) {
	b := behindUnansweredDowngrade(t)
	b.now += second
	b.tab.Tick(b.now, 100, &b.out)
	b.take()
	b.op(OpRenew)
	if next := b.tab.NextWake(); next <= b.now+1 {
		t.Errorf("the table wakes in %v, while the store has not answered",
			time.Duration(next-b.now))
	}
}

// A store fails, and the answer to the next request comes only after the time for which waiters
// outlast that.
func TestAWaiterAtAFailingStoreDoesNotWakeTheTableWhileARequestIsInFlight(t *testing.T) {
	b := newBench(t, nil)
	b.acquire(b.session(), "k", waits)
	b.answer(b.op(OpJoin), Result{Status: Unknown})
	b.tick(b.tab.cfg.RetryMax)
	slow := b.op(OpJoin)
	b.now += int64(b.tab.cfg.Grace)
	b.tab.Tick(b.now, 100, &b.out)
	b.take()
	if next := b.tab.NextWake(); next != Forever {
		t.Errorf("the table wakes in %v, while the store has not answered",
			time.Duration(next-b.now))
	}
	b.only(b.answer(slow, Result{Status: Unknown}), MsgFailed, protocol.Unavailable)
}

// A downgrade that was not answered has been carried out, and then its hold is released. The store
// does not know the exclusive lease any more. A reader that waits for it costs no renewal after
// renewal.
func TestAHandoffBehindACarriedOutDowngradeIsNotRenewedWithoutEnd(t *testing.T) {
	b := behindUnansweredDowngrade(t)
	b.tick(time.Second)
	b.answer(b.op(OpRenew), Result{Status: NotHeld})
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.granted(OpJoin, 6)
}

// A second renewal asks for a longer TTL than the first one, whose answer is still due. That
// answer sets the TTL of the lease to the first one's. The second renewal is answered all the same.
func TestALongerRenewalBehindAShorterOneIsAnswered(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 5)
	for id, ttl := range []int64{10 * second, 60 * second} {
		b.tab.Renew(&Renew{Re: Request{Session: s, ID: uint64(id)}, Key: []byte("k"), Fence: f,
			TTL: ttl}, b.now, &b.out)
		b.take()
	}
	b.only(b.answer(b.op(OpRenew), Result{Status: Done}), MsgGranted, protocol.OK)
	m := b.only(b.answer(b.op(OpRenew), Result{Status: Done}), MsgGranted, protocol.OK)
	if left := m.Until - b.now; m.Re.ID != 1 || left < 59*second {
		t.Errorf("request %d is answered, with a validity of %v", m.Re.ID, time.Duration(left))
	}
	if len(b.ops) > 0 || s.Asks.Load() != 0 {
		t.Errorf("further ops %v, %d answers are outstanding", kinds(b.ops), s.Asks.Load())
	}
}
