package conformance

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
)

// Sections 3 to 5: frames, values, messages, numbers.
var frameScenarios = []Scenario{
	{"vectors-replies", "3 Frames and values",
		"the replies of vectors/replies-accept.txt are understood", nil, vectorReplies},
	{"vectors-pushes", "3 Frames and values",
		"the pushes of vectors/pushes-accept.txt are understood", nil, vectorPushes},
	{"vectors-bad-replies", "6 Faults",
		"after each frame of vectors/bad-replies.txt the client closes the connection and holds " +
			"nothing",
		nil, vectorBad},
	{"malformed-frames", "6 Faults",
		"bytes after the array, arrays nested too deeply, and 0xc1 end the connection",
		nil, malformed},
	{"appended-fields", "3 Frames and values",
		"appended fields of every type are skipped, at every level", nil, appendedFields},
	{"text-widths", "3 Frames and values",
		"text of every width is read, also if it is long or not ASCII", nil, textWidths},
	{"fences-of-63-bits", "5 Numbers", "a fence is received and sent without losing a bit",
		nil, wholeFences},
	{"split-frames", "3 Frames and values", "frames arrive byte by byte", nil, splitFrames},
	{"joined-frames", "3 Frames and values", "many frames arrive in one read", nil, joinedFrames},
	{"frame-limit", "3 Frames and values",
		"a frame as long as the welcome allows is read, a longer one ends the connection at its " +
			"header",
		nil, frameLimit},
	{"out-of-order", "4 Messages",
		"replies are matched by their ids, in any order", []string{"concurrent"}, outOfOrder},
	{"500-in-flight", "4 Messages",
		"500 requests are in flight before the first reply", []string{"concurrent"}, manyInFlight},
	{"unknown-id", "6 Faults", "a reply with an unknown id is ignored", nil, unknownID},
	{"failure-codes", "5 Numbers",
		"each code is reported under its name, and nothing is held then", nil, failureCodes},
	{"unknown-code", "5 Numbers", "a code of a later version is a failure", nil, unknownCode},
	{"unknown-pushes", "5 Numbers",
		"an event of a later version is ignored; a lost push with an unknown reason is a loss",
		nil, unknownPushes},
}

func vectorReplies(t *T) {
	all := vectors("replies-accept.txt")
	hello := all[slices.IndexFunc(all, func(v vector) bool { return v.fields.To == int(protocol.OpHello) })]
	// The fake's clock reads 5, so that the deadlines of the grants are in the future.
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) { c.answer(q.ID, hello.with(atID, q.ID)) })
	f.listen()
	t.connect().ok()
	for i := range all {
		v := &all[i]
		switch protocol.Op(v.fields.To) {
		case protocol.OpAcquire:
			f.vectorGrant(v)
		case protocol.OpRelease:
			f.vectorRelease(v)
		case protocol.OpAcquireMany:
			if t.able("many") {
				f.vectorGrants(v)
			}
		case protocol.OpReleaseMany:
			if t.able("many") {
				f.vectorCodes(v)
			}
		case protocol.OpAcquireAny:
			if t.able("any") {
				f.vectorGrantOf(v)
			}
		}
	}
}

// vectorGrant answers an acquire with the vector. It moves near deadlines into the future, since a
// busy machine could read the grant too late.
func (f *fake) vectorGrant(v *vector) {
	t := f.t
	p := t.acquire(want{key: v.name})
	q := f.expectAcquire(v.name)
	q.c.answer(q.ID, v.lasting(farAway).with(atID, q.ID))
	if v.fields.Code != 0 {
		p.fails(protocol.Code(v.fields.Code).String())
		return
	}
	if got := p.fence(); got != v.fields.Fence {
		t.failf("%s: the fence is %v, and the client says %v", v.name, v.fields.Fence, got)
	}
	f.letGo(v.name, v.fields.Fence)
}

// drop answers the releases that the client sends by itself.
func (f *fake) drop() {
	f.mu.Lock()
	queue := f.queue
	f.queue = nil
	f.mu.Unlock()
	for _, q := range queue {
		q.released()
	}
}

