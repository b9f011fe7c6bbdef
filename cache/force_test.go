package cache

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

func (b *bench) force(key string, permit bool, fence uint64) (ms []Message, ended []Held,
	free int64) {
	ended, free = b.tab.Force(key, permit, fence, b.now, &b.out)
	return b.take(), ended, free
}

// balanced checks that every grant is accounted for, and how many were forced.
func (b *bench) balanced(forced uint64) {
	b.t.Helper()
	all, _ := b.tab.AddStats(nil, nil)
	if s := all[0]; s.Unaccounted() != 0 || s.Lost[protocol.LostForced] != forced {
		b.t.Fatalf("unaccounted %d, forced %d, want %d", s.Unaccounted(),
			s.Lost[protocol.LostForced], forced)
	}
}

func TestForceClosesTheKeyForAsLongAsWasStated(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", nil)
	fence := b.granted(OpTry, 5)
	b.acquire(o, "k", waits)
	stated := b.tab.validUntil(b.tab.locks["k"].holds.first)

	ms, ended, free := b.force("k", false, 0)
	if m := b.only(ms, MsgLost, protocol.OK); m.Reason != protocol.LostForced || m.Fence != fence ||
		m.Re.Session != s {
		t.Fatalf("%+v", m)
	}
	if len(ended) != 1 || !ended[0].Forced || ended[0].Fixed || ended[0].Until != stated ||
		free != stated {
		t.Fatalf("%d %+v", free, ended)
	}
	b.balanced(1)
	if len(b.ops) != 0 {
		t.Fatalf("%v: others may not have it yet", kinds(b.ops))
	}
	var w Watermark
	if b.tab.Survey(s, true, &w, 9, b.now); w.TTL != 0 {
		t.Fatalf("%+v: its owner is told of nothing any more", w)
	}
	b.only(b.acquire(s, "k", nil), MsgFailed, protocol.Busy) // it is no re-entry
	b.tab.Renew(&Renew{Re: Request{Session: s, ID: 9}, Key: []byte("k"), Fence: fence}, b.now,
		&b.out)
	b.only(b.take(), MsgFailed, protocol.NotHeld)
	if ms, ended, free = b.force("k", false, 0); len(ms) != 0 || len(ended) != 0 || free != stated {
		t.Fatalf("a second time: %v %v %d", ms, ended, free)
	}

	if ms = b.tick(time.Duration(stated - b.now - 1)); len(ms) != 0 || len(b.ops) != 0 {
		t.Fatalf("%+v %v", ms, kinds(b.ops))
	}
	b.tick(1)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.granted(OpJoin, 6)
	b.balanced(1)
	if got, _ := b.tab.AddStats(nil, nil); got[0].Holds != 1 || b.tab.forced != 0 {
		t.Fatalf("%+v", got)
	}
}

// What a daemon that stops has left is counted as lost, and stays closed as after Force.
func TestShutCountsWhatIsHeld(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	b.granted(OpTry, 5)
	b.acquire(s, "forced", nil)
	b.granted(OpTry, 6)
	b.force("forced", false, 0)
	b.tab.Shut(b.now, &b.out)
	if ms := b.take(); len(ms) != 0 || len(b.ops) != 0 {
		t.Fatalf("%+v %v", ms, kinds(b.ops))
	}
	b.balanced(1)
	if all, _ := b.tab.AddStats(nil, nil); all[0].Lost[protocol.LostShutdown] != 1 ||
		all[0].Holds != 0 {
		t.Fatalf("%+v", all[0])
	}
	if b.tab.locks["k"].nHolds == 0 {
		t.Fatal("it is open before its owner knows")
	}
}

