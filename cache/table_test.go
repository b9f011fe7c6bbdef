package cache

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

const second = int64(time.Second)

// bench is a table under test: events go in, what comes out is taken apart.
type bench struct {
	t   *testing.T
	tab *Table
	ns  *Namespace
	now int64
	out Effects
	id  uint64
	ops []Op // asked and not answered
}

// setup is what a test may change of it.
type setup struct {
	*Config
	*StoreTraits
	*Namespace
}

func newBench(t *testing.T, change func(*setup)) *bench {
	c := DefaultConfig()
	st := &StoreTraits{Rebase: true, Queue: true}
	ns := &Namespace{Store: st, MaxHandoffs: 8, MaxHandoffTime: 50 * time.Millisecond}
	if change != nil {
		change(&setup{&c, st, ns})
	}
	return &bench{t: t, tab: New(c), ns: ns, now: 1000 * second}
}

// take empties the effects; ops are kept for answer.
func (b *bench) take() []Message {
	ms := append([]Message(nil), b.out.Messages...)
	b.ops = append(b.ops, b.out.Ops...)
	b.out.Reset()
	return ms
}

func (b *bench) session() *Session { b.id++; return NewSession(b.id, 1) }

func (b *bench) acquire(s *Session, key string, change func(*Acquire)) []Message {
	b.id++
	q := Acquire{Re: Request{Session: s, ID: b.id}, NS: b.ns, Key: []byte(key), TTL: 30 * second}
	if change != nil {
		change(&q)
	}
	b.tab.Acquire(&q, b.now, &b.out)
	return b.take()
}

func waits(q *Acquire) { q.Wait = Forever }

func shared(q *Acquire) { q.Mode, q.Wait = Shared, Forever }

func (b *bench) release(s *Session, key string, fence uint64) []Message {
	b.id++
	b.tab.Release(&Release{Re: Request{Session: s, ID: b.id}, Key: []byte(key), Fence: fence},
		b.now, &b.out)
	return b.take()
}

// op takes the one op that is out.
func (b *bench) op(kind OpKind) Op {
	b.t.Helper()
	if len(b.ops) != 1 || b.ops[0].Kind != kind {
		b.t.Fatalf("asked of the store: %v, want one %v", kinds(b.ops), kind)
	}
	op := b.ops[0]
	b.ops = nil
	return op
}

func kinds(ops []Op) (ks []string) {
	for _, o := range ops {
		ks = append(ks, fmt.Sprint(o.Kind))
	}
	return ks
}

func (b *bench) answer(op Op, r Result) []Message {
	b.tab.Result(&op, &r, b.now, b.now, &b.out)
	return b.take()
}

// granted answers the ask that is out and returns the fence of the one hold.
func (b *bench) granted(kind OpKind, base uint64) uint64 {
	b.t.Helper()
	ms := b.answer(b.op(kind), Result{Status: Granted, Base: base})
	if len(ms) != 1 || ms[0].Kind != MsgGranted {
		b.t.Fatalf("%+v", ms)
	}
	return ms[0].Fence
}

func (b *bench) only(ms []Message, k MessageKind, c protocol.Code) Message {
	b.t.Helper()
	if len(ms) != 1 || ms[0].Kind != k || ms[0].Code != c {
		b.t.Fatalf("%+v, want one of kind %d, code %d", ms, k, c)
	}
	return ms[0]
}

func (b *bench) tick(d time.Duration) []Message {
	b.now += int64(d)
	for b.tab.NextWake() <= b.now {
		b.tab.Tick(b.now, 100, &b.out)
	}
	return b.take()
}

func (b *bench) empty() {
	b.t.Helper()
	if b.tab.Len() != 0 || b.tab.NextWake() != Forever || b.tab.Held() != 0 {
		b.t.Fatalf("left behind: %d keys, %d held, next wake %d", b.tab.Len(), b.tab.Held(),
			b.tab.NextWake())
	}
}