func (f *fake) vectorRelease(v *vector) {
	_, fence := f.hold(want{key: v.name}, f.grantAt(0, 77))
	p := f.t.release(v.name, fence)
	q := f.expect(protocol.OpRelease, "the release of "+v.name)
	q.c.answer(q.ID, v.with(atID, q.ID))
	if v.fields.Code == int(protocol.NotHeld) {
		p.fails("not_held")
		return
	}
	f.t.failsUnknown(p)
}

// grantAt returns an endless grant for a daemon whose clock reads now.
func (f *fake) grantAt(now, fence uint64) *protocol.Grant {
	return &protocol.Grant{Fence: fence, Left: farAway, Deadline: now + farAway, Count: 1}
}

func keysOf(name string, n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("%s-%d", name, i))
	}
	return keys
}

func (f *fake) vectorGrants(v *vector) {
	keys := keysOf(v.name, len(v.fields.Grants))
	p := f.t.acquireMany(keys, 0)
	q := f.expect(protocol.OpAcquireMany, "the acquire-many of "+v.name)
	q.c.answer(q.ID, v.with(atID, q.ID))
	got := p.fences(len(keys))
	for i, g := range v.fields.Grants {
		if got[i] != g[0] {
			f.t.failf("%s: the fences are %v, and the client says %v", v.name, g[0], got[i])
		}
	}
	f.dropMany(keys, got)
}

func (f *fake) vectorGrantOf(v *vector) {
	keys := keysOf(v.name, v.fields.Index+1)
	p := f.t.acquireAny(keys, 0)
	q := f.expect(protocol.OpAcquireAny, "the acquire-any of "+v.name)
	q.c.answer(q.ID, v.lasting(farAway).with(atID, q.ID))
	if key, fence := p.anyOf(keys); key != keys[v.fields.Index] || fence != v.fields.Fence {
		f.t.failf("%s: the key is %q and the fence %v, and the client says %q and %v", v.name,
			keys[v.fields.Index], v.fields.Fence, key, fence)
	}
	f.letGo(keys[v.fields.Index], v.fields.Fence)
}

// dropMany makes the client release keys, one by one or together.
func (f *fake) dropMany(keys []string, fences []Fence) {
	p := f.t.releaseMany(keys, fences)
	f.t.poll("the answer to release_many", func() bool { f.drop(); return p.done() })
	p.ok()
}

func (f *fake) vectorCodes(v *vector) {
	keys := keysOf(v.name, len(v.fields.Codes))
	p := f.t.acquireMany(keys, 0)
	q := f.expect(protocol.OpAcquireMany, "the acquire-many of "+v.name)
	gs := make([]protocol.Grant, len(keys))
	for i := range gs {
		gs[i] = *f.grantAt(0, uint64(100+i))
	}
	q.c.answer(q.ID, protocol.AppendGrants(nil, q.ID, gs))
	fences := p.fences(len(keys))
	p = f.t.releaseMany(keys, fences)
	q = f.next("the release-many of " + v.name)
	if q.Op != protocol.OpReleaseMany { // one by one, which the vector does not test
		q.released()
		f.t.poll("the answer to release_many", func() bool { f.drop(); return p.done() })
		return
	}
	q.c.answer(q.ID, v.with(atID, q.ID))
	// Each client decides how it reports a release-many of which a part has failed. But it has to
	// report that a part has failed.
	if a := p.answer(); a.OK && (len(a.Codes) != len(keys) || slices.Contains(a.Codes[1:], "ok")) {
		f.t.failf("%s: the codes are %v, and the client says %v", v.name, v.fields.Codes, a.Codes)
	}
}

func vectorPushes(t *T) {
	f := t.fake()
	t.connect().ok()
	_, stays := f.hold(want{key: "stays"}, f.grant(9))
	for _, v := range vectors("pushes-accept.txt") {
		if protocol.Event(v.fields.Event) == protocol.EventLost {
			q, fence := f.hold(want{key: "k"}, f.grant(5))
			q.c.send(v.with(atOwner, q.Owner))
			t.parts("k", fence, v.name)
			f.releaseLost("k", fence)
			continue
		}
		f.newest().send(v.frame())
		f.barrier()
		t.mustHold("stays", stays, "after "+v.name)
	}
}

