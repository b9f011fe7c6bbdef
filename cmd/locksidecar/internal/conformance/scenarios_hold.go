package conformance

import (
	"fmt"
	"math"

	"github.com/locksidecar/locksidecar/protocol"
)

// Section 8: holding.
var holdScenarios = []Scenario{
	{"exclusive", "8 Holding", "one session excludes another; try, timeout, and a wait that is granted", nil, exclusive},
	{"owners", "8 Holding", "owners of one session exclude each other", []string{"owners", "concurrent"}, owners},
	{"re-entry", "8 Holding", "an owner that acquires again releases as often, with one fence", []string{"reentrant"}, reentry},
	{"shared", "8 Holding", "shared holders hold together, and against an exclusive one", []string{"shared"}, shared},
	{"upgrade", "8 Holding", "shared to exclusive is refused at once, and the shared hold stays", []string{"shared", "reentrant"}, upgrade},
	{"downgrade", "8 Holding", "exclusive to shared lets others in, without letting go", []string{"shared", "downgrade"}, downgrade},
	{"fences-rise", "8 Holding", "fences are positive and rise from holder to holder", nil, fencesRise},
	{"late-release", "8 Holding", "a release with the fence of a hold before frees nothing", nil, lateRelease},
	{"release-not-held", "8 Holding", "releasing what is not held is the error not_held", nil, releaseNotHeld},
	{"degraded", "8 Holding", "a grant without a fence is a grant", nil, degraded},
	{"fixed", "8 Holding", "a fixed hold ends by itself", []string{"fixed", "ttl"}, fixed},
	{"fixed-renewed", "8 Holding", "a fixed hold that is renewed ends later", []string{"fixed", "ttl", "renew"}, fixedRenewed},
	{"lost", "11 Pushes", "a hold that is called lost is over, whatever the reason", nil, lost},
	{"lost-released", "11 Pushes", "a release of a hold that was called lost is not_held", nil, lostReleased},
}

func exclusive(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	first := p.acquire("k", "nobody has it")
	t.acquire(want{key: "k"}).fails("busy")
	t.mustNotHold("k", first, "it was busy")
	t.acquire(want{key: "k", wait: soon.Milliseconds()}).fails("timeout")
	t.mustNotHold("k", first, "the wait ran out")
	p.waiters("k", 0)
	w := t.acquire(want{key: "k", wait: -1})
	p.waiters("k", 1)
	if w.done() {
		t.failf("the client says that it has what another session holds")
	}
	p.release("k", first)
	f := w.fence()
	if f <= first {
		t.failf("the fence %v comes after %v", f, first)
	}
	p.excluded("k", "the client holds it")
	t.mustHold("k", f, "after the grant")
	w2 := make(chan Fence, 1)
	go func() {
		g, _ := p.c.Acquire(t.ctx, acquireForever("k"))
		w2 <- Fence(g.Fence)
	}()
	p.waiters("k", 1)
	t.release("k", f).ok()
	if g := <-w2; g <= f {
		t.failf("another session did not get what the client has released")
	}
	t.mustNotHold("k", f, "after its release")
}

func owners(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	one := t.acquire(want{key: "k", owner: 1}).fence()
	t.acquire(want{key: "k", owner: 2}).fails("busy")
	w := t.acquire(want{key: "k", owner: 2, wait: -1})
	p.waiters("k", 1)
	if t.heldAs(2, "k", one) {
		t.failf("the second owner believes that it holds what the first does")
	}
	t.releaseAs(2, "k", one).fails("not_held")
	t.mustHold("k", one, "after another owner's release of it")
	t.release("k", one).ok()
	two := w.fence()
	if two <= one {
		t.failf("the second owner's fence %v is not larger than the first's %v", two, one)
	}
	if t.held("k", one) || !t.heldAs(2, "k", two) {
		t.failf("after the hand-over the second owner holds, and the first does not")
	}
	p.excluded("k", "the second owner holds it")
	t.releaseAs(2, "k", two).ok()
	p.free("k", "both have released")
}