func TestForceEndsWithItsOwnersWord(t *testing.T) {
	for _, tc := range []struct {
		name string
		does func(b *bench, s *Session, fence uint64)
		open bool
	}{
		{"a release", func(b *bench, s *Session, fence uint64) {
			b.only(b.release(s, "k", fence)[:1], MsgFailed, protocol.NotHeld)
			b.release(s, "k", fence)
		}, true},
		{"of all", func(b *bench, s *Session, fence uint64) {
			b.tab.Release(&Release{Re: Request{Session: s, ID: 9}, Key: []byte("k"), Fence: fence,
				All: true}, b.now, &b.out)
			b.take()
		}, true},
		{"the end of its session", func(b *bench, s *Session, _ uint64) {
			b.tab.EndSession(s, 100, b.now, &b.out)
			b.take()
		}, true},
		{"one of two releases", func(b *bench, s *Session, fence uint64) {
			b.release(s, "k",
				fence)
		}, false},
		{"another fence", func(b *bench, s *Session, fence uint64) {
			b.release(s, "k",
				fence+1)
			b.release(s, "k", fence+1)
		}, false},
		{"another session", func(b *bench, _ *Session, fence uint64) {
			b.release(b.session(), "k",
				fence)
		}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			s, o := b.session(), b.session()
			b.acquire(s, "k", nil)
			fence := b.granted(OpTry, 5)
			b.only(b.acquire(s, "k", nil), MsgGranted, protocol.OK) // twice
			b.acquire(o, "k", waits)
			b.force("k", false, fence)
			tc.does(b, s, fence)
			if open := b.tab.locks["k"].find(o, 0) != nil; open != tc.open {
				t.Errorf("handed over: %v", open)
			}
			b.balanced(1)
		})
	}
}

func TestForceOfOneReaderLeavesTheOthers(t *testing.T) {
	b := newBench(t, nil)
	r1, r2 := b.session(), b.session()
	b.acquire(r1, "k", shared)
	first := b.granted(OpJoin, 5)
	if ms, ended, free := b.force("k", false, first+1); len(ms) != 0 || len(ended) != 0 ||
		free != b.now {
		t.Fatal("another fence")
	}
	b.force("k", false, first)
	// the same owner, anew
	second := b.only(b.acquire(r1, "k", shared), MsgGranted, protocol.OK).Fence
	if second <= first {
		t.Fatalf("fence %d after %d", second, first)
	}
	b.only(b.acquire(r2, "k", shared), MsgGranted, protocol.OK)
	if ms := b.release(r1, "k", first); ms[0].Code != protocol.NotHeld ||
		b.tab.locks["k"].find(r1, 0) == nil {
		t.Fatalf("%+v: the new hold stays", ms)
	}
	b.only(b.release(r1, "k", second), MsgReleased, protocol.OK)
	b.balanced(1)
}

func TestForceEndsTheHoldOfEveryReader(t *testing.T) {
	b := newBench(t, nil)
	readers := [...]*Session{b.session(), b.session(), b.session()}
	b.acquire(readers[0], "k", shared)
	b.granted(OpJoin, 5)
	for _, r := range readers[1:] {
		b.only(b.acquire(r, "k", shared), MsgGranted, protocol.OK)
	}
	ms, ended, _ := b.force("k", false, 0)
	told := map[*Session]bool{}
	for _, m := range ms {
		told[m.Re.Session] = m.Kind == MsgLost && m.Reason == protocol.LostForced
	}
	for i, r := range readers {
		if !told[r] || b.tab.locks["k"].find(r, 0) != nil || len(ended) != len(readers) {
			t.Fatalf("reader %d: told %v, %d holds ended", i, told[r], len(ended))
		}
	}
	b.balanced(3)
}

func TestForceTakesAllPermitsOrOne(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	var fences []uint64
	for i := range uint64(3) {
		b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Limit, q.Owner = Permit, 3, i })
		fences = append(fences, b.granted(OpTry, 5+i))
	}
	if ms, _, _ := b.force("k", false, 0); len(ms) != 0 {
		t.Fatal("there is no lock of that name")
	}
	if ms, ended, _ := b.force("k", true, fences[1]); len(ended) != 1 || ms[0].Fence != fences[1] {
		t.Fatalf("%+v", ms)
	}
	ms, ended, _ := b.force("k", true, 0)
	if len(ms) != 2 || len(ended) != 2 {
		t.Fatalf("%+v %+v", ms, ended)
	}
	b.only(b.acquire(b.session(), "k", func(q *Acquire) { q.Mode, q.Limit = Permit, 3 }), MsgFailed,
		protocol.Busy)
	b.balanced(3)
	b.tab.EndSession(s, 100, b.now, &b.out)
	b.take()
	if got := kinds(b.ops); len(got) != 3 {
		t.Fatalf("%v: all are given back", got)
	}
	b.balanced(3)
}