func vectorBad(t *T) {
	f := t.fake()
	for _, v := range vectors("bad-replies.txt") {
		op := protocol.Op(v.fields.To)
		if op == protocol.OpReleaseMany && !t.able("many") ||
			op == protocol.OpAcquireAny && !t.able("any") {
			continue
		}
		t.connect().ok()
		key := "held-" + v.name
		hold, fence := f.hold(want{key: key}, f.grant(5))
		switch op {
		case protocol.OpRelease:
			p := t.release(key, fence)
			q := f.expect(op, "the release of "+key)
			q.c.send(v.with(atID, q.ID))
			q.c.parted(v.name)
			p.answer() // whether it fails or not: the end of the connection has released it
		case protocol.OpReleaseMany:
			p := t.acquireMany([]string{"a", "b"}, 0)
			q := f.expect(protocol.OpAcquireMany, "an acquire-many")
			q.c.answer(q.ID, protocol.AppendGrants(nil, q.ID, []protocol.Grant{*f.grant(6), *f.grant(7)}))
			p = t.releaseMany([]string{"a", "b"}, p.fences(2))
			if q = f.next("a release"); q.Op != op {
				hold.c.send([]byte{0, 0, 0, 0}) // the client releases one by one: any bad frame will do
			} else {
				q.c.send(v.with(atID, q.ID))
			}
			q.c.parted(v.name)
			p.answer()
		case protocol.OpAcquireAny:
			p := t.acquireAny(keysOf(v.name, 2), 0)
			q := f.expect(op, "an acquire-any")
			q.c.send(v.with(atID, q.ID))
			q.c.parted(v.name)
			f.overFor(p, "bad_frame", "closed")
		default:
			p := t.acquire(want{key: "asked-" + v.name})
			q := f.expectAcquire("asked-" + v.name)
			if op == protocol.OpAcquire {
				q.c.send(v.with(atID, q.ID))
			} else {
				q.c.send(v.frame())
			}
			q.c.parted(v.name)
			f.overFor(p, "bad_frame", "closed")
		}
		t.parts(key, fence, v.name)
		f.drop()
	}
}

// malformed sends complete frames whose payload does not belong to the protocol.
func malformed(t *T) {
	f := t.fake()
	// A number inside n arrays.
	deep := func(n int) raw { return raw(strings.Repeat("\x91", n) + "\x01") }
	grant := func(q asked, more ...any) []byte {
		return pack(nil, append(list{0, q.ID, 9, farAway, f.now() + farAway, 1, 0, 0}, more...))
	}
	for i, c := range []struct {
		what    string
		payload func(q asked) []byte
	}{
		{"a byte behind the array", func(q asked) []byte { return append(grant(q), 0xc0) }},
		{"another array behind the array", func(q asked) []byte { return append(grant(q), grant(q)...) }},
		{"a byte behind the array of an unknown event", func(asked) []byte {
			return append(pack(nil, list{200, 0}), 0)
		}},
		{"a value at level 9", func(q asked) []byte { return grant(q, deep(8)) }},
		{"a value at level 100", func(q asked) []byte { return grant(q, deep(99)) }},
		{"a value at level 9, in a map", func(q asked) []byte {
			return grant(q, raw("\x81\x01"+string(deep(7))))
		}},
		{"0xc1", func(q asked) []byte { return grant(q, raw("\xc1")) }},
		{"0xc1 in an array of an unknown event", func(asked) []byte {
			return pack(nil, list{200, 0, list{raw("\xc1")}})
		}},
		{"a grant whose code is 256", func(q asked) []byte {
			return pack(nil, list{256, q.ID, 9, farAway, f.now() + farAway, 1, 0, 0})
		}},
		{"bin that is cut short", func(q asked) []byte { return grant(q, raw("\xc4\x05\x00")) }},
		{"an array that claims four billion entries", func(q asked) []byte {
			return grant(q, raw("\xdd\xff\xff\xff\xff\x01"))
		}},
		{"a map that claims four billion entries", func(q asked) []byte {
			return grant(q, raw("\xdf\xff\xff\xff\xff\x01"))
		}},
		{"a text that claims four billion bytes", func(q asked) []byte {
			return grant(q, raw("\xdb\xff\xff\xff\xffx"))
		}},
	} {
		t.connect().ok()
		held, wanted := fmt.Sprint("held-", i), fmt.Sprint("wanted-", i)
		_, fence := f.hold(want{key: held}, f.grant(5))
		p := t.acquire(want{key: wanted})
		q := f.expectAcquire(wanted)
		q.c.send(header(c.payload(q)))
		q.c.parted(c.what)
		// The client may have accepted the grant before it found the fault, and then lost the hold.
		f.overFor(p)
		t.parts(held, fence, c.what)
		f.drop()
	}
}