func TestDeadlineCountsFromTheSendAndNotFromTheReply(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	op := b.op(OpTry)
	sent := b.now
	b.now += 5 * second // the answer took its time
	b.tab.Result(&op, &Result{Status: Granted, Base: 7}, sent, b.now, &b.out)
	m := b.only(b.take(), MsgGranted, protocol.OK)
	if want := LeaseDeadline(sent, 30*second); m.Until != want {
		t.Fatalf("valid until %d, want %d", m.Until, want)
	}
}

func TestAGrantThatCameTooLateIsNoGrant(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	op := b.op(OpTry)
	sent := b.now
	b.now += 31 * second
	b.tab.Result(&op, &Result{Status: Granted, Base: 7}, sent, b.now, &b.out)
	if ms := b.take(); len(ms) != 0 {
		t.Fatalf("%+v", ms)
	}
	b.answer(b.op(OpRelease), Result{Status: Done}) // after the release, the key is tried again
	b.granted(OpTry, 8)
}

func TestAnAmbiguousAskIsRepeatedUnderItsTokenAndOwedWhenNobodyWaits(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", waits)
	first := b.op(OpJoin)
	if ms := b.answer(first, Result{Status: Unknown}); len(ms) != 0 {
		t.Fatalf("a waiter was answered: %+v", ms)
	}
	b.tick(time.Second)
	again := b.op(OpJoin)
	if again.Token != first.Token {
		t.Fatal("asked again under another token")
	}
	b.answer(again, Result{Status: Unknown})
	b.tab.EndWaits(s, b.now, &b.out)
	b.take()
	w := b.op(OpWithdraw)
	if w.Token != first.Token {
		t.Fatal("withdrew another token")
	}
	// Nobody may ask under a new token before that is settled.
	b.acquire(b.session(), "k", waits)
	if len(b.ops) != 0 {
		t.Fatalf("asked %v beside a pending release", kinds(b.ops))
	}
	b.answer(w, Result{Status: Unknown})
	b.tick(time.Second)
	w = b.op(OpWithdraw)
	b.answer(w, Result{Status: Done})
	if j := b.op(OpJoin); j.Token == first.Token {
		t.Fatal("the token was used again")
	}
}

func TestAReleaseThatIsNotAnsweredIsUnknownAndRepeated(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	if ms := b.release(s, "k", f); len(ms) != 0 {
		t.Fatalf("answered before the store has: %+v", ms)
	}
	b.only(b.answer(b.op(OpRelease), Result{Status: Unknown, Err: errors.New("cut")}), MsgFailed,
		protocol.Unknown)
	b.tick(time.Second)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}

func TestADebtEndsWithItsTTLWhateverTheStoreDoes(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.release(s, "k", f)
	for range 200 {
		for _, op := range b.ops {
			b.ops = nil
			b.answer(op, Result{Status: Unknown})
		}
		b.tick(time.Second)
	}
	b.empty()
}

func TestTheLastHoldsReleaseHandsOverWithoutTheStore(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.acquire(o, "k", waits)
	ms := b.release(s, "k", f)
	if len(ms) != 2 || ms[0].Kind != MsgGranted || ms[0].Fence != f+1 || ms[1].Kind != MsgReleased {
		t.Fatalf("%+v", ms)
	}
	if len(b.ops) != 0 {
		t.Fatalf("asked %v", kinds(b.ops))
	}
}

func TestAHandoffThatCannotGiveAThirdRenewsFirst(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.acquire(o, "k", waits)
	b.tick(21 * time.Second)
	b.only(b.release(s, "k", f), MsgReleased, protocol.OK)
	renew := b.op(OpRenew)
	m := b.only(b.answer(renew, Result{Status: Done}), MsgGranted, protocol.OK)
	if want := LeaseDeadline(b.now, 30*second); m.Until < want {
		t.Fatalf("granted until %d, want %d", m.Until, want)
	}
}

func TestNothingIsHandedOverAfterTheDeadline(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.acquire(o, "k", waits)
	b.now += 30 * second // no timer has run
	ms := b.release(s, "k", f)
	if len(ms) != 2 || ms[0].Kind != MsgLost || ms[1].Code != protocol.NotHeld {
		t.Fatalf("%+v", ms)
	}
	b.answer(b.op(OpRelease), Result{Status: NotHeld})
	b.granted(OpJoin, 8)
}

