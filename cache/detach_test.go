package cache

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// user returns a session of a user, and the user's record.
func (b *bench) user(detached *Session) (*Session, *Session) {
	s := b.session()
	if detached == nil {
		b.id++
		detached = NewDetached(b.id, 1, nil)
	}
	s.Detached = detached
	return s, detached
}

const keepsFor = time.Minute

func kept(q *Acquire) { q.Keep = int64(keepsFor) }

func keeping(x *setup) { x.Keeps = time.Hour }

// keep has a session of a user hold the key "k" with a keep, and the store confirm it.
func (b *bench) keep(s *Session, base uint64) (fence uint64) {
	b.t.Helper()
	b.acquire(s, "k", kept)
	ms := b.answer(b.op(OpTry), Result{Status: Granted, Base: base})
	m := b.only(ms, MsgGranted, protocol.OK)
	if m.Bound || m.End != 0 {
		b.t.Fatalf("%+v", m)
	}
	op := b.op(OpRenew)
	end := b.now + int64(keepsFor)
	if LeaseDeadline(b.now, int64(op.TTL)) < end || op.Stated.Round(time.Millisecond) != 30*time.Second {
		b.t.Fatalf("a TTL of %v, of which %v count", op.TTL, op.Stated)
	}
	b.answer(op, Result{Status: Done})
	if until := b.tab.validUntil(b.tab.locks["k"].holds.first); until > b.now+30*second {
		b.t.Fatalf("valid for %v, longer than the TTL", time.Duration(until-b.now))
	}
	return m.Fence
}

// detachedOnly checks that the key "k" has one hold, which is detached and ends with its keep.
func (b *bench) detachedOnly(d *Session, end int64) {
	b.t.Helper()
	l := &b.tab.locks["k"].Lease
	h := l.holds.first
	if l.nHolds != 1 || h.s != d || h.end != end || d.Holds.Load() != 1 || len(b.ops) != 0 {
		b.t.Fatalf("%d holds, %+v, %v", l.nHolds, h, kinds(b.ops))
	}
	if until := b.tab.deadline(l); l.st.Keeps > 0 && until < end {
		b.t.Fatalf("the lease ends %v before the hold", time.Duration(end-until))
	}
	all, _ := b.tab.AddStats(nil, nil)
	if all[0].Unaccounted() != 0 || all[0].Holds != 1 {
		b.t.Fatalf("%+v", all[0])
	}
}

func TestAHoldIsKept(t *testing.T) {
	for name, givesUp := range map[string]func(b *bench, s *Session, fence uint64){
		"a release": func(b *bench, s *Session, fence uint64) {
			m := b.only(b.release(s, "k", fence), MsgReleased, protocol.OK)
			if m.Count != 0 {
				b.t.Fatalf("%+v", m)
			}
			b.only(b.release(s, "k", fence), MsgFailed, protocol.NotHeld)
		},
		"the end of the session": func(b *bench, s *Session, _ uint64) {
			s.Ended.Store(true)
			if _, more := b.tab.EndSession(s, 100, b.now, &b.out); more || s.Shards.Load() != 0 {
				b.t.Fatal("the session still has something")
			}
			b.take()
		},
		"silence": func(b *bench, s *Session, fence uint64) {
			b.ns.Heartbeat = time.Second
			b.tab.LoseSilent(s, b.now-2*second, 0, b.now, &b.out)
			m := b.only(b.take(), MsgLost, protocol.OK)
			if m.Reason != protocol.LostSilent || m.Re.Session != s || m.Fence != fence {
				b.t.Fatalf("%+v", m)
			}
		},
		"the end of a drain": func(b *bench, s *Session, _ uint64) {
			b.tab.Shut(b.now, &b.out)
			b.tab.EndSession(s, 100, b.now, &b.out)
			b.take()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, keeping)
			s, d := b.user(nil)
			end := b.now + int64(keepsFor)
			fence := b.keep(s, 5)
			b.tick(20 * time.Second)
			b.ops = nil
			givesUp(b, s, fence)
			b.detachedOnly(d, end)
			if s.Holds.Load() != 0 {
				t.Fatal("the session still has a hold")
			}
			o, _ := b.user(d)
			b.only(b.acquire(o, "k", nil), MsgFailed, protocol.Busy)
			b.acquire(o, "k", waits)
			if ms := b.tick(time.Duration(end-b.now) - 1); len(ms) != 0 || len(b.ops) != 0 {
				t.Fatalf("%+v %v: the lease lasts long enough", ms, kinds(b.ops))
			}
			b.tick(1) // the waiter is served with the lease, which is renewed for that
			if l := &b.tab.locks["k"].Lease; l.find(o, 0) == nil {
				b.answer(b.op(OpRenew), Result{Status: Done})
				if l.find(o, 0) == nil {
					t.Fatal("the key is not free after its keep")
				}
			}
			if d.Holds.Load() != 0 {
				t.Fatal("the detached hold has not ended")
			}
		})
	}
}

