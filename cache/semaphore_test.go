package cache

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// permitOf makes acquires of a permit of so many.
func permitOf(limit uint32, wait int64) func(*Acquire) {
	return func(q *Acquire) { q.Mode, q.Limit, q.Wait = Permit, limit, wait }
}

// takeOps takes all ops that are out, which have to be of these kinds.
func (b *bench) takeOps(want ...OpKind) []Op {
	b.t.Helper()
	ops := b.ops
	b.ops = nil
	var got []OpKind
	for _, op := range ops {
		if op.Mode != Permit || op.Key != "k" {
			b.t.Fatalf("%+v", op)
		}
		got = append(got, op.Kind)
	}
	if !slices.Equal(got, want) {
		b.t.Fatalf("asked of the store: %v, want %v", got, want)
	}
	return ops
}

// grantPermit answers op and returns the fence of the one grant.
func (b *bench) grantPermit(op Op, base uint64) Message {
	b.t.Helper()
	return b.only(b.answer(op, Result{Status: Granted, Base: base}), MsgGranted, protocol.OK)
}

func TestEachAcquireTakesAPermit(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	for range 3 { // of one owner, too
		b.acquire(s, "k", permitOf(2, Forever))
	}
	ops := b.takeOps(OpJoin, OpJoin) // the third cannot have one as well
	if ops[0].Token == ops[1].Token || ops[0].Limit != 2 {
		t.Fatalf("%+v", ops)
	}
	f1, f2 := b.grantPermit(ops[0], 5).Fence, b.grantPermit(ops[1], 6).Fence
	if f1 == f2 || s.Holds.Load() != 2 || s.Waiters.Load() != 1 {
		t.Fatalf("fences %d and %d, %d holds, %d waiters", f1, f2, s.Holds.Load(), s.Waiters.Load())
	}
	// A release hands the permit over: its fence is new, and the store is not asked.
	ms := b.release(s, "k", f1)
	b.takeOps()
	if len(ms) != 2 || ms[0].Kind != MsgGranted || ms[0].Fence <= f1 || ms[1].Kind != MsgReleased {
		t.Fatalf("%+v", ms)
	}
	b.only(b.release(s, "k", f1), MsgFailed, protocol.NotHeld)
	for _, f := range []uint64{f2, ms[0].Fence} {
		b.release(s, "k", f)
		b.only(b.answer(b.takeOps(OpRelease)[0], Result{Status: Done}), MsgReleased, protocol.OK)
	}
	if b.tab.Len() != 0 || b.tab.Users(b.ns.Store) != 0 || b.tab.timers.Len() != 0 {
		t.Errorf("left: %d keys, %d leases", b.tab.Len(), b.tab.Users(b.ns.Store))
	}
}

func TestTheFirstWaiterGetsWhicheverPermitComesFirst(t *testing.T) {
	b := newBench(t, nil)
	first, second := b.session(), b.session()
	b.acquire(first, "k", permitOf(5, Forever))
	b.acquire(second, "k", permitOf(5, Forever))
	ops := b.takeOps(OpJoin, OpJoin)
	b.answer(ops[0], Result{Status: Queued})
	if m := b.grantPermit(ops[1], 9); m.Re.Session != first {
		t.Error("the second came in first")
	}
	// The first one's place is the second one's now; when that one gives up, it goes.
	b.tab.EndWaits(second, b.now, &b.out)
	b.take()
	b.answer(b.takeOps(OpWithdraw)[0], Result{Status: Done})
	b.takeOps()
	// the permit and the semaphore
	if held := b.tab.Held(); held != 1 || b.tab.Users(b.ns.Store) != 2 {
		t.Errorf("%d held", held)
	}
}

func TestAPlaceThatIsNotNeededAnyMoreIsGivenUp(t *testing.T) {
	b := newBench(t, nil)
	s, w := b.session(), b.session()
	b.acquire(s, "k", permitOf(2, Forever))
	f := b.grantPermit(b.takeOps(OpJoin)[0], 3).Fence
	b.acquire(w, "k", permitOf(2, Forever))
	b.answer(b.takeOps(OpJoin)[0], Result{Status: Queued}) // other hosts have the other one
	if ms := b.release(s, "k", f); ms[0].Kind != MsgGranted || ms[0].Re.Session != w {
		t.Fatalf("%+v", ms)
	}
	b.takeOps(OpWithdraw)
}

func TestTriesOfAPermit(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", permitOf(2, 0))
	b.acquire(s, "k", permitOf(2, 0))
	ops := b.takeOps(OpTry, OpTry)
	b.only(b.acquire(s, "k", permitOf(2, 0)), MsgFailed, protocol.Busy) // two stand before it
	b.grantPermit(ops[0], 3)
	b.only(b.answer(ops[1], Result{Status: Busy, Left: 7}), MsgFailed, protocol.Busy)
	b.takeOps()
	b.acquire(s, "k", permitOf(2, Forever))
	b.answer(b.takeOps(OpJoin)[0], Result{Status: Queued})
	// the store is known to be full
	b.only(b.acquire(s, "k", permitOf(2, 0)), MsgFailed, protocol.Busy)
}

