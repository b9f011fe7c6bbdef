package cache

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// wantLost checks how many holds were lost as gone so far, and that the statistics are consistent.
func (b *bench) wantLost(n uint64) {
	b.t.Helper()
	all, _ := b.tab.AddStats(nil, nil)
	if s := all[0]; s.Lost[protocol.LostGone] != n || s.Unaccounted() != 0 {
		b.t.Fatalf("%d lost as gone, want %d; %d unaccounted", s.Lost[protocol.LostGone], n,
			s.Unaccounted())
	}
}

// lostNotices takes the effects, and returns the losses that are to be logged.
func (b *bench) lostNotices() (lost []Notice) {
	for _, n := range b.out.Notices {
		if n.Kind == NoticeLost {
			lost = append(lost, n)
		}
	}
	b.take()
	return lost
}

// result is answer for a test that looks at the notices.
func (b *bench) result(op Op, r Result) { b.tab.Result(&op, &r, b.now, b.now, &b.out) }

func TestAHoldThatIsFoundGoneAtItsReleaseIsLost(t *testing.T) {
	for name, ends := range map[string]func(b *bench, s *Session, fence uint64){
		"release": func(b *bench, s *Session, fence uint64) { b.release(s, "k", fence) },
		"async": func(b *bench, s *Session, fence uint64) {
			b.tab.Release(&Release{Re: Request{Session: s}, Key: []byte("k"), Fence: fence,
				Async: true}, b.now, &b.out)
			b.take()
		},
		"end of the session": func(b *bench, s *Session, _ uint64) {
			b.tab.EndSession(s, 100, b.now, &b.out)
			b.take()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			s := b.session()
			b.acquire(s, "k", nil)
			f := b.granted(OpTry, 7)
			b.now += 3 * second
			ends(b, s, f)
			b.wantLost(0)
			b.now += second
			b.result(b.op(OpRelease), Result{Status: NotHeld})
			lost := b.lostNotices()
			if len(lost) != 1 {
				t.Fatalf("%d losses are logged", len(lost))
			}
			if n := lost[0]; n.Reason != protocol.LostGone || !n.Released || n.Key != "k" ||
				n.Fence != f || n.Session != s || n.Took != 3*second {
				t.Errorf("%+v", n)
			}
			b.wantLost(1)
			b.empty()
		})
	}
}

func TestAPermitThatIsFoundGoneAtItsReleaseIsLost(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Limit = Permit, 2 })
	f := b.granted(OpTry, 7)
	b.release(s, "k", f)
	b.result(b.op(OpRelease), Result{Status: NotHeld})
	if lost := b.lostNotices(); len(lost) != 1 || lost[0].Fence != f || lost[0].Mode != Permit {
		t.Errorf("%+v", lost)
	}
	b.wantLost(1)
	b.empty()
}

// The last of several owners to release is the one whose hold is found gone.
func TestOnlyTheLastHoldOfALeaseIsFoundGone(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.acquire(o, "k", waits)
	b.release(s, "k", f)
	b.release(o, "k", b.tab.locks["k"].holds.first.fence) // it got the key by handoff
	b.result(b.op(OpRelease), Result{Status: NotHeld})
	if lost := b.lostNotices(); len(lost) != 1 || lost[0].Session != o {
		t.Errorf("%+v", lost)
	}
	b.wantLost(1)
	b.empty()
}

// A release whose answer was lost, and which is sent again, finds nothing because the first one
// succeeded.
func TestAReleaseThatIsSentAgainFindsNothingGone(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	b.release(s, "k", b.granted(OpTry, 7))
	b.answer(b.op(OpRelease), Result{Status: Unknown, Err: errors.New("cut")})
	b.tick(time.Second)
	b.result(b.op(OpRelease), Result{Status: NotHeld})
	b.nothingLost()
}

func TestALeaseThatHasEndedByThenIsNotFoundGone(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.now = LeaseDeadline(b.now, 30*second) - second
	b.release(s, "k", f)
	b.now += 2 * second
	b.result(b.op(OpRelease), Result{Status: NotHeld})
	b.nothingLost()
}

// An operator has ended the hold: it is lost already, for another reason.
func TestAHoldThatWasForcedIsNotFoundGone(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.tab.Force("k", false, 0, b.now, &b.out)
	b.take()
	b.release(s, "k", f)
	b.result(b.op(OpRelease), Result{Status: NotHeld})
	b.nothingLost()
}

// A renewal in flight finds the same as the release: that is one loss.
func TestARenewalThatCrossesTheReleaseCountsNoSecondLoss(t *testing.T) {
	for _, first := range []OpKind{OpRenew, OpRelease} {
		b := newBench(t, nil)
		s := b.session()
		b.acquire(s, "k", nil)
		f := b.granted(OpTry, 7)
		l := b.tab.locks["k"].lease()
		b.tab.RenewDue(l, l.token, b.now, &b.out)
		b.take()
		renew := b.op(OpRenew)
		b.release(s, "k", f)
		release := b.op(OpRelease)
		order := []Op{renew, release}
		if first == OpRelease {
			order = []Op{release, renew}
		}
		lost := 0
		for _, op := range order {
			b.result(op, Result{Status: NotHeld})
			lost += len(b.lostNotices())
		}
		if lost != 1 {
			t.Errorf("%v is answered first: %d losses", first, lost)
		}
		b.wantLost(1)
		b.empty()
	}
}

// A lease that is kept idle may have been lost while it was held: nothing has confirmed it since.
func TestALingeringLeaseIsFoundGone(t *testing.T) {
	for name, c := range map[string]struct {
		find func(b *bench, l *Lease)
		lost int
	}{
		"given up": {func(b *bench, _ *Lease) {
			b.tick(2 * time.Second)
			b.result(b.op(OpRelease), Result{Status: NotHeld})
		}, 1},
		"renewed in vain": {func(b *bench, l *Lease) {
			b.tab.RenewDue(l, l.token, b.now, &b.out)
			b.take()
			b.result(b.op(OpRenew), Result{Status: NotHeld})
		}, 1},
		"confirmed, and then given up": {func(b *bench, l *Lease) {
			b.tab.RenewDue(l, l.token, b.now, &b.out)
			b.take()
			b.answer(b.op(OpRenew), Result{Status: Done})
			b.tick(2 * time.Second)
			b.result(b.op(OpRelease), Result{Status: NotHeld})
		}, 0},
		"held again, and then released": {func(b *bench, _ *Lease) {
			s := b.session()
			fence := b.only(b.acquire(s, "k", nil), MsgGranted, protocol.OK).Fence
			b.tab.EndLinger(b.now, &b.out)
			b.release(s, "k", fence)
			b.result(b.op(OpRelease), Result{Status: NotHeld})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, lingering)
			b.habitual(b.session(), "k")
			c.find(b, b.tab.locks["k"].lease())
			if lost := b.lostNotices(); len(lost) != c.lost {
				t.Errorf("%d losses are logged, want %d: %+v", len(lost), c.lost, lost)
			}
			b.wantLost(uint64(c.lost))
		})
	}
}

// nothingLost checks that no loss was noticed or counted, and that nothing is left in the table.
func (b *bench) nothingLost() {
	b.t.Helper()
	if lost := b.lostNotices(); len(lost) != 0 {
		b.t.Errorf("%+v", lost)
	}
	b.wantLost(0)
	b.empty()
}