func TestReentryAfterTheDeadlineIsNone(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	b.granted(OpTry, 7)
	b.now += 30 * second
	b.only(b.acquire(s, "k", nil), MsgLost, 0)
}

func TestHandoffsEndSoonAfterAnotherHostWantsTheKey(t *testing.T) {
	b := newBench(t, func(c *setup) { c.MaxHandoffs = 3 })
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	for range 10 {
		b.acquire(b.session(), "k", waits)
	}
	b.tab.Hint(b.ns.Store, Hint{Kind: HintContended, Key: "k"}, b.now, &b.out)
	for n := range 3 {
		ms := b.release(s, "k", f)
		if ms[0].Kind != MsgGranted {
			t.Fatalf("handoff %d: %+v", n, ms)
		}
		s, f = ms[0].Re.Session, ms[0].Fence
	}
	if ms := b.release(s, "k", f); len(ms) != 0 {
		t.Fatalf("a handoff too many: %+v", ms)
	}
	b.only(b.answer(b.op(OpRelease), Result{Status: Done}), MsgReleased, protocol.OK)
	b.op(OpJoin) // and this host queues behind
}

func TestANewBaseIsFetchedBeforeHandoffsRunOut(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	renewals := 0
	for range 3000 {
		o := b.session()
		b.acquire(o, "k", waits)
		ms := b.release(s, "k", f)
		if ms[0].Kind != MsgGranted || ms[0].Fence <= f {
			t.Fatalf("after %d: %+v", f, ms)
		}
		s, f = o, ms[0].Fence
		for _, op := range b.ops {
			if op.Kind != OpRenew || !op.Rebase {
				t.Fatalf("asked %v", op.Kind)
			}
			renewals++
			b.ops = nil
			b.answer(op, Result{Status: Done, Base: 100 + uint64(renewals)})
		}
	}
	if renewals != 3000/handoffRebase {
		t.Fatalf("%d new bases for 3000 handoffs", renewals)
	}
}

func TestUsedUpFencesWaitForABase(t *testing.T) {
	for _, rebase := range []bool{true, false} {
		b := newBench(t, func(c *setup) { c.Rebase = rebase })
		s := b.session()
		b.acquire(s, "k", nil)
		f := b.granted(OpTry, 7)
		for range maxHandoff {
			o := b.session()
			b.acquire(o, "k", waits)
			ms := b.release(s, "k", f)
			s, f = o, ms[0].Fence
		}
		o := b.session()
		b.acquire(o, "k", waits)
		ms := b.release(s, "k", f)
		if rebase {
			b.only(ms, MsgReleased, protocol.OK)
			m := b.only(b.answer(b.op(OpRenew), Result{Status: Done, Base: 9}), MsgGranted,
				protocol.OK)
			if m.Fence != 9<<handoffBits {
				t.Fatalf("fence %d", m.Fence)
			}
		} else {
			b.only(b.answer(b.op(OpRelease), Result{Status: Done}), MsgReleased, protocol.OK)
			if got := b.granted(OpJoin, 9); got <= f {
				t.Fatalf("fence %d after %d", got, f)
			}
		}
	}
}

func TestReadersShareOneLeaseAndOneFence(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", shared)
	op := b.op(OpJoin)
	if op.Mode != Shared {
		t.Fatal(op.Mode)
	}
	f := b.answer(op, Result{Status: Granted, Base: 7})[0].Fence
	m := b.only(b.acquire(o, "k", shared), MsgGranted, protocol.OK)
	if m.Fence != f {
		t.Fatalf("fences %d and %d of one phase", f, m.Fence)
	}
	b.only(b.release(s, "k", f), MsgReleased, protocol.OK)
	b.release(o, "k", f)
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}