func TestAPermitIsLostAlone(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	var fences []uint64
	for n := range 3 {
		b.acquire(s, "k", permitOf(3, Forever))
		fences = append(fences, b.grantPermit(b.takeOps(OpJoin)[0], 10+uint64(n)).Fence)
	}
	b.tab.Hint(b.ns.Store, Hint{Kind: HintGone, Mode: Permit, Key: "k", Token: 2}, b.now, &b.out)
	b.take()
	m := b.only(b.answer(b.takeOps(OpRenew)[0], Result{Status: NotHeld}), MsgLost, protocol.OK)
	if m.Fence != fences[1] || m.Key != "k" || m.Reason != protocol.LostGone {
		t.Errorf("%+v", m)
	}
	if n := s.Holds.Load(); n != 2 {
		t.Errorf("%d are held", n)
	}
	b.tab.EndSession(s, 10, b.now, &b.out)
	b.take()
	b.takeOps(OpRelease, OpRelease)
}

func TestALoweredLimitIsReachedByReleases(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	var fences []uint64
	for n := range 3 {
		b.acquire(s, "k", permitOf(3, Forever))
		fences = append(fences, b.grantPermit(b.takeOps(OpJoin)[0], 10+uint64(n)).Fence)
	}
	b.acquire(s, "k", permitOf(1, Forever))
	b.takeOps()
	for _, f := range fences[:2] {
		b.release(s, "k", f) // no handoff: that would be one permit too many
		b.answer(b.takeOps(OpRelease)[0], Result{Status: Done})
	}
	if ms := b.release(s, "k", fences[2]); ms[0].Kind != MsgGranted {
		t.Errorf("%+v", ms)
	}
}

func TestASemaphoreAndALockShareAKeyAndNothingElse(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", waits)
	lock := b.granted(OpJoin, 4)
	b.acquire(s, "k", permitOf(1, Forever))
	permit := b.grantPermit(b.takeOps(OpJoin)[0], 5).Fence
	rows := b.tab.Rows(nil, "", "", 10, b.now, func(string) bool { return true })
	if len(rows) != 2 || rows[0].Mode != Exclusive || rows[0].Fence != lock ||
		rows[1].Mode != Permit || rows[1].Fence != permit || rows[1].Holders != 1 {
		t.Errorf("%+v", rows)
	}
	if more := b.tab.Rows(nil, "", rows[0].Place(), 10, b.now,
		func(string) bool { return true }); len(more) != 1 || more[0].Mode != Permit {
		t.Errorf("after the lock come %+v", more)
	}
	if !b.tab.Knows(b.ns.Store, "k", 2) {
		t.Error("the permit's token is not known")
	}
	b.only(b.downgrade(s, "k", permit), MsgFailed, protocol.Invalid)
	b.release(s, "k", permit)
	b.takeOps(OpRelease)
	b.release(s, "k", lock)
	if op := b.op(OpRelease); op.Mode != Exclusive {
		t.Errorf("%+v", op)
	}
}

func (b *bench) downgrade(s *Session, key string, fence uint64) []Message {
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s}, Key: []byte(key), Fence: fence}, b.now,
		&b.out)
	return b.take()
}

func TestPermitsOfAStoreThatIsDown(t *testing.T) {
	b := newBench(t, func(c *setup) { c.Local, c.LocalAfter = true, 0 })
	s := b.session()
	b.acquire(s, "k", permitOf(1, Forever))
	f := b.grantPermit(b.takeOps(OpJoin)[0], 4).Fence
	b.acquire(s, "k", permitOf(1, Forever))
	b.tab.StoreDown(b.ns.Store, errDowngrade, b.now, &b.out)
	b.take()
	// The host grants no permit alone, even if the namespace allows that for locks. It hands off the
	// permit that it has.
	b.only(b.acquire(s, "l", permitOf(1, Forever)), MsgFailed, protocol.Unavailable)
	if ms := b.release(s, "k", f); len(ms) != 2 || ms[0].Kind != MsgGranted || ms[0].Fence == 0 {
		t.Fatalf("%+v", ms)
	}
	b.takeOps()
}

func TestInspectASemaphore(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	look := func() []Message {
		b.tab.Inspect(Request{Session: s}, b.ns, []byte("k"), Permit, b.now, &b.out)
		return b.take()
	}
	look()
	if m := b.only(b.answer(b.takeOps(OpPeek)[0], Result{Status: Busy, Left: 9}), MsgInspected,
		protocol.OK); m.Held != 2 || m.Mode != Permit || m.Left != 9 {
		t.Errorf("%+v", m)
	}
	if b.tab.Len() != 0 {
		t.Error("it is not forgotten")
	}
	b.acquire(s, "k", permitOf(2, Forever))
	b.grantPermit(b.takeOps(OpJoin)[0], 4)
	if m := b.only(look(), MsgInspected, protocol.OK); m.Held != 1 || m.Holders != 1 ||
		m.Mode != Permit {
		t.Errorf("%+v", m)
	}
}