func appendedFields(t *T) {
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		w := c.f.welcome()
		space := append(list{"", "embedded", "linearizable", 0}, appended(3)...)
		c.answer(q.ID, frame(append(list{0, q.ID, 1, 12, w.Now, int(w.MaxFrame), 1, 30000,
			protocol.MaxTTL, 1, list{space}, "later"}, appended(1)...)...))
	})
	f.listen()
	t.connect().ok()

	grant := func(key string) (asked, *pending) {
		p := t.acquire(want{key: key})
		q := f.expectAcquire(key)
		q.c.answer(q.ID, frame(append(list{0, q.ID, 41, farAway, f.now() + farAway, 1, 0, 0},
			appended(1)...)...))
		return q, p
	}
	q, p := grant("k")
	if got := p.fence(); got != 41 {
		t.failf("the fence is 41, and the client says %v", got)
	}
	t.mustHold("k", 41, "after a grant with appended fields")
	q.c.send(frame(append(list{65, 0, f.now() + farAway, farAway}, appended(1)...)...))
	q.c.send(frame(append(list{66, 0, 60_000, "later"}, appended(1)...)...))

	for _, code := range []protocol.Code{protocol.Busy, protocol.Denied} {
		p = t.acquire(want{key: "refused"})
		q = f.expectAcquire("refused")
		fields := list{int(code), q.ID, "later"}
		if code == protocol.Busy {
			fields = append(fields, -1)
		}
		q.c.answer(q.ID, frame(append(fields, appended(1)...)...))
		p.fails(code.String())
	}
	p = t.release("k", 41)
	q = f.expect(protocol.OpRelease, "the release")
	if q.Flags&protocol.FlagQuiet == 0 {
		q.c.answer(q.ID, frame(append(list{0, q.ID, 0}, appended(1)...)...))
	}
	p.ok()

	if t.able("many") {
		p = t.acquireMany([]string{"a", "b"}, 0)
		q = f.expect(protocol.OpAcquireMany, "the acquire-many")
		one := func(fence int) list {
			return append(list{fence, farAway, f.now() + farAway, 1, 0, 0}, appended(3)...)
		}
		q.c.answer(q.ID, frame(append(list{0, q.ID, list{one(51), one(52)}}, appended(1)...)...))
		if got := p.fences(2); got[0] != 51 || got[1] != 52 {
			t.failf("the fences are 51 and 52, and the client says %v", got)
		}
	}
	q, p = grant("l")
	p.ok()
	q.c.send(frame(append(list{64, 0, "l", q.Owner, 41, 4}, appended(1)...)...))
	t.parts("l", 41, "it was called lost")
	q, p = grant("m")
	p.ok()
	q.c.send(frame(append(list{67, 0, int(protocol.TooSlow), "later"}, appended(1)...)...))
	q.c.parted("fatal")
	t.mustNotHold("m", 41, "after fatal")
}