// The simulator checks the order across hosts. This test fails first if waitQueue has another one.
func TestWaitersAreServedInOrderOfArrival(t *testing.T) {
	b := newBench(t, nil)
	holder := b.session()
	b.acquire(holder, "k", nil)
	fence := b.granted(OpTry, 7)
	change := [...]func(*Acquire){shared, shared, waits, shared, waits}
	var waiter [len(change)]*Session
	for i := range waiter {
		waiter[i] = b.session()
		if ms := b.acquire(waiter[i], "k", change[i]); len(ms) != 0 {
			t.Fatalf("waiter %d: %+v", i, ms)
		}
	}
	ms := b.release(holder, "k", fence)
	// Each stage has the waiters that hold together. A reader does not overtake a writer.
	for _, stage := range [][]int{{0, 1}, {2}, {3}, {4}} {
		var got []*Session
		for _, m := range ms {
			if m.Kind == MsgGranted {
				got, fence = append(got, m.Re.Session), m.Fence
			}
		}
		for i, n := range stage {
			if len(got) != len(stage) || got[i] != waiter[n] {
				t.Fatalf("granted %d holds, want those of waiters %v, in order", len(got), stage)
			}
		}
		if stage[0] < 4 { // a writer waits
			b.only(b.acquire(b.session(), "k", func(q *Acquire) { q.Mode = Shared }), MsgFailed,
				protocol.Busy)
		}
		for _, n := range stage {
			ms = b.release(waiter[n], "k", fence)
		}
	}
}

func TestADowngradeIsAnsweredAtOnceAndMadeTrueUpstream(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 99}, Key: []byte("k"), Fence: f}, b.now,
		&b.out)
	b.only(b.take(), MsgGranted, protocol.OK)
	op := b.op(OpDowngrade)
	m := b.only(b.acquire(o, "k", shared), MsgGranted, protocol.OK)
	if m.Fence <= f {
		t.Fatalf("reader %d, writer before it %d", m.Fence, f)
	}
	// A renewal in flight that finds the exclusive shape gone says nothing.
	b.answer(op, Result{Status: Unknown})
	b.tick(100 * time.Millisecond)
	b.answer(b.op(OpDowngrade), Result{Status: Done})
	b.release(s, "k", f)
	b.release(o, "k", m.Fence)
	if r := b.op(OpRelease); r.Mode != Shared {
		t.Fatalf("released as %v", r.Mode)
	}
}

func TestALeaseThatTheStoreForgotIsLostAtOnce(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	b.granted(OpTry, 7)
	l := b.tab.locks["k"].lease()
	b.tab.RenewDue(l, l.token, b.now, &b.out)
	b.take()
	m := b.only(b.answer(b.op(OpRenew), Result{Status: NotHeld}), MsgLost, 0)
	if m.Reason != protocol.LostGone {
		t.Fatal(m.Reason)
	}
	b.empty()
}

func TestARenewalThatCrossesTheReleaseChangesNothing(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", nil)
	f := b.granted(OpTry, 7)
	l := b.tab.locks["k"].lease()
	b.tab.RenewDue(l, l.token, b.now, &b.out)
	b.take()
	renew := b.op(OpRenew)
	b.release(s, "k", f)
	rel := b.op(OpRelease)
	b.answer(rel, Result{Status: Done})
	b.acquire(s, "k", nil)
	b.granted(OpTry, 8)
	if ms := b.answer(renew, Result{Status: NotHeld}); len(ms) != 0 {
		t.Fatalf("%+v", ms)
	}
}

func TestTriesEndAtOnceWhenTheStoreFailsAndWaitersOutlastAGrace(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", waits)
	b.answer(b.op(OpJoin), Result{Status: Refused, Err: errors.New("down")})
	b.only(b.acquire(s, "k", func(q *Acquire) { q.Owner = 2 }), MsgFailed, protocol.Unavailable)
	var ended []Message
	for n := 0; len(ended) == 0; n++ {
		if n > 100 {
			t.Fatal("the waiter hangs")
		}
		ended = b.tick(200 * time.Millisecond)
		for _, op := range b.ops {
			b.ops = nil
			ended = append(ended, b.answer(op, Result{Status: Refused, Err: errors.New("down")})...)
		}
	}
	b.only(ended, MsgFailed, protocol.Unavailable)
	b.empty()
}