func reentry(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "k"}).fence()
	for range 2 {
		if g := t.acquire(want{key: "k", wait: -1}).fence(); g != f {
			t.failf("the fence of a re-entry is %v, and of the hold %v", g, f)
		}
	}
	for range 2 {
		t.mustHold("k", f, "it has acquired more often than released")
		t.release("k", f).ok()
		p.excluded("k", "the client has acquired more often than released")
	}
	t.mustHold("k", f, "one count is left")
	t.release("k", f).ok()
	t.mustNotHold("k", f, "after the last release")
	t.release("k", f).fails("not_held")
	p.free("k", "the client has released all")
}

func shared(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	theirs, err := p.try("k", true)
	t.must(err)
	ours := t.acquire(want{key: "k", shared: true}).fence()
	t.mustHold("k", ours, "after a shared grant")
	p.release("k", theirs)
	p.excluded("k", "the client holds it shared")
	if theirs, err = p.try("k", true); err != nil {
		t.failf("another session may not share with the client: %v", err)
	}
	p.release("k", theirs)
	t.release("k", ours).ok()
	theirs = p.acquire("k", "the client has released")
	t.acquire(want{key: "k", shared: true}).fails("busy")
	p.release("k", theirs)
}

func upgrade(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "k", shared: true}).fence()
	t.acquire(want{key: "k", wait: -1}).fails("upgrade")
	t.mustHold("k", f, "after a refused upgrade")
	p.excluded("k", "the client still holds it shared")
	t.release("k", f).ok()
	p.free("k", "the client has released it")
}

func downgrade(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "k"}).fence()
	if _, err := p.try("k", true); err == nil {
		t.failf("another session shares what the client holds exclusively")
	}
	down := func() {
		a := t.send(Command{"do": "downgrade", "key": "k", "owner": 1, "fence": f}).ok()
		if a.Fence != nil && *a.Fence != f {
			t.failf("the fence %v has become %v by a downgrade", f, *a.Fence)
		}
		t.mustHold("k", f, "after a downgrade")
	}
	down()
	theirs, err := p.try("k", true)
	if err != nil {
		t.failf("another session may not share what was downgraded: %v", err)
	}
	p.release("k", theirs)
	p.excluded("k", "the client still holds it shared")
	t.release("k", f).ok()
	p.free("k", "the client has released it")
	t.send(Command{"do": "downgrade", "key": "k", "owner": 1, "fence": f}).fails("not_held")
}

func fencesRise(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	last := Fence(0)
	for range 10 {
		ours := t.acquire(want{key: "k", wait: -1}).fence()
		t.release("k", ours).ok()
		theirs := p.acquire("k", "the client has released")
		p.release("k", theirs)
		if ours <= last || theirs <= ours || uint64(theirs) > math.MaxInt64 {
			t.failf("the fences %v, %v, %v do not rise", last, ours, theirs)
		}
		last = theirs
	}
}

func lateRelease(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	old := t.acquire(want{key: "k"}).fence()
	t.release("k", old).ok()
	f := t.acquire(want{key: "k"}).fence()
	if f <= old {
		t.failf("the fences %v and %v do not rise", old, f)
	}
	t.release("k", old).fails("not_held")
	t.mustHold("k", f, "after a release with an old fence")
	p.excluded("k", "a release with an old fence frees nothing")
	t.release("k", f).ok()
	p.free("k", "the client has released it")
}

func releaseNotHeld(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	t.release("never", 5).fails("not_held")
	theirs := p.acquire("k", "nobody has it")
	t.release("k", theirs).fails("not_held")
	p.excluded2("k", theirs)
	p.release("k", theirs)
	f := t.acquire(want{key: "l"}).fence()
	t.release("l", f).ok()
	t.release("l", f).fails("not_held")
}