func textWidths(t *T) {
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		wide := func(s string) raw { return raw(append(text32(nil, len(s)), s...)) }
		w := c.f.welcome()
		c.answer(q.ID, frame(0, q.ID, 1, 12, w.Now, int(w.MaxFrame), 1, 30000, protocol.MaxTTL, 1,
			list{list{wide(""), raw("\xda\x00\x05redis"), raw("\xd9\x0bbest-effort")}}, wide("0.1")))
	})
	f.listen()
	t.connect().ok()
	for _, text := range []string{"", "why", strings.Repeat("ü", 100), strings.Repeat("€", 20_000)} {
		for _, width := range []func([]byte, string) []byte{
			packText,
			func(b []byte, s string) []byte { return append(text16(b, len(s)), s...) },
			func(b []byte, s string) []byte { return append(text32(b, len(s)), s...) },
		} {
			p := t.acquire(want{key: "k"})
			q := f.expectAcquire("k")
			q.c.answer(q.ID, frame(int(protocol.Denied), q.ID, raw(width(nil, text))))
			p.fails("denied")
		}
	}
	key := strings.Repeat("ключ", 64) // 512 bytes
	for _, head := range []string{"\xda\x02\x00", "\xdb\x00\x00\x02\x00"} {
		q, fence := f.hold(want{key: key}, f.grant(5))
		q.c.send(frame(64, 0, raw(head+key), q.Owner, 5, 2))
		t.parts(key, fence, "it was called lost")
		f.releaseLost(key, fence)
	}
}

func wholeFences(t *T) {
	f := t.fake()
	t.connect().ok()
	for i, fence := range []uint64{1, math.MaxUint32, 1<<53 + 1, 1795000000000000<<10 + 1,
		math.MaxInt64 - 1, math.MaxInt64} {
		key := fmt.Sprint("k", i)
		_, got := f.hold(want{key: key}, f.grant(fence))
		t.mustHold(key, got, "after the grant")
		f.letGo(key, got)
	}
}

func splitFrames(t *T) {
	f := t.fakeWith(func(c *fakeConn, q *protocol.Request) {
		c.free(q.ID)
		c.sendPieces(protocol.AppendWelcome(nil, q.ID, c.f.welcome()))
	})
	f.listen()
	t.connect().ok()
	p := t.acquire(want{key: "k"})
	q := f.expectAcquire("k")
	q.c.free(q.ID)
	q.c.sendPieces(protocol.AppendGrant(nil, q.ID, f.grant(1<<60)))
	if got := p.fence(); got != 1<<60 {
		t.failf("the fence is 2^60, and the client says %v", got)
	}
	q.c.sendPieces(protocol.AppendLost(nil, "k", q.Owner, 1<<60, protocol.LostForced))
	t.parts("k", 1<<60, "it was called lost")
}

func joinedFrames(t *T) {
	f := t.fake()
	t.connect().ok()
	_, k := f.hold(want{key: "k"}, f.grant(3))
	p := t.acquire(want{key: "l"})
	q := f.expectAcquire("l")
	var b []byte
	for range 1000 {
		b = protocol.AppendKeepalive(b, f.now()+farAway, farAway)
	}
	b = protocol.AppendLost(b, "k", q.Owner, 3, protocol.LostGone)
	b = protocol.AppendGrant(b, q.ID, f.grant(4))
	b = protocol.AppendKeepalive(b, f.now()+farAway, farAway)
	b = append(b, 0, 0) // and the beginning of another
	q.c.free(q.ID)
	q.c.sendAround(b, func() {
		p.fence()
		t.mustNotHold("k", k, "its loss came before the grant of another key")
		t.told("k", k, "gone")
	}, protocol.AppendLost(nil, "l", q.Owner, 4, protocol.LostForced)[2:])
	t.parts("l", 4, "it was called lost")

	// A grant and its loss arrive at once. The client must know of the loss, whether or not it reports
	// the grant.
	p = t.acquire(want{key: "m"})
	q = f.expectAcquire("m")
	q.c.answer(q.ID, protocol.AppendLost(protocol.AppendGrant(nil, q.ID, f.grant(5)), "m", q.Owner, 5,
		protocol.LostExpired))
	f.strays = true
	t.poll("the answer to acquire", func() bool { f.refuseAll(protocol.Busy, protocol.Timeout); return p.done() })
	t.parts("m", 5, "it was called lost right behind its grant")
}