func TestAQueuedDaemonAsksAgainByPollAndByHint(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", waits)
	op := b.op(OpJoin)
	b.answer(op, Result{Status: Queued})
	b.tick(700 * time.Millisecond)
	again := b.op(OpJoin)
	if again.Token != op.Token {
		t.Fatal("the place in the queue was given up")
	}
	b.answer(again, Result{Status: Queued})
	b.tab.Hint(b.ns.Store, Hint{Kind: HintAvailable, Key: "k"}, b.now, &b.out)
	b.take()
	b.granted(OpJoin, 9)
}

func TestASessionsEndTouchesOnlyWhatIsItsOwn(t *testing.T) {
	b := newBench(t, nil)
	s, o := b.session(), b.session()
	for n := range 10 {
		b.acquire(s, fmt.Sprint("s", n), nil)
		b.granted(OpTry, 7)
		b.acquire(o, fmt.Sprint("o", n), nil)
		b.granted(OpTry, 7)
	}
	b.acquire(s, "o1", waits)
	s.Ended.Store(true)
	for more := true; more; {
		_, more = b.tab.EndSession(s, 3, b.now, &b.out)
	}
	b.take()
	for _, op := range b.ops {
		if op.Kind != OpRelease || op.Key[0] != 's' {
			t.Fatalf("%v of %q", op.Kind, op.Key)
		}
	}
	if len(b.ops) != 10 || s.Holds.Load() != 0 || s.Waiters.Load() != 0 || o.Holds.Load() != 10 {
		t.Fatal(len(b.ops), s.Holds.Load(), s.Waiters.Load(), o.Holds.Load())
	}
	b.only(b.acquire(s, "late", nil), MsgFailed, protocol.Draining)
}

func TestManyReadersAreFoundByAnIndex(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.Mode = Shared })
	f := b.answer(b.op(OpTry), Result{Status: Granted, Base: 7})[0].Fence
	for n := range uint64(100) {
		b.only(b.acquire(s, "k", func(q *Acquire) { q.Mode, q.Owner = Shared, n+1 }), MsgGranted,
			protocol.OK)
	}
	for n := range uint64(101) {
		b.tab.Release(&Release{Re: Request{Session: s, ID: 1}, Key: []byte("k"), Owner: n,
			Fence: f}, b.now, &b.out)
	}
	b.take()
	b.answer(b.op(OpRelease), Result{Status: Done})
	b.empty()
}

func TestFixedHoldsEndByThemselvesAndAreNotRenewed(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.Fixed, q.TTL = true, 10*second })
	b.granted(OpTry, 7)
	if b.tab.locks["k"].tracked {
		t.Fatal("the watchdog keeps a fixed hold")
	}
	m := b.only(b.tick(11*time.Second), MsgLost, 0)
	if m.Reason != protocol.LostFixed {
		t.Fatal(m.Reason)
	}
}

// If several ends have passed, the earliest one gives the reason, however late it is noticed.
func TestWhatEndsAHold(t *testing.T) {
	for name, c := range map[string]struct {
		fixed bool
		ttl   time.Duration
		want  protocol.Reason
	}{
		"the longest hold":                 {false, 30 * time.Second, protocol.LostTooLong},
		"its own end":                      {true, 10 * time.Second, protocol.LostFixed},
		"the longest hold, before its own": {true, 30 * time.Second, protocol.LostTooLong},
	} {
		for _, late := range []time.Duration{0, 10 * time.Second} {
			b := newBench(t, func(c *setup) { c.Namespace.MaxHold = 11 * time.Second })
			b.acquire(b.session(), "k", func(q *Acquire) { q.Fixed, q.TTL = c.fixed, int64(c.ttl) })
			b.granted(OpTry, 7)
			if m := b.only(b.tick(min(c.ttl, 11*time.Second)+late), MsgLost,
				0); m.Reason != c.want {
				t.Errorf("%s, %v late: %d, want %d", name, late, m.Reason, c.want)
			}
		}
	}
}

