package conformance

import (
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// Section 9: until when a client may say that it holds.
var validityScenarios = []Scenario{
	{"silence", "9 Validity",
		"after the deadline of its grant a hold is not valid, although the daemon says nothing",
		nil, silence},
	{"keepalive", "9 Validity", "a keepalive extends the validity of earlier grants",
		nil, beatExtends},
	{"keepalive-before-grant", "9 Validity", "a keepalive does not extend a later grant",
		nil, beatBefore},
	{"keepalive-never-shortens", "9 Validity",
		"neither a keepalive nor a renewal shortens the validity that was stated",
		nil, neverShortens},
	{"keepalive-and-end", "9 Validity",
		"no keepalive makes a fixed hold valid beyond its end",
		[]string{"fixed", "ttl"}, beatAndEnd},
	{"late-grant", "9 Validity", "left is not counted from the receipt of a grant or a keepalive",
		nil, lateGrant},
	{"clock-ahead", "9 Validity",
		"the daemon's clock is an hour ahead of the client's",
		nil, func(t *T) { otherClock(t, 3_600_000) }},
	{"clock-behind", "9 Validity",
		"the daemon's clock is an hour behind the client's",
		nil, func(t *T) { otherClock(t, -3_600_000) }},
	{"slow-hello", "9 Validity",
		"after a slow hello the client does not treat the two clocks as one", nil, slowHello},
	{"client-stopped", "9 Validity",
		"a client that was stopped until its validity was over holds nothing when it continues",
		nil, clientStopped},
}

// short is the validity, in milliseconds, of a hold that must end during the scenario.
const short = 700

// early reports whether a client must still report a hold as held that is valid until until, in
// milliseconds of the boot clock. The margin allows for clocks that err on the safe side, and for a
// busy machine.
func early(until uint64) bool { return bootMillis()+200 < until }

// believes checks that the client reports a hold as held that is valid until the given time. Only
// an answer that comes early enough counts.
func (t *T) believes(key string, f Fence, until uint64) {
	if held := t.held(key, f); !held && early(until) {
		t.failf("%q is valid for %d ms more, and the client does not believe it",
			key, until-bootMillis())
	}
}

// ends checks that the client does not report the hold as held after until.
func (t *T) ends(key string, f Fence, until uint64, why string) {
	t.after(until)
	t.mustNotHold(key, f, why)
}

// shortHold makes the client hold key for a short time, and returns the end of the hold on the boot
// clock.
func (f *fake) shortHold(key string, fence uint64) (asked, Fence, uint64) {
	return f.shortHoldFor(short, key, fence)
}

// shortHoldFor is like shortHold, with a validity of at least left milliseconds.
func (f *fake) shortHoldFor(left uint64, key string, fence uint64) (asked, Fence, uint64) {
	f.strays = true
	for ; ; left *= 2 {
		p := f.t.acquire(want{key: key})
		q := f.expectAcquire(key)
		g := f.grantFor(left, fence)
		until := uint64(int64(g.Deadline) - f.skew)
		q.give(g)
		a := p.answer()
		if a.OK {
			return q, p.fence(), until
		}
		if early(until) {
			p.ok()
		}
		// Too slow: the client has already found that the hold is over.
	}
}

// extended is a hold that was granted for a short time and then extended by a keepalive. Times are
// on the boot clock.
type extended struct {
	key   string
	fence Fence
	until uint64 // the end of the grant's validity
	end   uint64 // the end of the keepalive's validity
}

// extend makes the client acquire a key for a short time, and read a keepalive that extends the
// hold before that time is over.
func (f *fake) extend(key string, fence, more uint64) extended {
	for left := uint64(short); ; left *= 2 {
		key := fmt.Sprint(key, "-", left)
		q, got, until := f.shortHoldFor(left, key, fence)
		q.c.send(protocol.AppendKeepalive(nil, until+more, left+more))
		f.barrier()
		if early(until) {
			return extended{key, got, until, until + more}
		}
		// Too slow: the client may have found that the hold is over before it read the keepalive.
	}
}

func silence(t *T) {
	f := t.fake()
	t.connect().ok()
	_, far := f.hold(want{key: "far"}, f.grant(3))
	_, k, until := f.shortHold("k", 4)
	t.believes("k", k, until)
	t.ends("k", k, until, "its deadline has passed, and no keepalive came")
	t.mustHold("far", far, "its deadline is far away")
}

func beatExtends(t *T) {
	f := t.fake()
	t.connect().ok()
	k := f.extend("k", 3, farAway)
	t.after(k.until)
	t.mustHold(k.key, k.fence, "its grant is over, but not the validity that a keepalive has stated")
	l := f.extend("l", 5, 2*short)
	t.after(l.until)
	t.believes(l.key, l.fence, l.end)
	t.ends(l.key, l.fence, l.end, "the validity that the last keepalive has stated is over")
	t.mustHold(k.key, k.fence, "an earlier keepalive went further")
}

func beatBefore(t *T) {
	f := t.fake()
	t.connect().ok()
	q, far := f.hold(want{key: "far"}, f.grantFor(farAway, 3))
	q.c.send(protocol.AppendKeepalive(nil, f.now()+2*farAway, 2*farAway))
	f.barrier()
	_, k, until := f.shortHold("k", 4)
	t.believes("k", k, until)
	t.ends("k", k, until, "its deadline has passed; the keepalive came before its grant")
	t.mustHold("far", far, "it was granted before the keepalive")
}

func neverShortens(t *T) {
	f := t.fake()
	t.connect().ok()
	q, k := f.hold(want{key: "k"}, f.grant(3))
	until := f.now() + 50
	q.c.send(protocol.AppendKeepalive(nil, until, 50))
	q.c.send(protocol.AppendKeepalive(nil, 0, 0))
	f.barrier()
	t.after(until)
	t.mustHold("k", k, "its grant stated more than the keepalive behind it")
	if !t.able("renew") {
		return
	}
	p := t.renew("k", k, 0)
	r := f.expect(protocol.OpRenew, "the renewal")
	g := f.grantFor(50, 3)
	r.give(g)
	p.ok()
	t.after(g.Deadline)
	t.mustHold("k", k, "its first grant stated more than its renewal")
	p = t.renew("k", k, 0)
	f.expect(protocol.OpRenew, "the renewal").refuse(protocol.Unavailable)
	p.fails("unavailable")
	t.mustHold("k", k, "a renewal that the store did not confirm changes nothing")
	p = t.renew("k", k, 0)
	f.expect(protocol.OpRenew, "the renewal").refuse(protocol.NotHeld)
	p.fails("not_held")
	t.mustNotHold("k", k, "a renewal was answered not_held")
}

func beatAndEnd(t *T) {
	f := t.fake()
	t.connect().ok()
	f.strays = true
	for left := uint64(short); ; left *= 2 {
		p := t.acquire(want{key: "k", ttl: short, fixed: true})
		q := f.expectAcquire("k")
		g := f.grantFor(farAway, 3)
		g.End = f.now() + left
		q.c.answer(q.ID, protocol.AppendKeepalive(protocol.AppendGrant(nil, q.ID, g),
			f.now()+farAway, farAway))
		if a := p.answer(); !a.OK {
			if early(g.End) {
				p.ok()
			}
			continue
		}
		t.believes("k", 3, g.End)
		t.ends("k", 3, g.End, "it is fixed, and its end has passed")
		q.c.send(protocol.AppendKeepalive(nil, f.now()+farAway, farAway))
		f.barrier()
		t.mustNotHold("k", 3, "it is fixed, and its end has passed")
		return
	}
}

func lateGrant(t *T) {
	f := t.fake()
	t.connect().ok()
	p := t.acquire(want{key: "k"})
	q := f.expectAcquire("k")
	g := f.grantFor(50, 3)
	g.Left = farAway
	t.after(g.Deadline)
	q.give(g) // the grant has waited in a buffer for its whole validity
	f.strays = true
	t.poll("the answer to acquire", func() bool { f.refuseAll(protocol.Busy, protocol.Timeout); return p.done() })
	t.mustNotHold("k", 3, "its grant came when its deadline had passed")
	q, l, until := f.shortHold("l", 4)
	t.after(until)
	q.c.send(protocol.AppendKeepalive(nil, until, farAway))
	f.barrier()
	t.mustNotHold("l", l, "the keepalive came when its time had passed")
}

func otherClock(t *T, ahead int64) {
	f := t.fakeWith(nil)
	// The machine may have started less than an hour ago. Then no daemon's clock can be an hour
	// behind.
	f.skew = max(ahead, 1-int64(bootMillis()))
	f.listen()
	t.connect().ok()
	q, far := f.hold(want{key: "far"}, f.grant(3))
	_, k, until := f.shortHold("k", 4)
	t.believes("k", k, until)
	t.ends("k", k, until, fmt.Sprintf("the daemon's clock is %d ms ahead, and its deadline has passed",
		f.skew))
	t.mustHold("far", far, "its deadline is far away")
	_, k, until = f.shortHold("l", 5)
	q.c.send(protocol.AppendKeepalive(nil, f.now()+2*short, 2*short))
	f.barrier()
	until = max(until, bootMillis()+2*short)
	t.ends("l", k, until, "the validity that the last keepalive has stated is over")
}

func slowHello(t *T) {
	const ahead, took = 1500, 1600
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		w := c.f.welcome() // read at once, but answered late
		c.f.t.waitMuted(bootMillis() + took)
		c.answer(q.ID, protocol.AppendWelcome(nil, q.ID, w))
	})
	f.skew = ahead
	f.listen()
	t.connect().ok()
	_, far := f.hold(want{key: "far"}, f.grant(3))
	p := t.acquire(want{key: "k"})
	q := f.expectAcquire("k")
	g := f.grantFor(short, 4)
	q.give(g)
	f.strays = true
	p.answer() // success or failure: after the time of the hello, no validity may be left
	t.ends("k", 4, g.Deadline-ahead, "the hello took 1.6 s, the daemon's clock is 1.5 s ahead, "+
		"and the deadline has passed")
	t.mustHold("far", far, "its deadline is far away")
}

func clientStopped(t *T) {
	f := t.fake()
	t.connect().ok()
	_, k, until := f.shortHold("k", 3)
	t.stopped(func() { t.after(until) })
	t.mustNotHold("k", k, "the client was stopped until its deadline had passed")
	_, k = f.hold(want{key: "l"}, f.grant(4))
	t.mustHold("l", k, "acquired after the client was stopped")
}