// refuseAll refuses acquires: the tries with one code, and the others with another.
func (f *fake) refuseAll(try, waits protocol.Code) {
	f.mu.Lock()
	queue := f.queue
	f.queue = nil
	f.mu.Unlock()
	for _, q := range queue {
		switch {
		case q.Op != protocol.OpAcquire:
			q.released()
		case q.Wait == 0:
			q.refuse(try)
		default:
			q.refuse(waits)
		}
	}
}

func frameLimit(t *T) {
	f := t.fake()
	longest := func(q asked, limit int) []byte {
		text := limit - len(pack(nil, list{int(protocol.Denied), q.ID, ""})) - 4
		b := frame(int(protocol.Denied), q.ID, raw(append(text32(nil, text),
			bytes.Repeat([]byte("x"), text)...)))
		if n := int(binary.BigEndian.Uint32(b)); n != limit {
			t.failf("a frame of %d bytes was to have %d", n, limit)
		}
		return b
	}
	for _, limit := range []int{protocol.DefaultMaxFrame, 300_000} {
		f.limit = limit
		t.connect().ok()
		p := t.acquire(want{key: "k"})
		q := f.expectAcquire("k")
		q.c.answer(q.ID, longest(q, limit))
		p.fails("denied")
		key := fmt.Sprint("l", limit)
		q, fence := f.hold(want{key: key}, f.grant(3))
		q.c.send(binary.BigEndian.AppendUint32(nil, uint32(limit+1)))
		q.c.parted("a header above the frame limit")
		t.mustNotHold(key, fence, "after a header above the frame limit")
	}
}

func outOfOrder(t *T) {
	const n = 20
	f := t.fake()
	t.connect().ok()
	ps := make([]*pending, n)
	var qs []asked
	for i := range n {
		ps[i] = t.acquire(want{key: fmt.Sprint("k", i), wait: -1})
	}
	for range n {
		q := f.expect(protocol.OpAcquire, fmt.Sprintf("%d acquires at once", n))
		if qs = append(qs, q); q.Wait != protocol.WaitAlways {
			t.failf("the client was told to wait without bound, but sent the wait %d", q.Wait)
		}
	}
	f.answerAll(qs, func(i int) int { return n - 1 - i })
	f.checkFences(ps)
}

// answerAll answers the requests in one write, in an order of its own. The fence of each key is the
// number of the key plus 1.
func (f *fake) answerAll(qs []asked, order func(int) int) {
	var b []byte
	for i := range qs {
		q := qs[order(i)]
		var n uint64
		if _, err := fmt.Sscanf(string(q.Key), "k%d", &n); err != nil {
			f.t.failf("the client asked for %q", q.Key)
		}
		q.c.free(q.ID)
		b = protocol.AppendGrant(b, q.ID, f.grant(n+1))
	}
	qs[0].c.send(b)
}

func (f *fake) checkFences(ps []*pending) {
	for i, p := range ps {
		if got := p.fence(); got != Fence(i+1) {
			f.t.failf("the grant of k%d has the fence %d, and the client says %v: a reply went "+
				"to another's request", i, i+1, got)
		}
	}
}

func manyInFlight(t *T) {
	const n = 500
	f := t.fake()
	t.connect().ok()
	ps := make([]*pending, n)
	for i := range n {
		ps[i] = t.acquire(want{key: fmt.Sprint("k", i), wait: -1})
	}
	var qs []asked
	for range n {
		qs = append(qs, f.expect(protocol.OpAcquire, fmt.Sprintf("%d acquires at once", n)))
	}
	f.answerAll(qs, func(i int) int { return i * 7 % n })
	f.checkFences(ps)
}