func TestSessionStoresExpireTogether(t *testing.T) {
	b := newBench(t, func(c *setup) { c.Session, c.SessionTTL = true, 10*time.Second })
	s := b.session()
	until := b.now + 10*second
	for n := range 5 {
		b.acquire(s, fmt.Sprint("k", n), nil)
		m := b.answer(b.op(OpTry), Result{Status: Granted, Base: 7, Session: until, SessionNo: 1})
		if b.only(m, MsgGranted, protocol.OK).Until != until {
			t.Fatal(m)
		}
	}
	b.tab.SessionUntil(b.ns.Store, 1, until+5*second, b.now, &b.out)
	if ms := b.tick(11 * time.Second); len(ms) != 0 {
		t.Fatalf("%+v", ms)
	}
	if ms := b.tick(5 * time.Second); len(ms) != 5 || ms[0].Kind != MsgLost {
		t.Fatalf("%+v", ms)
	}
}

// A daemon that was frozen past its session's deadline may hear of the next
// session before its own timer.
func TestSessionThatGoesOnRevivesNothing(t *testing.T) {
	b := newBench(t, func(c *setup) { c.Session, c.SessionTTL = true, 10*time.Second })
	until := b.now + 10*second
	b.acquire(b.session(), "k", nil)
	b.only(b.answer(b.op(OpTry), Result{Status: Granted, Base: 7, Session: until, SessionNo: 1}),
		MsgGranted, protocol.OK)
	b.now = until
	b.tab.SessionUntil(b.ns.Store, 1, until+10*second, b.now, &b.out)
	if m := b.only(b.take(), MsgLost, 0); m.Reason != protocol.LostExpired {
		t.Fatal(m.Reason)
	}
	b.op(OpRelease)
}

// A renewal's answer that comes when even the time that it has bought is over
// grants nothing any more.
func TestRenewalAnsweredTooLateIsLost(t *testing.T) {
	b := newBench(t, nil)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL = 2 * second })
	g := b.only(b.answer(b.op(OpTry), Result{Status: Granted, Base: 7}), MsgGranted, protocol.OK)
	b.id++
	b.tab.Renew(&Renew{Re: Request{Session: s, ID: b.id}, Key: []byte("k"), Fence: g.Fence}, b.now,
		&b.out)
	b.take()
	op, sent := b.op(OpRenew), b.now
	b.now += 3 * second
	b.tab.Result(&op, &Result{Status: Done}, sent, b.now, &b.out)
	ms := b.take()
	if len(ms) != 2 || ms[0].Kind != MsgLost || ms[1].Kind != MsgFailed ||
		ms[1].Code != protocol.NotHeld {
		t.Fatalf("%+v", ms)
	}
}

// A daemon that was frozen past its deadline may read the answer to a renewal before its own
// timer. It proves nothing of the time between: a late ask may have had the lease granted anew
// to the same token, after another host has held the key.
func TestARenewalRevivesNothing(t *testing.T) {
	for _, kind := range []OpKind{OpRenew, OpDowngrade} {
		b := newBench(t, nil)
		s := b.session()
		b.acquire(s, "k", func(q *Acquire) { q.TTL = 3 * second })
		f := b.granted(OpTry, 7)
		b.now += 2 * second
		if kind == OpRenew {
			l := b.tab.locks["k"].lease()
			b.tab.RenewDue(l, l.token, b.now, &b.out)
		} else {
			b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 99}, Key: []byte("k"), Fence: f},
				b.now, &b.out)
		}
		b.take()
		op, sent := b.op(kind), b.now
		b.now += 2 * second
		b.tab.Result(&op, &Result{Status: Done}, sent, b.now, &b.out)
		if m := b.only(b.take(), MsgLost, 0); m.Reason != protocol.LostExpired {
			t.Fatal(kind, m.Reason)
		}
		b.op(OpRelease)
	}
}