// A client gives up a hold because the stated validity is over: it ends its session, or releases
// the hold. It has lost the hold. The stated validity is rounded down, so the lease itself ends
// slightly later. Until then a release is answered as any other.
func TestAHoldThatIsGivenUpAtTheEndOfItsValidityIsLost(t *testing.T) {
	end := func(b *bench, s *Session, _ *hold) { b.tab.EndSession(s, 10, b.now, &b.out) }
	release := func(change func(*Release)) func(*bench, *Session, *hold) {
		return func(b *bench, s *Session, h *hold) {
			q := Release{Re: Request{Session: s, ID: 99}, Key: []byte("k"), Owner: h.owner,
				Fence: h.fence, Async: true}
			change(&q)
			b.tab.Release(&q, b.now, &b.out)
		}
	}
	all := release(func(q *Release) { q.All = true })
	one := release(func(*Release) {})
	back := release(func(q *Release) { q.Cause = CauseGivenBack })
	plain := func(q *Acquire) { q.Wait = Forever }
	fixed := func(q *Acquire) { q.Fixed = true }
	permit := permitOf(2, Forever)
	for _, tc := range []struct {
		name    string
		acquire func(*Acquire)
		giveUp  func(*bench, *Session, *hold)
		early   int64 // before the deadline
		lost    uint64
		ended   Cause // if not lost
		answer  protocol.Code
	}{
		{"session", plain, end, statedGrain / 2, 1, 0, protocol.OK},
		{"session, in time", plain, end, statedGrain * 2, 0, CauseSession, protocol.OK},
		{"session, fixed", fixed, end, 1, 0, CauseFixedEnd, protocol.OK},
		{"release", plain, one, 1, 1, 0, protocol.OK},
		{"release within the last millisecond", plain, one, statedGrain, 1, 0, protocol.OK},
		{"release before it", plain, one, statedGrain + 1, 0, CauseRelease, protocol.OK},
		{"release of all", plain, all, 1, 1, 0, protocol.OK},
		{"release at the deadline", plain, one, 0, 1, 0, protocol.NotHeld},
		{"release, fixed", fixed, one, 1, 0, CauseFixedEnd, protocol.OK},
		{"release of a reader", shared, one, 1, 1, 0, protocol.OK},
		{"release of a permit", permit, one, 1, 1, 0, protocol.OK},
		{"release of a permit before it", permit, one, statedGrain + 1, 0, CauseRelease,
			protocol.OK},
		{"given back", plain, back, 1, 0, CauseGivenBack, protocol.OK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, nil)
			s := b.session()
			b.acquire(s, "k", tc.acquire)
			ask := b.ops[0]
			b.ops = nil
			b.answer(ask, Result{Status: Granted, Base: 5})
			h := b.tab.holds.first
			b.now = b.tab.validUntil(h) - tc.early
			tc.giveUp(b, s, h)
			n := 0
			for _, x := range b.out.Notices {
				if x.Kind == NoticeLost && x.Reason == protocol.LostExpired && !x.Released {
					n++
				}
			}
			st := b.tab.stats[0]
			if st.Lost[protocol.LostExpired] != tc.lost || n != int(tc.lost) || st.Holds != 0 {
				t.Errorf("%d losses counted, %d logged, %d holds", st.Lost[protocol.LostExpired], n,
					st.Holds)
			}
			for cause, n := range st.Releases {
				if want := tc.lost == 0 && Cause(cause) == tc.ended; (n == 1) != want || n > 1 {
					t.Errorf("%d releases of cause %d", n, cause)
				}
			}
			for _, m := range b.take() {
				if m.Re.ID == 99 && m.Code != tc.answer {
					t.Errorf("the answer is %d", m.Code)
				}
			}
			if b.ops[0].Kind != OpRelease {
				t.Errorf("asked of the store: %v", kinds(b.ops))
			}
		})
	}
}