// A hold with a keep that is over, or that is given up for good, is released.
func TestAHoldIsKeptNoLonger(t *testing.T) {
	b := newBench(t, keeping)
	s, d := b.user(nil)
	fence := b.keep(s, 5)
	b.tab.Release(&Release{Re: Request{Session: s, ID: 9}, Key: []byte("k"), Fence: fence, Now: true},
		b.now, &b.out)
	b.take()
	b.only(b.answer(b.op(OpRelease), Result{Status: Done}), MsgReleased, protocol.OK)

	fence = b.keep(s, 6)
	for range 3 { // until the keep is over
		b.tick(20 * time.Second)
		for _, l := range b.tab.heldLeases(b.tab.store(b.ns.Store)) {
			b.tab.RenewDue(l, l.token, b.now, &b.out)
		}
		b.take()
		b.answer(b.op(OpRenew), Result{Status: Done})
	}
	b.release(s, "k", fence)
	b.only(b.answer(b.op(OpRelease), Result{Status: Done}), MsgReleased, protocol.OK)
	if d.Holds.Load() != 0 {
		t.Fatal("something is detached")
	}
	b.empty()
}

func TestADetachedHoldIsReleased(t *testing.T) {
	b := newBench(t, keeping)
	s, d := b.user(nil)
	fence := b.keep(s, 5)
	b.release(s, "k", fence)
	release := func(s *Session, fence uint64, any bool) []Message {
		b.tab.ReleaseDetached(&Release{Re: Request{Session: s, ID: 9}, Key: []byte("k"), Owner: 77,
			Fence: fence}, any, b.now, &b.out)
		return b.take()
	}
	other, _ := b.user(nil)
	b.only(release(s, fence+1, false), MsgFailed, protocol.NotHeld)
	b.only(release(other, fence, false), MsgFailed, protocol.Denied)
	b.detachedOnly(d, b.now+int64(keepsFor))
	mine, _ := b.user(d)
	if ms := release(mine, fence, false); len(ms) != 0 {
		t.Fatalf("%+v: the store has not confirmed", ms)
	}
	b.only(b.answer(b.op(OpRelease), Result{Status: Done}), MsgReleased, protocol.OK)
	b.only(release(mine, fence, false), MsgFailed, protocol.NotHeld)
	b.empty()

	fence = b.keep(s, 6)
	b.only(release(mine, fence, true), MsgFailed, protocol.NotHeld) // it is not detached
	b.release(s, "k", fence)
	release(other, fence, true)
	b.only(b.answer(b.op(OpRelease), Result{Status: Done}), MsgReleased, protocol.OK)
	b.empty()
}

// Nobody relies on a detached hold, so a forced unlock opens the key at once.
func TestADetachedHoldIsForced(t *testing.T) {
	b := newBench(t, keeping)
	s, _ := b.user(nil)
	fence := b.keep(s, 5)
	b.release(s, "k", fence)
	_, ended, free := b.force("k", false, 0)
	if len(ended) != 1 || !ended[0].Detached || ended[0].Until != b.now+int64(keepsFor) ||
		free != b.now {
		t.Fatalf("%d %+v", free, ended)
	}
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.balanced(1)
	b.empty()
}

