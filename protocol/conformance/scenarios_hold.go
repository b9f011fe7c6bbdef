package conformance

import (
	"fmt"
	"math"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// Section 8: holding.
var holdScenarios = []Scenario{
	{"exclusive", "8 Holding",
		"one session excludes another; try, timeout, and a wait that is granted", nil, exclusive},
	{"owners", "8 Holding",
		"owners of one session exclude each other", []string{"owners", "concurrent"}, owners},
	{"re-entry", "8 Holding",
		"an owner that acquires a key again must release it as often; the fence stays",
		[]string{"reentrant"}, reentry},
	{"own-count", "9 Validity",
		"the client counts re-entries by its own acquires, in whatever order the replies come",
		[]string{"reentrant", "concurrent"}, ownCount},
	{"release-ends-all", "10 Requests (release)",
		"after a release is answered not_held nothing of the hold is left, whatever its count",
		[]string{"reentrant"}, releaseEndsAll},
	{"shared", "8 Holding",
		"shared holders hold at the same time, and exclude an exclusive one",
		[]string{"shared"}, shared},
	{"upgrade", "8 Holding",
		"shared to exclusive is refused at once, and the shared hold stays",
		[]string{"shared", "reentrant"}, upgrade},
	{"downgrade", "8 Holding",
		"a downgrade from exclusive to shared lets readers in, and no writer",
		[]string{"shared", "downgrade"}, downgrade},
	{"fences-rise", "8 Holding", "fences are positive and rise from holder to holder",
		nil, fencesRise},
	{"late-release", "8 Holding",
		"a release with the fence of an earlier hold frees nothing", nil, lateRelease},
	{"release-not-held", "8 Holding",
		"releasing a key that is not held is the error not_held", nil, releaseNotHeld},
	{"degraded", "8 Holding", "a grant without a fence is a grant", nil, degraded},
	{"fixed", "8 Holding", "a fixed hold ends by itself", []string{"fixed", "ttl"}, fixed},
	{"end-keeps", "9 Validity",
		"the end of a fixed hold never moves back, in whatever order the replies to two renewals " +
			"come",
		[]string{"fixed", "ttl", "renew", "concurrent"}, endKeeps},
	{"fixed-renewed", "8 Holding",
		"a fixed hold that is renewed ends later", []string{"fixed", "ttl", "renew"}, fixedRenewed},
}

func exclusive(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	first := p.acquire("k", "nobody has it")
	t.acquire(want{key: "k"}).fails("busy")
	t.mustNotHold("k", first, "it was busy")
	t.timesOut(func() *pending { return t.acquire(want{key: "k", wait: soon.Milliseconds()}) })
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
		t.failf("after the handoff the second owner holds, and the first does not")
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

// ownCount answers acquires of one owner in reverse order, so that the last count that the client
// reads is the smallest.
func ownCount(t *T) {
	const n = 3
	f := t.fake()
	t.connect().ok()
	var ps []*pending
	var qs []asked
	for range n {
		ps = append(ps, t.acquire(want{key: "k", wait: -1}))
	}
	granted := 0
	give := func() {
		for i, q := range slices.Backward(qs) {
			g := f.grant(3)
			g.Count = uint64(granted + i + 1)
			q.give(g)
		}
		granted, qs = granted+len(qs), nil
	}
	qs = append(qs, f.expectAcquire("k"))
	// The client may delay the others until the first is answered.
	f.barrierWith(func(q asked) { qs = append(qs, q) })
	waits := func(p *pending) bool { return !p.done() }
	for give(); slices.ContainsFunc(ps, waits); give() {
		t.poll("the answers to acquires of a key that the owner holds", func() bool {
			f.each(func(q asked) { qs = append(qs, q) })
			return len(qs) > 0 || !slices.ContainsFunc(ps, waits)
		})
	}
	for _, p := range ps {
		if got := p.fence(); got != 3 {
			t.failf("the fence of a re-entry is %v; the hold's is 3", got)
		}
	}
	for left := n - 1; left >= 0; left-- {
		p := t.release("k", 3)
		t.poll(p.what, func() bool {
			f.each(func(q asked) {
				if q.Op != protocol.OpRelease || string(q.Key) != "k" || q.Fence != 3 {
					t.failf("the client was told to release %q with the fence 3, but sent op %d "+
						"for %q with the fence %d",
						"k", q.Op, q.Key, q.Fence)
				}
				q.c.answer(q.ID, protocol.AppendReleased(nil, q.ID, uint64(left)))
			})
			return p.done()
		})
		p.ok()
		if held := t.held("k", 3); held != (left > 0) {
			t.failf("acquired %d times and released %d times, the client says held: %v",
				n, n-left, held)
		}
	}
}

// releaseEndsAll answers a release of one of two counts with not_held.
func releaseEndsAll(t *T) {
	f := t.fake()
	t.connect().ok()
	_, fence := f.hold(want{key: "k"}, f.grant(3))
	f.deepen("k", fence, 2)
	for range 2 { // a client that counts by itself may send only the last release
		p := t.release("k", fence)
		sent := false
		t.poll(p.what, func() bool {
			f.each(func(q asked) {
				sent = sent || q.Op == protocol.OpRelease
				t.answerRelease(q, protocol.NotHeld)
			})
			return p.done()
		})
		if sent {
			p.fails("not_held")
			t.mustNotHold("k", fence, "a release of it was answered not_held")
			return
		}
		p.ok()
	}
	t.failf("the client has released a hold that it acquired twice, but has sent no release to " +
		"the daemon")
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
	// If the client is too slow, the hold is over when the client reads the grant.
	for ttl := int64(600); !q.answer().OK && ttl < 10_000; ttl *= 2 {
		q = acquire(ttl)
	}
	f := q.fence()
	p.free("k", "its time is over")
	t.mustNotHold("k", f, "another session has had it since")
	t.told("k", f, "fixed_end")
	t.release("k", f).fails("not_held")
}

func fixedRenewed(t *T) {
	f := t.fake()
	t.connect().ok()
	f.strays = true
	for left := uint64(1000); ; left *= 2 {
		key := fmt.Sprint("k", left)
		g := f.grant(left)
		acquire := t.acquire(want{key: key, ttl: int64(left), fixed: true})
		f.last = f.expectAcquire(key)
		g.End = f.now() + left
		f.last.give(g)
		if a := acquire.answer(); !a.OK && !early(g.End) {
			continue // too slow: the hold ended before the client read its grant
		}
		fence := acquire.fence()
		if q := f.last; q.Flags != protocol.FlagFixed || q.TTL != left {
			t.failf("the client was told to acquire with ttl %d, fixed, and asked for ttl %d and "+
				"the flags %d", left, q.TTL, q.Flags)
		}
		p := t.renew(key, fence, farAway)
		var q asked
		t.poll("the renewal", func() bool {
			f.each(func(next asked) {
				if q.c == nil && (next.Op != protocol.OpRelease || string(next.Key) == key) {
					q = next
				} else {
					// the client releases a hold that has ended: the round was too slow
					next.refuse(protocol.NotHeld)
				}
			})
			return q.c != nil || p.done()
		})
		if q.c == nil && p.fails("not_held") != "" && !early(g.End) {
			continue // too slow: the hold has ended before the renewal
		}
		// Too slow: the client has noticed that the hold has ended.
		if q.c != nil && q.Op == protocol.OpRelease && !early(g.End) {
			q.refuse(protocol.NotHeld)
			p.answer()
			continue
		}
		if q.Op != protocol.OpRenew || string(q.Key) != key || q.Fence != uint64(fence) ||
			q.TTL != farAway {
			t.failf("the client was told to renew %q with ttl %d, and sent op %d for %q with ttl "+
				"%d", key, farAway, q.Op, q.Key, q.TTL)
		}
		if !early(g.End) {
			q.refuse(protocol.NotHeld)
			p.answer()
			continue
		}
		later := f.grant(uint64(fence))
		later.End = later.Deadline
		q.give(later)
		a := p.answer()
		if !early(g.End) {
			continue // too slow: the hold may have ended before the client read the reply
		}
		if !a.OK {
			t.failf("a renewal that was granted is the error %q", a.Error)
		}
		t.after(g.End)
		t.mustHold(key, fence, "after its first end, renewed before")
		return
	}
}

// endKeeps answers two renewals in reverse order. The earlier end must not replace the later one.
func endKeeps(t *T) {
	f := t.fake()
	t.connect().ok()
	f.strays = true
	for left := uint64(short); ; left *= 2 {
		key := fmt.Sprint("k", left)
		g := f.grant(3)
		g.End = f.now() + left
		p := t.acquire(want{key: key, ttl: int64(left), fixed: true})
		f.expectAcquire(key).give(g)
		if !p.answer().OK && !early(g.End) {
			continue // too slow
		}
		p.ok()
		one, two := t.renew(key, 3, farAway), t.renew(key, 3, int64(left))
		far := f.grant(3)
		far.End = far.Deadline
		var first asked
		t.poll("the renewals", func() bool {
			f.each(func(q asked) {
				switch {
				case q.Op != protocol.OpRenew: // too slow: the client releases a hold that has ended
					q.released()
				case q.TTL == farAway && !two.done():
					first = q // until the other one is answered
				default:
					q.give(far)
				}
			})
			if first.c != nil && (two.done() || !early(g.End)) {
				near := f.grant(3)
				near.End = g.End
				first.give(near)
				first.c = nil
			}
			return one.done() && two.done()
		})
		if !early(g.End) {
			continue // too slow: the hold may have ended before the client read the replies
		}
		one.ok()
		two.ok()
		t.after(g.End)
		t.mustHold(key, 3, "one of two renewals has moved its end far away; the reply to the other came later")
		return
	}
}
