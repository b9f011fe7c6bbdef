package cache

import (
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const ms = int64(time.Millisecond)

func lingering(x *setup) {
	x.Namespace.Linger, x.Namespace.LingerPause = 2*time.Second,
		30*time.Second
}

// use has key acquired and released, and says what the store was asked for.
func (b *bench) use(s *Session, key string, base uint64) (asked []string) {
	b.t.Helper()
	var fence uint64
	answer := func(m []Message) {
		for len(b.ops) > 0 {
			op := b.ops[0]
			b.ops = b.ops[1:]
			asked = append(asked, fmt.Sprint(op.Kind))
			r := Result{Status: Done}
			if op.Kind == OpJoin || op.Kind == OpTry {
				r = Result{Status: Granted, Base: base}
			}
			m = append(m, b.answer(op, r)...)
		}
		for _, x := range m {
			switch x.Kind {
			case MsgGranted:
				fence = x.Fence
			case MsgReleased:
			default:
				b.t.Fatalf("%+v", x)
			}
		}
	}
	answer(b.acquire(s, key, waits))
	answer(b.release(s, key, fence))
	return asked
}

func (b *bench) uses(s *Session, key string, base uint64, want ...string) {
	b.t.Helper()
	if got := b.use(s, key, base); fmt.Sprint(got) != fmt.Sprint(want) {
		b.t.Fatalf("the store was asked for %v, want %v", got, want)
	}
}

// habitual has key used until its lease lingers.
func (b *bench) habitual(s *Session, key string) {
	b.t.Helper()
	b.uses(s, key, 5, "join", "release")
	b.now += 100 * ms
	b.uses(s, key, 6, "join")
}

func TestALeaseLingersByItsKeysOwnPast(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	b.habitual(s, "k")
	for range 5 {
		b.now += second
		b.uses(s, "k", 0)
	}
	if n := b.tab.Held(); n != 1 {
		t.Fatalf("%d leases held", n)
	}
	b.tick(2*time.Second - 1)
	if len(b.ops) != 0 {
		t.Fatalf("given up too early: %v", kinds(b.ops))
	}
	b.tick(1)
	b.answer(b.op(OpRelease), Result{Status: Done})
	if b.tab.Len() != 0 {
		t.Fatal("the key is still known")
	}
	b.now += 100 * second // it is used again, but not in time
	b.uses(s, "k", 7, "join")
	b.tick(2 * time.Second)
	b.answer(b.op(OpRelease), Result{Status: Done})
}

func TestLingeringRaisesTheFence(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	b.habitual(s, "k")
	last := uint64(0)
	for range 2 * maxHandoff {
		f := b.only(b.acquire(s, "k", waits), MsgGranted, 0).Fence
		if f <= last {
			t.Fatalf("fence %d after %d", f, last)
		}
		last = f
		b.release(s, "k", f)
		for len(b.ops) > 0 {
			b.answer(b.op(OpRenew), Result{Status: Done, Base: last>>handoffBits + 1})
		}
		b.now += ms
	}
}

func TestWantedEndsLingering(t *testing.T) {
	for _, kind := range []HintKind{HintContended, HintTried} {
		b := newBench(t, lingering)
		s := b.session()
		b.habitual(s, "k")
		b.tab.Hint(b.ns.Store, Hint{Kind: kind, Key: "k"}, b.now, &b.out)
		b.take()
		b.answer(b.op(OpRelease), Result{Status: Done})
		for i := range uint64(20) {
			b.uses(s, "k", 7+i, "join", "release") // not again for 30 s
			b.now += second
		}
		b.now += 11 * second
		b.uses(s, "k", 50, "join")
	}
}

func TestWantedWhileHeldMeansNoLingering(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	b.habitual(s, "k")
	f := b.only(b.acquire(s, "k", waits), MsgGranted, 0).Fence
	b.tab.Hint(b.ns.Store, Hint{Kind: HintTried, Key: "k"}, b.now, &b.out)
	if b.take(); len(b.ops) != 0 {
		t.Fatal("a try of another host ends a hold")
	}
	b.release(s, "k", f)
	b.answer(b.op(OpRelease), Result{Status: Done})
}

func TestTriedDoesNotBoundHandoffs(t *testing.T) {
	b := newBench(t, func(x *setup) { lingering(x); x.MaxHandoffs = 1 })
	s, o := b.session(), b.session()
	b.habitual(s, "k")
	f := b.only(b.acquire(s, "k", waits), MsgGranted, 0).Fence
	b.tab.Hint(b.ns.Store, Hint{Kind: HintTried, Key: "k"}, b.now, &b.out)
	for range 10 {
		b.acquire(o, "k", waits)
		m := b.release(s, "k", f)
		if len(m) != 2 || m[0].Kind != MsgGranted {
			t.Fatalf("%+v, asked %v", m, kinds(b.ops))
		}
		f, s, o = m[0].Fence, o, s
	}
}

func TestOtherWaysOutOfLingering(t *testing.T) {
	for name, c := range map[string]struct {
		do    func(b *bench)
		asked string
	}{
		// a reader fits in
		"another mode": {func(b *bench) { b.acquire(b.session(), "k", shared) }, "[]"},
		"store down": {func(b *bench) {
			b.tab.StoreDown(b.ns.Store, nil, b.now, &b.out)
			b.tab.Tick(b.now, 9, &b.out)
			b.take()
		}, "[]"},
		"drain": {func(b *bench) { b.tab.EndLinger(b.now, &b.out); b.take() }, "[release]"},
		"gone upstream": {func(b *bench) {
			b.tab.Hint(b.ns.Store, Hint{Kind: HintGone, Key: "k"},
				b.now, &b.out)
			b.take()
		}, "[renew]"},
	} {
		b := newBench(t, lingering)
		b.habitual(b.session(), "k")
		c.do(b)
		if got := fmt.Sprint(kinds(b.ops)); got != c.asked {
			t.Errorf("%s: the store was asked for %v, want %v", name, got, c.asked)
		}
	}
}

func TestAForgottenHabitGivesTheLeaseUp(t *testing.T) {
	b := newBench(t, func(x *setup) { lingering(x); x.Habits = 2 })
	s := b.session()
	b.habitual(s, "a")
	b.habitual(s, "b")
	b.uses(s, "c", 9, "join", "release", "release") // the second is a's
	if b.tab.Held() != 1 {
		t.Fatalf("%d leases held", b.tab.Held())
	}
	b.uses(s, "b", 0)
}

func TestALingeringLeaseIsRenewedAndStillEndsInTime(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	b.habitual(s, "k")
	l := b.tab.locks["k"].lease()
	if !l.tracked {
		t.Fatal("the watchdog does not know it")
	}
	b.now += second
	b.tab.RenewDue(l, l.token, b.now, &b.out)
	b.take()
	b.answer(b.op(OpRenew), Result{Status: Done})
	b.tick(time.Second)
	b.answer(b.op(OpRelease), Result{Status: Done})
}

func TestKeysOfNoHabitDoNotLinger(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	for i := range uint64(50) {
		b.uses(s, fmt.Sprint(i), 5+i, "join", "release")
	}
	for i := range uint64(5) { // nor one that comes again too late
		b.now += 10 * second
		b.uses(s, "slow", 100+i, "join", "release")
	}
}

func TestATryWaitsAMomentForALingeringLease(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	if m := b.acquire(s, "k", nil); len(m) != 0 {
		t.Fatalf("%+v", m)
	}
	op := b.op(OpJoin)
	if !op.ShortLived {
		t.Fatal("the queue entry is not short-lived")
	}
	if m := b.answer(op, Result{Status: Queued, Left: second}); len(m) != 0 {
		t.Fatalf("%+v", m)
	}
	b.only(b.acquire(b.session(), "k", nil), MsgFailed, protocol.Busy) // one stands before it
	if m := b.tick(minTryWait - 1); len(m) != 0 {
		t.Fatalf("%+v", m)
	}
	b.only(b.tick(1), MsgFailed, protocol.Busy)
	b.answer(b.op(OpWithdraw), Result{Status: Done})
	if b.tab.Len() != 0 {
		t.Fatal("the key is still known")
	}

	b.acquire(s, "k", nil)
	b.answer(b.op(OpJoin), Result{Status: Queued})
	b.tab.Hint(b.ns.Store, Hint{Kind: HintAvailable, Key: "k"}, b.now, &b.out)
	b.take()
	b.granted(OpJoin, 8)
}

func TestAWaiterTakesNoBriefPlace(t *testing.T) {
	b := newBench(t, lingering)
	b.acquire(b.session(), "k", nil)
	b.answer(b.op(OpJoin), Result{Status: Queued})
	b.acquire(b.session(), "k", waits)
	b.answer(b.op(OpWithdraw), Result{Status: Done})
	op := b.op(OpJoin)
	if op.ShortLived {
		t.Fatal("the queue entry is short-lived")
	}
	if m := b.answer(op, Result{Status: Queued}); len(m) != 1 || m[0].Code != protocol.Busy {
		t.Fatalf("%+v", m)
	}
}

func TestSlowStoresGiveHandoffsMoreTime(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", waits)
	op := b.op(OpJoin)
	sent := b.now
	b.now += 100 * ms
	b.tab.Result(&op, &Result{Status: Granted, Base: 5, Contended: true}, sent, b.now, &b.out)
	f := b.take()[0].Fence
	b.acquire(o, "k", waits)
	b.now += 400 * ms // more than 50 ms, less than five trips
	if m := b.release(s, "k", f); len(m) != 2 || m[0].Kind != MsgGranted {
		t.Fatalf("%+v", m)
	}
}

// A lingering lease is used again after a reload has disabled linger: the table forgets the time at
// which the lease would have stopped lingering.
func TestALeaseThatIsUsedAgainWithoutLingerDoesNotKeepWakingTheTable(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	b.habitual(s, "k")
	l := b.tab.locks["k"].lease()
	if l == nil || l.idleUntil() == 0 {
		t.Fatal("the lease does not linger")
	}
	to := *b.ns
	to.Linger = 0
	b.ns = &to // the routes have changed, and this table has not been rerouted yet
	m := b.acquire(s, "k", nil)[0]
	if m.Kind != MsgGranted {
		t.Fatalf("%+v", m)
	}
	b.tab.Reroute(func(string) *Namespace { return &to }, anybody, b.now, &b.out)
	b.take()
	b.now += 3 * second
	n := 0
	for ; n < 1000 && b.tab.NextWake() <= b.now; n++ {
		b.tab.Tick(b.now, 1, &b.out)
		b.now++
	}
	b.take()
	if n == 1000 {
		t.Errorf("the held lease wakes the table every nanosecond: idleUntil %d, now %d",
			l.idleUntil(), b.now)
	}
}

// A lease that lingers has no holder, and an inspection does not have to wait for its end.
func TestAnInspectionFindsALingeringKeyFree(t *testing.T) {
	b := newBench(t, lingering)
	s := b.session()
	b.habitual(s, "k")
	b.tab.Inspect(Request{Session: s, ID: 7}, b.ns, []byte("k"), Exclusive, b.now, &b.out)
	ms := b.take()
	if len(ms) != 1 || ms[0].Kind != MsgInspected || ms[0].Re.ID != 7 || ms[0].Held != 0 ||
		ms[0].Holders != 0 {
		t.Fatalf("got %+v, want the key to be free", ms)
	}
	b.uses(s, "k", 7)
}