// A store that cannot keep a lease without the daemon makes the keep end with it, unless the next
// daemon continues. So the end of a drain leaves the hold.
func TestAKeepIsBound(t *testing.T) {
	b := newBench(t, nil)
	s, d := b.user(nil)
	b.acquire(s, "k", kept)
	m := b.only(b.answer(b.op(OpTry), Result{Status: Granted, Base: 5}), MsgGranted, protocol.OK)
	if !m.Bound || len(b.ops) != 0 {
		t.Fatalf("%+v %v", m, kinds(b.ops))
	}
	b.release(s, "k", m.Fence)
	b.detachedOnly(d, b.now+int64(keepsFor))
	b.tab.Shut(b.now, &b.out)
	b.detachedOnly(d, b.now+int64(keepsFor))
	b.tab.ShutDetached(b.now, &b.out) // no next daemon continues with it
	b.take()
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}

// An outage does not end a detached hold whose lease lasts long enough. A new keep needs the store.
func TestAKeepInAnOutage(t *testing.T) {
	b := newBench(t, func(x *setup) {
		x.Keeps, x.Local, x.LocalAfter = time.Hour, true, time.Second
	})
	s, d := b.user(nil)
	end := b.now + int64(keepsFor)
	fence := b.keep(s, 5)
	b.release(s, "k", fence)
	b.tab.StoreDown(b.ns.Store, nil, b.now, &b.out)
	b.acquire(s, "other", func(q *Acquire) { q.Keep, q.Wait = int64(keepsFor), Forever })
	b.only(b.tick(2*time.Second), MsgFailed, protocol.Unsupported)
	b.tick(time.Duration(end-b.now) - 1)
	b.detachedOnly(d, end)
}

func TestDetachedHoldsHaveALimit(t *testing.T) {
	b := newBench(t, func(x *setup) { x.MaxHolds = 1; x.Keeps = time.Hour })
	s, d := b.user(nil)
	fence := b.keep(s, 5)
	b.release(s, "k", fence)
	b.only(b.acquire(s, "k2", kept), MsgFailed, protocol.Limit)
	b.acquire(s, "k3", nil)
	b.granted(OpTry, 6)
	if d.Holds.Load() != 1 {
		t.Fatal(d.Holds.Load())
	}
}

// A permit is kept as a lock is.
func TestAPermitIsKept(t *testing.T) {
	b := newBench(t, keeping)
	s, d := b.user(nil)
	b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Limit, q.Keep = Permit, 1, int64(keepsFor) })
	m := b.grantPermit(b.takeOps(OpTry)[0], 5)
	b.answer(b.takeOps(OpRenew)[0], Result{Status: Done})
	b.only(b.release(s, "k", m.Fence), MsgReleased, protocol.OK)
	if d.Holds.Load() != 1 {
		t.Fatal("it is not detached")
	}
	b.only(b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Limit = Permit, 1 }), MsgFailed,
		protocol.Busy)
	b.tab.ReleaseDetached(&Release{Re: Request{Session: s, ID: 9}, Key: []byte("k"), Fence: m.Fence},
		false, b.now, &b.out)
	b.take()
	b.only(b.answer(b.op(OpRelease), Result{Status: Done}), MsgReleased, protocol.OK)
	b.empty()
}

// A store that keeps leases by its session is told of a keep that is shorter than the TTL, too.
func TestAShortKeepOutlastsTheSession(t *testing.T) {
	b := newBench(t, func(x *setup) {
		x.Keeps, x.Session, x.SessionTTL = time.Hour, true, 10*time.Second
	})
	s, _ := b.user(nil)
	b.acquire(s, "k", func(q *Acquire) { q.Keep = 20 * second })
	b.answer(b.op(OpTry), Result{Status: Granted, Base: 5, Session: b.now + 10*second, SessionNo: 1})
	op := b.op(OpRenew)
	if left := LeaseDeadline(0, int64(op.TTL)); op.Stated == 0 || left < 20*second || left > 21*second {
		t.Fatalf("a keep of %v, %+v", time.Duration(left), op)
	}
}