func TestALeaseThatMayHaveBeenRemovedIsLookedAt(t *testing.T) {
	for name, change := range map[string]func(*setup){
		"with a TTL": nil,
		"of the session": func(c *setup) {
			c.Session, c.SessionTTL, c.Store.Rebase = true,
				10*time.Second, false
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, change)
			s := b.session()
			b.acquire(s, "k", nil)
			r := Result{Status: Granted, Base: 7}
			if b.ns.Store.Session {
				r.Session, r.SessionNo = b.now+10*second, 1
			}
			b.answer(b.op(OpTry), r)
			gone := func() []Message {
				b.tab.Hint(b.ns.Store, Hint{Kind: HintGone, Key: "k"}, b.now, &b.out)
				return b.take()
			}
			gone()
			b.answer(b.op(OpRenew), Result{Status: Done}) // the hint was wrong
			gone()
			gone() // doubled
			b.answer(b.op(OpRenew), Result{Status: Unknown, Err: errors.New("no answer")})
			if b.ns.Store.Session {
				b.tick(time.Second) // asked again
			} else {
				gone()
				b.tick(time.Second)
			}
			m := b.only(b.answer(b.op(OpRenew), Result{Status: NotHeld}), MsgLost, protocol.OK)
			if m.Reason != protocol.LostGone {
				t.Error(m.Reason)
			}
		})
	}
}

func TestAnAnswerOfAnEndedSessionIsWorthNothing(t *testing.T) {
	b := newBench(t, func(c *setup) {
		c.Session, c.SessionTTL, c.Store.Rebase = true,
			10*time.Second, false
	})
	s := b.session()
	b.acquire(s, "k", waits)
	old := b.op(OpJoin)
	b.acquire(s, "l", waits)
	b.answer(b.op(OpJoin), Result{Status: Granted, Base: 3, Session: b.now + 10*second,
		SessionNo: 1})
	// The session ends, and the next one begins: what was held is lost.
	b.tab.SessionLost(b.ns.Store, 1, b.now, &b.out)
	if m := b.only(b.take(), MsgLost, protocol.OK); m.Reason != protocol.LostSession {
		t.Error(m.Reason)
	}
	b.tab.SessionUntil(b.ns.Store, 2, b.now+10*second, b.now, &b.out)
	// Then the answer of before arrives.
	if ms := b.answer(old, Result{Status: Granted, Base: 7, Session: b.now + 9*second,
		SessionNo: 1}); len(ms) != 0 {
		t.Fatalf("it counts: %+v", ms)
	}
	b.tick(time.Second)
	b.only(b.answer(b.op(OpJoin), Result{Status: Granted, Base: 8, Session: b.now + 10*second,
		SessionNo: 2}), MsgGranted, protocol.OK)
	// A result of a later session is the first that is heard of it.
	b.acquire(s, "m", waits)
	ms := b.answer(b.op(OpJoin), Result{Status: Granted, Base: 9, Session: b.now + 10*second,
		SessionNo: 3})
	if len(ms) != 2 || ms[0].Kind != MsgLost || ms[0].Key != "k" || ms[1].Kind != MsgGranted {
		t.Errorf("%+v", ms)
	}
}

// A hint may overtake the answer that makes sense of it.
func TestHintsThatComeTooEarlyCount(t *testing.T) {
	for _, c := range []struct {
		hint   HintKind
		answer Status
	}{{HintAvailable, Queued}, {HintContended, Granted}} {
		b := newBench(t, func(x *setup) { x.MaxHandoffs = 1 })
		s, o := b.session(), b.session()
		b.acquire(s, "k", waits)
		op := b.op(OpJoin)
		b.tab.Hint(b.ns.Store, Hint{Kind: c.hint, Key: "k"}, b.now, &b.out)
		if b.take(); len(b.ops) != 0 {
			t.Fatalf("asked %v while an ask is under way", kinds(b.ops))
		}
		m := b.answer(op, Result{Status: c.answer, Base: 5})
		if c.answer == Queued {
			b.granted(OpJoin, 6) // asked for again at once
			continue
		}
		f := m[0].Fence
		b.acquire(o, "k", waits)
		f = b.release(s, "k", f)[0].Fence // the one handoff that is left
		b.acquire(s, "k", waits)
		b.release(o, "k", f)
		b.op(OpRelease)
	}
}