func degraded(t *T) {
	f := t.fake()
	t.connect().ok()
	g := f.grant(0)
	g.Flags = protocol.GrantDegraded
	q, none := f.hold(want{key: "k"}, g)
	t.mustHold("k", none, "after a degraded grant")
	f.letGo("k", none)
	t.mustNotHold("k", none, "after its release")
	q, none = f.hold(want{key: "k"}, g)
	q.c.send(protocol.AppendLost(nil, "k", q.Owner, 0, protocol.LostExpired))
	t.parts("k", none, "it was called lost")
}

func fixed(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	acquire := func(ttl int64) *pending { return t.acquire(want{key: "k", ttl: ttl, fixed: true}) }
	q := acquire(300)
	for ttl := int64(600); !q.answer().OK && ttl < 10_000; ttl *= 2 { // too slow: it was over when it was read
		q = acquire(ttl)
	}
	f := q.fence()
	p.free("k", "its time is over")
	t.mustNotHold("k", f, "another session has had it since")
	t.told("k", f, "fixed_end", "silence")
	t.release("k", f).fails("not_held")
}

func fixedRenewed(t *T) {
	f := t.fake()
	t.connect().ok()
	for left := uint64(1000); ; left *= 2 {
		key := fmt.Sprint("k", left)
		g := f.grant(left)
		g.End = f.now() + left
		_, fence := f.hold(want{key: key, ttl: int64(left), fixed: true}, g)
		if q := f.last; q.Flags != protocol.FlagFixed || q.TTL != left {
			t.failf("the client was told to acquire with ttl %d, fixed, and asked for ttl %d and the flags %d", left, q.TTL, q.Flags)
		}
		p := t.renew(key, fence, farAway)
		var q asked
		t.poll("the renewal", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.queue) > 0 {
				q, f.queue = f.queue[0], f.queue[1:]
				return true
			}
			return p.done()
		})
		if q.c == nil && p.fails("not_held") != "" && bootMillis() >= g.End {
			continue // too slow: the hold has ended before the renewal
		}
		if q.Op != protocol.OpRenew || string(q.Key) != key || q.Fence != uint64(fence) || q.TTL != farAway {
			t.failf("the client was told to renew %q with ttl %d, and sent op %d for %q with ttl %d", key, farAway, q.Op, q.Key, q.TTL)
		}
		if f.now() >= g.End-200 {
			q.refuse(protocol.NotHeld)
			p.answer()
			continue
		}
		later := f.grant(uint64(fence))
		later.End = later.Deadline
		q.give(later)
		if a := p.answer(); !a.OK {
			if bootMillis() < g.End {
				t.failf("a renewal that was granted is the error %q", a.Error)
			}
			continue
		}
		t.after(g.End)
		t.mustHold(key, fence, "after its first end, renewed before")
		return
	}
}

var reasons = []protocol.Reason{protocol.LostExpired, protocol.LostGone, protocol.LostFixed, protocol.LostForced,
	protocol.LostSession, protocol.LostShutdown, protocol.LostTooLong, protocol.LostSilent}

func lost(t *T) {
	f := t.fake()
	t.connect().ok()
	for i, reason := range reasons {
		key := reason.String()
		q, fence := f.hold(want{key: key}, f.grant(uint64(10+i)))
		q.c.send(protocol.AppendLost(nil, key, q.Owner, uint64(fence), reason))
		f.barrier()
		t.mustNotHold(key, fence, "it was called lost ("+key+")")
		t.told(key, fence, key)
		f.putDown(key, fence)
		// A later hold of the key is another.
		_, again := f.hold(want{key: key}, f.grant(uint64(fence)+100))
		t.mustHold(key, again, "acquired again after a loss")
		t.mustNotHold(key, fence, "lost, and acquired again")
	}
}

func lostReleased(t *T) {
	f := t.fake()
	t.connect().ok()
	q, fence := f.hold(want{key: "k"}, f.grant(3))
	q.c.send(protocol.AppendLost(nil, "k", q.Owner, 3, protocol.LostForced))
	f.barrier()
	f.putDown("k", fence)
}