// The store keeps the lease of a hold with a keep for long. If the hold ends early, the key is not
// handed off with that lease: it would stay closed for as long if the daemon ended.
func TestAKeptLeaseIsNotHandedOff(t *testing.T) {
	for name, end := range map[string]func(b *bench, s *Session, fence uint64){
		"a release for good": func(b *bench, s *Session, fence uint64) {
			b.tab.Release(&Release{Re: Request{Session: s, ID: 9}, Key: []byte("k"), Fence: fence,
				Now: true}, b.now, &b.out)
		},
		"the release of a detached hold": func(b *bench, s *Session, fence uint64) {
			b.release(s, "k", fence)
			b.tab.ReleaseDetached(&Release{Re: Request{Session: s, ID: 9}, Key: []byte("k"),
				Fence: fence}, false, b.now, &b.out)
		},
		"a forced unlock": func(b *bench, s *Session, fence uint64) {
			b.release(s, "k", fence)
			b.force("k", false, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, keeping)
			s, d := b.user(nil)
			fence := b.keep(s, 5)
			o, _ := b.user(d)
			b.acquire(o, "k", waits)
			end(b, s, fence)
			b.take()
			b.answer(b.op(OpRelease), Result{Status: Done})
			b.granted(OpJoin, 6)
		})
	}
}

// The deadline of a lease is a little earlier than the end of its TTL. So a keep as long as the
// longest TTL may end a little early.
func TestAKeepAsLongAsTheLongestTTLIsBound(t *testing.T) {
	for keeps, bound := range map[time.Duration]bool{
		keepsFor: true, time.Duration(ttlUntil(int64(keepsFor), 0)): false,
	} {
		b := newBench(t, func(x *setup) { x.Keeps = keeps })
		s, _ := b.user(nil)
		b.acquire(s, "k", kept)
		ms := b.answer(b.op(OpTry), Result{Status: Granted, Base: 5})
		if m := b.only(ms, MsgGranted, protocol.OK); m.Bound != bound {
			t.Errorf("a store that keeps for %v: bound is %v", keeps, m.Bound)
		}
	}
}

// A renewal that tells the store of a keep may fail. A daemon that stops waits for the next one.
func TestAKeepOfWhichTheStoreHasNotHeardIsToldAgain(t *testing.T) {
	b := newBench(t, keeping)
	s, d := b.user(nil)
	b.acquire(s, "k", kept)
	m := b.only(b.answer(b.op(OpTry), Result{Status: Granted, Base: 5}), MsgGranted, protocol.OK)
	b.answer(b.op(OpRenew), Result{})
	b.release(s, "k", m.Fence)
	if n := b.tab.Unkept(b.now); n != 1 {
		t.Errorf("%d keeps to tell", n)
	}
	l := &b.tab.locks["k"].Lease
	b.tick(time.Second)
	b.tab.RenewDue(l, l.token, b.now, &b.out)
	b.take()
	b.answer(b.op(OpRenew), Result{Status: Done})
	if n := b.tab.Unkept(b.now); n != 0 {
		t.Errorf("%d keeps to tell after the answer", n)
	}
	b.detachedOnly(d, b.now-second+int64(keepsFor))
}

// A reader that joins a detached one is told a validity of its own TTL, although the store keeps
// the lease for longer. The lease is renewed for that TTL. So a loss at the store shows in time.
func TestAReaderThatJoinsADetachedOneIsNotToldTheKeep(t *testing.T) {
	b := newBench(t, keeping)
	s, d := b.user(nil)
	b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Keep = Shared, int64(keepsFor) })
	m := b.only(b.answer(b.op(OpTry), Result{Status: Granted, Base: 5}), MsgGranted, protocol.OK)
	b.answer(b.op(OpRenew), Result{Status: Done})
	end := b.now + int64(keepsFor)
	b.release(s, "k", m.Fence)
	b.detachedOnly(d, end)
	o, _ := b.user(d)
	m = b.only(b.acquire(o, "k", func(q *Acquire) { q.Mode = Shared }), MsgGranted, protocol.OK)
	if m.Until > b.now+30*second {
		t.Errorf("valid for %v, longer than the TTL", time.Duration(m.Until-b.now))
	}
	if l := &b.tab.locks["k"].Lease; !l.tracked || l.held.until != m.Until {
		t.Errorf("the lease is not renewed in time: %+v", l.leaseState)
	}
	b.release(o, "k", m.Fence)
	b.tick(time.Duration(end-b.now) - 1)
	if d.Holds.Load() != 1 {
		t.Error("the detached hold has ended with the other one")
	}
}