// TestRandomPermits lets sessions loose on one semaphore of a store that is a model,
// and looks at what is left.
func TestRandomPermits(t *testing.T) {
	for seed := range uint64(200) {
		randomPermits(t, rand.New(rand.NewPCG(seed, 3)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func randomPermits(t *testing.T, rnd *rand.Rand) {
	const limit = 3
	b := newBench(t, nil)
	var ss []*Session
	for range 4 {
		ss = append(ss, b.session())
	}
	type held struct {
		s     *Session
		fence uint64
	}
	var holds []held
	taken := map[uint64]bool{} // at the store
	foreign, base := 0, uint64(0)
	hear := func(ms []Message) {
		for _, m := range ms {
			switch m.Kind {
			case MsgGranted:
				if slices.ContainsFunc(holds, func(h held) bool { return h.fence == m.Fence }) {
					t.Errorf("fence %d twice", m.Fence)
				}
				holds = append(holds, held{m.Re.Session, m.Fence})
			case MsgLost:
				t.Errorf("lost: %+v", m)
			}
		}
		if len(holds) > len(taken) {
			t.Errorf("%d hold %d permits", len(holds), len(taken))
		}
	}
	answer := func() {
		i := rnd.IntN(len(b.ops))
		op := b.ops[i]
		b.ops = slices.Delete(b.ops, i, i+1)
		r := Result{Status: Done}
		switch op.Kind {
		case OpTry, OpJoin:
			free := taken[op.Token] || len(taken)+foreign < limit
			switch {
			case rnd.IntN(10) == 0:
				r = Result{Status: Refused, Err: errDowngrade}
			case free:
				base++
				taken[op.Token] = true
				if r = (Result{Status: Granted, Base: base}); rnd.IntN(10) == 0 {
					r = Result{Status: Unknown, Err: errDowngrade}
				}
			case op.Kind == OpJoin:
				r.Status = Queued
			default:
				r.Status = Busy
			}
		case OpRelease, OpWithdraw:
			delete(taken, op.Token)
		}
		hear(b.answer(op, r))
	}
	step := func(ended bool) {
		switch s := ss[rnd.IntN(len(ss))]; {
		case !ended && rnd.IntN(3) == 0:
			hear(b.acquire(s, "k", permitOf(limit, []int64{0, Forever,
				int64(time.Second)}[rnd.IntN(3)])))
		case len(holds) > 0 && rnd.IntN(3) == 0:
			i := rnd.IntN(len(holds))
			h := holds[i]
			holds = slices.Delete(holds, i, i+1)
			hear(b.release(h.s, "k", h.fence))
		case len(b.ops) > 0 && rnd.IntN(2) == 0:
			answer()
		case rnd.IntN(4) == 0:
			foreign = rnd.IntN(limit)
			foreign = min(foreign, limit-len(taken))
		default:
			b.now += int64(time.Duration(rnd.IntN(200)) * time.Millisecond)
			hear(b.renewAll())
			b.tab.Tick(b.now, 100, &b.out)
			hear(b.take())
		}
	}
	for range 300 {
		step(false)
	}
	foreign = 0
	for n := 0; n < 5000 && (b.tab.Len() > 0 || len(b.ops) > 0); n++ {
		step(true)
	}
	if b.tab.Len() != 0 || len(taken) != 0 || b.tab.Users(b.ns.Store) != 0 {
		t.Errorf("left: %d keys, %d at the store, %d leases, %d ops, %d holds", b.tab.Len(),
			len(taken), b.tab.Users(b.ns.Store), len(b.ops), len(holds))
	}
	for _, s := range ss {
		if s.Holds.Load()+s.Waiters.Load() != 0 {
			t.Errorf("a session has %d holds and %d waiters", s.Holds.Load(), s.Waiters.Load())
		}
	}
}

// renewAll renews every lease at once, in place of the watchdog.
func (b *bench) renewAll() (ms []Message) {
	for _, l := range b.tab.sorted() {
		if l.state != stateHeld {
			continue
		}
		b.tab.RenewDue(l, l.token, b.now, &b.out)
		for i := 0; i < len(b.out.Ops); i++ {
			if op := b.out.Ops[i]; op.Kind == OpRenew {
				b.out.Ops = slices.Delete(b.out.Ops, i, i+1)
				b.tab.Result(&op, &Result{Status: Done}, b.now, b.now, &b.out)
			}
		}
	}
	return b.take()
}