func unknownID(t *T) {
	f := t.fake()
	t.connect().ok()
	q, fence := f.hold(want{key: "k"}, f.grant(3))
	q.c.send(protocol.AppendGrant(nil, q.ID, f.grant(9))) // again
	for _, id := range []uint64{q.ID + 1<<40, math.MaxInt64} {
		q.c.send(protocol.AppendGrant(nil, id, f.grant(9)))
		q.c.send(protocol.AppendError(nil, id, protocol.NotHeld, "nobody asked", -1))
		q.c.send(protocol.AppendReleased(nil, id, 0))
	}
	f.barrier()
	t.mustHold("k", fence, "after replies to nothing")
	f.letGo("k", fence)
}

func failureCodes(t *T) {
	f := t.fake()
	t.connect().ok()
	for _, c := range []protocol.Code{protocol.Busy, protocol.Timeout, protocol.Canceled,
		protocol.Upgrade, protocol.Unavailable,
		protocol.Limit, protocol.Invalid, protocol.Unsupported, protocol.Denied, protocol.Draining} {
		w := want{key: c.String(), wait: 100}
		if c == protocol.Busy {
			w.wait = 0
		}
		p := t.acquire(w)
		q := f.expectAcquire(w.key)
		q.c.answer(q.ID, protocol.AppendError(nil, q.ID, c,
			"ok 0 busy timeout: a text is for people", -1))
		// A client may send its request again for a while.
		t.poll("the answer to acquire, which was answered "+c.String(), func() bool {
			f.refuseAll(c, c)
			return p.done()
		})
		p.fails(c.String())
		t.mustNotHold(w.key, 1, "after "+c.String())
	}
	for _, c := range []protocol.Code{protocol.NotHeld, protocol.Unknown} {
		q, fence := f.hold(want{key: c.String()}, f.grant(7))
		p := t.release(c.String(), fence)
		q = f.expect(protocol.OpRelease, "the release")
		q.refuse(c)
		if q.Flags&protocol.FlagQuiet == 0 {
			p.fails(c.String())
		}
		t.mustNotHold(c.String(), fence, "after a release that was answered "+c.String())
	}
}

// failsUnknown waits for a failure whose name is none of this version.
func (t *T) failsUnknown(p *pending) {
	name := p.fails()
	for c := protocol.OK; c <= protocol.Overlong; c++ {
		if name == c.String() {
			t.failf("a code that nobody knows is reported as %q", name)
		}
	}
}

func unknownCode(t *T) {
	f := t.fake()
	t.connect().ok()
	for _, code := range []int{17, 100, 255} {
		for _, fields := range []list{{"later"}, {"later", 1, 2, 3, 4, 5, 6, 7}} {
			p := t.acquire(want{key: "k"})
			q := f.expectAcquire("k")
			q.c.answer(q.ID, frame(append(list{code, q.ID}, fields...)...))
			t.failsUnknown(p)
			t.mustNotHold("k", 1, "after an unknown code")
		}
		_, fence := f.hold(want{key: "l"}, f.grant(uint64(code)))
		p := t.release("l", fence)
		q := f.expect(protocol.OpRelease, "the release")
		q.c.answer(q.ID, frame(code, q.ID, "later"))
		p.answer()
		t.mustNotHold("l", fence, "its release was answered with an unknown code")
	}
	f.barrier()
}

func unknownPushes(t *T) {
	f := t.fake()
	t.connect().ok()
	q, fence := f.hold(want{key: "k"}, f.grant(3))
	for _, event := range []int{0, 1, 63, 100, 255} {
		q.c.send(frame(event, 0))
		q.c.send(frame(append(list{event, 0, "k", q.Owner, 3, 1}, appended(1)...)...))
	}
	// These report losses of holds that the client does not have.
	q.c.send(protocol.AppendLost(nil, "other", q.Owner, 3, protocol.LostForced))
	q.c.send(protocol.AppendLost(nil, "k", q.Owner+1, 3, protocol.LostForced))
	q.c.send(protocol.AppendLost(nil, "k", q.Owner, 2, protocol.LostForced))
	f.barrier()
	t.mustHold("k", fence, "after pushes that do not concern it")
	q.c.send(protocol.AppendLost(nil, "k", q.Owner, 3, 250))
	t.parts("k", fence, "it was called lost, for an unknown reason")
	t.told("k", fence)
}
