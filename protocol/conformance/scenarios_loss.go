package conformance

import (
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// Sections 8, 9 and 11: lost holds, until their owner has released them.
var lossScenarios = []Scenario{
	{"lost", "11 Pushes", "a lost push ends its hold, whatever the reason", nil, lost},
	{"lost-released", "11 Pushes", "the release of a lost hold is the error not_held",
		nil, lostReleased},
	{"lost-of-owners", "11 Pushes",
		"a lost push ends the hold of the owner that it names, and of no other owner",
		[]string{"owners", "shared"}, lostOfOwners},
	{"lost-re-entry", "8 Holding",
		"an owner that has lost a key cannot acquire it again before it has released it",
		[]string{"reentrant"}, lostReentry},
	{"lost-in-flight", "8 Holding",
		"an acquire that is in flight when its owner loses the key is refused, and its grant is " +
			"given back",
		[]string{"reentrant", "concurrent"}, lostInFlight},
	{"forced-released", "11 Pushes",
		"the release of a forced hold is sent to the daemon, but only when its holder lets go",
		nil, forcedReleased},
	{"expired-released", "9 Validity",
		"a hold whose validity ran out, and a grant that came too late, are released at the " +
			"daemon; the release of the hold is the error not_held",
		nil, expiredReleased},
	{"expired-stays-lost", "9 Validity",
		"a hold whose validity ran out stays lost once it was asked for, whatever the daemon " +
			"states afterwards",
		nil, expiredStaysLost},
	{"fixed-end", "8 Holding",
		"the end of a fixed hold is called fixed_end, whether the client or the daemon notices it",
		[]string{"fixed", "ttl"}, fixedEnd},
	{"longest-hold", "8 Holding",
		"the end of a hold that is not fixed is called too_long, whether the client or the " +
			"daemon notices it",
		nil, longestHold},
}

var reasons = []protocol.Reason{protocol.LostExpired, protocol.LostGone, protocol.LostFixed,
	protocol.LostForced,
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
		f.releaseLost(key, fence)
		// A later hold of the key is a different hold.
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
	f.releaseLost("k", fence)
}

func lostOfOwners(t *T) {
	f := t.fake()
	t.connect().ok()
	one, a := f.hold(want{key: "k", owner: 1, shared: true}, f.grant(3))
	// Readers that hold at the same time share a fence.
	two, b := f.hold(want{key: "k", owner: 2, shared: true}, f.grant(3))
	if one.Owner == two.Owner {
		t.failf("two owners have the number %d", one.Owner)
	}
	two.c.send(protocol.AppendLost(nil, "k", two.Owner, 3, protocol.LostGone))
	f.barrier()
	if t.heldAs(2, "k", b) {
		t.failf("the second owner's hold was called lost, but the client still reports it as held")
	}
	t.mustHold("k", a, "another owner's hold of the same key and fence was called lost")
	f.letGo("k", a)
}

// lostReentry ends holds in each possible way, and has their owner acquire the key again.
func lostReentry(t *T) {
	f := t.fake()
	t.connect().ok()
	answer := protocol.NotHeld // to the release of a lost hold
	again := func(key string, fence Fence, how string, names ...string) {
		p := t.acquire(want{key: key, wait: -1})
		// The client must not ask the daemon: a new grant would be a second critical section inside
		// the first.
		f.barrierWith(func(q asked) {
			if q.Op == protocol.OpAcquire && string(q.Key) == key {
				t.failf("%s: its owner has not released it, but the client asks the daemon for "+
					"it again", how)
			}
			f.t.answerRelease(q, answer)
		})
		p.fails(names...)
		f.releaseLostAs(answer, key, fence, names...)
		_, fresh := f.hold(want{key: key}, f.grant(uint64(fence)+1))
		t.mustHold(key, fresh, how+", released and acquired anew")
		f.letGo(key, fresh)
	}
	for i, reason := range []protocol.Reason{protocol.LostExpired, protocol.LostForced,
		protocol.LostGone} {
		key := reason.String()
		q, fence := f.hold(want{key: key}, f.grant(uint64(10+2*i)))
		q.c.send(protocol.AppendLost(nil, key, q.Owner, uint64(fence), reason))
		f.barrier()
		again(key, fence, "it was called lost ("+key+")", "not_held")
	}
	_, fence, until := f.shortHold("silence", 20)
	t.after(until)
	answer = protocol.OK // the daemon may still have it
	again("silence", fence, "its validity has run out", "not_held")
	answer, f.strays = protocol.NotHeld, false

	q, fence := f.hold(want{key: "connection"}, f.grant(30))
	_ = q.c.nc.Close()
	t.parts("connection", fence, "the connection has ended")
	t.connect().ok()
	again("connection", fence, "its connection has ended", "not_held", "closed")
}

// lostInFlight ends holds while their owner acquires the key again.
func lostInFlight(t *T) {
	f := t.fake()
	t.connect().ok()
	f.strays = true
	for _, push := range []bool{true, false} {
		for left := uint64(short); !f.lostInFlight(push, left); left *= 2 {
		}
	}
}

// lostInFlight has two acquires of a key by one owner in flight, and grants the first one. Then
// that hold is lost: by a lost push, or because its validity of left milliseconds has run out.
// After that, it grants the second one. It returns false if the client was too slow.
func (f *fake) lostInFlight(push bool, left uint64) bool {
	t, key := f.t, fmt.Sprint("k-", push, "-", left)
	first, second := t.acquire(want{key: key, wait: -1}), t.acquire(want{key: key, wait: -1})
	qs := []asked{f.expectAcquire(key)}
	given := Fence(0) // the last grant that was released
	other := func(q asked) {
		if q.Op == protocol.OpAcquire && string(q.Key) == key {
			qs = append(qs, q)
			return
		}
		given = Fence(q.Fence)
		t.answerRelease(q, protocol.NotHeld)
	}
	f.barrierWith(other)
	g := f.grant(3)
	if !push {
		g = f.grantFor(left, 3)
	}
	qs[0].give(g)
	t.poll(first.what, func() bool { return first.done() || second.done() })
	if second.done() {
		first, second = second, first
	}
	if !first.answer().OK && !push && !early(g.Deadline) {
		for _, q := range qs[1:] {
			q.refuse(protocol.Timeout)
		}
		t.poll(second.what, func() bool { f.refuseAll(protocol.Busy, protocol.Timeout); return second.done() })
		return false
	}
	first.ok()
	t.poll(second.what, func() bool { f.each(other); return len(qs) > 1 || second.done() })
	if len(qs) == 1 { // the client counts re-entries by itself
		for range 2 {
			p := t.release(key, 3)
			t.poll(p.what, func() bool { f.each(other); return p.done() })
		}
		return true
	}

	again := f.grant(4)
	if push {
		qs[0].c.send(protocol.AppendLost(nil, key, qs[0].Owner, 3, protocol.LostGone))
	} else {
		t.after(g.Deadline)
		t.mustNotHold(key, 3, "its deadline has passed")
		again = f.grant(3) // the daemon may still have it
		again.Count = 2
	}
	qs[1].give(again)
	t.poll(second.what, func() bool { f.each(other); return second.done() })
	if second.answer().OK {
		t.failf("%q was lost while its owner acquired it again, and that acquire is success", key)
	}
	second.fails("not_held")
	t.poll("the release of a grant to an owner that has lost the key", func() bool {
		f.each(other)
		return given == Fence(again.Fence)
	})
	t.mustNotHold(key, Fence(again.Fence), "its owner had lost the key before the grant")
	f.releaseLost(key, 3)
	f.barrierWith(other)
	_, fresh := f.hold(want{key: key}, f.grant(10))
	t.mustHold(key, fresh, "the lost hold has been released")
	f.letGo(key, fresh)
	return true
}

// barrierWith is like barrier, but allows other requests meanwhile, and calls other with each of
// them.
func (f *fake) barrierWith(other func(q asked)) {
	f.barriers++
	key := fmt.Sprint("barrier-", f.barriers)
	p := f.t.acquire(want{key: key})
	for {
		q := f.next("the acquire of " + key)
		if string(q.Key) == key {
			q.give(f.grant(1<<50 + f.barriers))
			p.ok()
			return
		}
		other(q)
	}
}

// answerRelease answers a release with c. It fails the scenario if q is another request.
func (t *T) answerRelease(q asked, c protocol.Code) {
	switch {
	case q.Op != protocol.OpRelease:
		t.failf("the client sent op %d for the key %q without a command", q.Op, q.Key)
	case c == protocol.OK:
		q.released()
	default:
		q.refuse(c)
	}
}

func forcedReleased(t *T) {
	f := t.fake()
	t.connect().ok()
	q, fence := f.hold(want{key: "k"}, f.grant(3))
	q.c.send(protocol.AppendLost(nil, "k", q.Owner, 3, protocol.LostForced))
	f.barrier() // the client sends nothing else yet: the holder is still at work
	t.mustNotHold("k", fence, "it was ended by force")
	p := t.release("k", fence)
	f.givenBack(q, fence, protocol.NotHeld, "a hold that was ended by force: without it the key stays closed to others")
	p.fails("not_held")
	if t.able("reentrant") {
		f.forcedTwice()
	}
}

// forcedTwice ends a hold of count 2 by force. Only the last release of the client may release the
// whole hold at the daemon.
func (f *fake) forcedTwice() {
	t := f.t
	q, fence := f.hold(want{key: "l"}, f.grant(5))
	left := 1 + f.deepen("l", fence, 2)
	q.c.send(protocol.AppendLost(nil, "l", q.Owner, 5, protocol.LostForced))
	f.barrier()
	gone := func(q asked) {
		if q.Op != protocol.OpRelease || string(q.Key) != "l" || q.Fence != 5 {
			t.failf("the client was told to release %q with the fence 5, but sent op %d for %q "+
				"with the fence %d",
				"l", q.Op, q.Key, q.Fence)
		}
		if left--; q.Flags&protocol.FlagAll != 0 {
			left = 0
		}
		q.refuse(protocol.NotHeld)
	}
	for i := range 2 {
		p := t.release("l", fence)
		t.poll(p.what, func() bool { f.each(gone); return p.done() })
		p.fails("not_held")
		f.barrierWith(gone)
		if i == 0 && left == 0 {
			t.failf("a hold of count 2 was ended by force, but the first release of the client " +
				"has released all of it")
		}
	}
	t.poll("the last release of a hold that was ended by force", func() bool { f.each(gone); return left == 0 })
}

// deepen makes the client acquire a key that it holds already. It returns how often the client sent
// that to the daemon; a client may also count by itself.
func (f *fake) deepen(key string, fence Fence, count uint64) (asks int) {
	p := f.t.acquire(want{key: key, wait: -1})
	f.t.poll(p.what, func() bool {
		f.each(func(q asked) {
			if q.Op != protocol.OpAcquire || string(q.Key) != key {
				f.t.failf("the client was told to acquire %q again, but sent op %d for the key %q",
					key, q.Op, q.Key)
			}
			g := f.grant(uint64(fence))
			g.Count = count
			asks++
			q.give(g)
		})
		return p.done()
	})
	if got := p.fence(); got != fence {
		f.t.failf("the fence of a re-entry is %v; the hold's is %v", got, fence)
	}
	return asks
}

// each removes all requests from the queue and calls do with each of them.
func (f *fake) each(do func(q asked)) {
	f.mu.Lock()
	queue := f.queue
	f.queue = nil
	f.mu.Unlock()
	for _, q := range queue {
		do(q)
	}
}

func expiredReleased(t *T) {
	f := t.fake()
	t.connect().ok()
	for i, ask := range []bool{true, false} {
		key := fmt.Sprint("k", i)
		q, fence, until := f.shortHold(key, uint64(3+i))
		t.after(until)
		if ask {
			t.mustNotHold(key, fence, "its deadline has passed")
		}
		p := t.release(key, fence)
		// The daemon still has the hold, and answers ok. But the client must report a loss to its
		// program, because the lock was not certain all the time.
		f.givenBack(q, fence, protocol.OK, "a hold whose validity has run out")
		t.poll(p.what, func() bool { f.answerReleases(protocol.NotHeld); return p.done() })
		p.fails("not_held")
	}

	late := t.acquire(want{key: "l"})
	q := f.expectAcquire("l")
	g := f.grantFor(50, 4)
	t.after(g.Deadline)
	q.give(g)
	f.givenBack(q, 4, protocol.OK, "a grant that came when its deadline had passed")
	t.poll(late.what, func() bool { f.refuseAll(protocol.Busy, protocol.Timeout); return late.done() })
}

// expiredStaysLost lets the validity of holds run out, asks the client about them, and extends them
// afterwards.
func expiredStaysLost(t *T) {
	f := t.fake()
	t.connect().ok()
	later := func(q asked, key string, fence Fence, ask string) {
		q.c.send(protocol.AppendKeepalive(nil, f.now()+farAway, farAway))
		f.barrier()
		t.mustNotHold(key, fence, "its deadline had passed when "+ask+", and a keepalive came afterwards")
		f.releaseLostAs(protocol.OK, key, fence)
	}
	q, k, until := f.shortHold("k", 3)
	t.ends("k", k, until, "its deadline has passed")
	later(q, "k", k, "it was asked whether it holds")

	if t.able("reentrant") {
		q, k, until = f.shortHold("l", 4)
		t.after(until)
		p := t.acquire(want{key: "l", wait: -1})
		f.barrierWith(func(q asked) { t.answerRelease(q, protocol.OK) })
		p.fails("not_held")
		later(q, "l", k, "its owner acquired the key again")
	}
	for _, change := range []string{"renew", "downgrade"} {
		if !t.able(change) {
			continue
		}
		q, k, until = f.shortHold(change, 6)
		t.after(until)
		p := t.send(Command{"do": change, "key": change, "owner": 1, "fence": k, "ttl_ms": 0})
		t.poll(p.what, func() bool {
			f.each(func(q asked) {
				if q.Op != protocol.OpRelease {
					t.failf("the validity of %q had run out when the client was told to %s it, "+
						"and it sent op %d", change, change, q.Op)
				}
				q.released()
			})
			return p.done()
		})
		p.fails("not_held")
		later(q, change, k, "it was to be changed ("+change+")")
	}
	if t.able("renew") && t.able("concurrent") {
		f.renewedLate()
	}
}

// renewedLate makes the client renew a hold. It grants the renewal after the client has found that
// the hold has run out.
func (f *fake) renewedLate() {
	t := f.t
	for left := uint64(short); ; left *= 2 {
		key := fmt.Sprint("m", left)
		_, fence, until := f.shortHoldFor(left, key, 5)
		p := t.renew(key, fence, 0)
		var renewal asked
		t.poll("the renewal", func() bool {
			f.each(func(q asked) {
				if q.Op == protocol.OpRenew {
					renewal = q
				} else {
					t.answerRelease(q, protocol.OK)
				}
			})
			return renewal.c != nil || p.done()
		})
		if renewal.c == nil { // too slow: the client has noticed that the hold has run out
			if p.fails("not_held"); early(until) {
				t.failf("%q is valid for %d ms more, and the client does not renew it",
					key, until-bootMillis())
			}
			continue
		}
		t.ends(key, fence, until, "its deadline has passed, and its renewal is not answered")
		renewal.give(f.grant(uint64(fence)))
		p.answer()
		t.mustNotHold(key, fence, "its deadline had passed when it was asked whether it holds, "+
			"and its renewal was granted afterwards")
		p.fails("not_held")
		f.releaseLostAs(protocol.OK, key, fence)
		return
	}
}

// givenBack waits for the release of the hold that q was granted, and answers the release with c.
func (f *fake) givenBack(q asked, fence Fence, c protocol.Code, what string) {
	done := false
	f.t.poll("the release of "+what, func() bool {
		f.each(func(r asked) {
			switch {
			case r.Op == protocol.OpAcquire && r.Wait == 0: // the client asks again
				r.refuse(protocol.Busy)
			case r.Op == protocol.OpAcquire:
				r.refuse(protocol.Timeout)
			case r.Op != protocol.OpRelease, string(r.Key) != string(q.Key), r.Owner != q.Owner,
				r.Fence != uint64(fence):
				f.t.failf("waited for the release of %s, %q with the fence %v; the client sent "+
					"op %d for %q with the fence %d",
					what, q.Key, fence, r.Op, r.Key, r.Fence)
			default:
				done = true
				f.t.answerRelease(r, c)
			}
		})
		return done
	})
}

// fixedEnd lets fixed holds reach their ends.
func fixedEnd(t *T) { endsAs(t, true, protocol.LostFixed) }

// longestHold lets holds end that the daemon renews, but only for as long as its configuration
// allows.
func longestHold(t *T) { endsAs(t, false, protocol.LostTooLong) }

// endsAs lets holds reach the ends that their grants state, with a lost push and without one.
func endsAs(t *T, fixed bool, why protocol.Reason) {
	f := t.fake()
	t.connect().ok()
	for i, push := range []bool{false, true} {
		key := fmt.Sprint("k", i)
		q, fence, end := f.endingHold(key, fixed, uint64(3+i))
		t.after(end)
		if push {
			q.c.send(protocol.AppendLost(nil, key, q.Owner, uint64(fence), why))
		}
		t.poll("the client to notice the end of a hold", func() bool { return !t.held(key, fence) })
		answer := protocol.OK // the daemon has not noticed yet
		if push {
			answer = protocol.NotHeld
		}
		p := t.release(key, fence)
		t.poll(p.what, func() bool { f.answerReleases(answer); return p.done() })
		p.fails("not_held")
		f.barrier()
		if push {
			t.told(key, fence, why.String())
		}
		t.p.mu.Lock()
		at := slices.IndexFunc(t.p.events, func(e Event) bool {
			return e.Key == key && e.Reason != why.String()
		})
		var reason string
		if at >= 0 {
			reason = t.p.events[at].Reason
		}
		t.p.mu.Unlock()
		if at >= 0 {
			t.failf("the client calls the end of a hold %q; it is %q", reason, why)
		}
	}
}

// endingHold makes the client acquire key for a short time, as fixed or with an end that the daemon
// sets. It returns the end on the boot clock.
func (f *fake) endingHold(key string, fixed bool, fence uint64) (asked, Fence, uint64) {
	f.strays = true
	for left := uint64(short); ; left *= 2 {
		w := want{key: key, fixed: fixed}
		if fixed {
			w.ttl = int64(left)
		}
		p := f.t.acquire(w)
		q := f.expectAcquire(key)
		g := f.grantFor(farAway, fence)
		g.End = f.now() + left
		q.give(g)
		a := p.answer()
		if a.OK {
			return q, p.fence(), g.End
		}
		if early(g.End) {
			p.ok()
		}
	}
}
