package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Section 10: the requests, and keys.
var requestScenarios = []Scenario{
	{"keys", "5 Numbers (limits)", "unusual but legal keys arrive unchanged", nil, oddKeys},
	{"bad-keys", "6 Faults", "an illegal key is the error invalid, and the session continues", nil,
		badKeys},
	{"bad-terms", "6 Faults",
		"an illegal TTL is the error invalid, and the session continues",
		[]string{"ttl"}, badTerms},
	{"cancel", "10 Requests (cancel)",
		"a wait that is canceled ends, and holds nothing",
		[]string{"cancel", "concurrent"}, cancel},
	{"cancel-crossed", "10 Requests (cancel)",
		"a grant that crosses its cancel is kept or released, not forgotten",
		[]string{"cancel", "concurrent"}, cancelCrossed},
	{"cancel-acquire", "13 Advice",
		"after giving up an acquire the client sends no other for that key and owner before the " +
			"cancel is answered",
		[]string{"cancel", "concurrent", "reentrant"}, cancelAcquire},
	{"renew", "10 Requests (renew)",
		"a renewal keeps the fence; without a hold it is the error not_held",
		[]string{"renew"}, renew},
	{"500-keys", "4 Messages",
		"500 keys are acquired and released at once", []string{"concurrent"}, manyKeys},
	{"acquire-many", "10 Requests (acquire-many)",
		"acquire-many acquires all keys, each with its own fence", []string{"many"}, acquireMany},
	{"acquire-many-fails", "10 Requests (acquire-many)",
		"acquire-many acquires all keys or none", []string{"many"}, acquireManyFails},
	{"many-lengths", "10 Requests (acquire-many)",
		"a reply with too few grants, or too few codes, ends the connection",
		[]string{"many"}, manyLengths},
	{"acquire-many-too-large", "3 Frames and values",
		"a request that does not fit into a frame is not sent", []string{"many"}, tooLarge},
	{"acquire-any", "10 Requests (acquire-any)",
		"acquire-any acquires one of the keys, and tells which", []string{"any"}, acquireAny},
	{"acquire-any-index", "10 Requests (acquire-any)",
		"a grant of a key that was not named ends the connection", []string{"any"}, anyIndex},
	{"acquire-any-crossed", "10 Requests (cancel)",
		"a grant of one of several keys that crosses its cancel is kept or released, not forgotten",
		[]string{"any", "cancel", "concurrent"}, anyCrossed},
	{"keep", "8 Holding",
		"a hold with a keep becomes detached, and can be released then; or it is released now",
		[]string{"keep"}, keep},
}

func acquireForever(key string) client.AcquireArgs {
	return client.AcquireArgs{Key: key, Owner: rival, Wait: client.Forever}
}

func oddKeys(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	keys := []string{
		"a",
		" ", " a ", "a ", "/", "../../etc/passwd", "order:42", "ORDER:42", "Order:42", "%s%n", `"`, `'`,
		`\`, `\u0041`, "{a}",
		"ä",
		"a\u0308", "\u00a0", "\u2028", "\ufeff", "\ufffd", "\uffff", "\U0001f512", "\U0010ffff", "ключ",
		"鍵", "\u202egnissor", "null", "0", "-1",
		strings.Repeat("x", protocol.MaxKey), strings.Repeat("\U0001f512", protocol.MaxKey/4),
		strings.Repeat("é", protocol.MaxKey/2),
	}
	fences := make([]Fence, len(keys))
	for i, k := range keys {
		a := t.acquire(want{key: k}).answer()
		if !a.OK || a.Fence == nil {
			t.failf("the key %.40q, free and legal, cannot be acquired: %s", k, a.Error)
		}
		fences[i] = *a.Fence
	}
	for _, k := range keys {
		p.excluded(k, "the client holds it, or should")
	}
	n := 0
	for row, err := range p.c.All(t.ctx, "") {
		t.must(err)
		if !slices.Contains(keys, row.Key) {
			t.failf("the client holds %.40q, which is none of the keys that it was told to "+
				"acquire", row.Key)
		}
		n++
	}
	if n != len(keys) {
		t.failf("the client holds %d keys; it was told to acquire %d", n, len(keys))
	}
	for i, k := range keys {
		t.release(k, fences[i]).ok()
	}
	for _, k := range keys {
		p.free(k, "the client has released it")
	}
}

func badKeys(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "good"}).fence()
	for _, k := range []string{"", "\x00", "a\x00b", "\n", "tab\t", "\x1f", "\x7f", "\u0080",
		"\u0085", "\u009f",
		strings.Repeat("x", protocol.MaxKey+1), strings.Repeat("é", protocol.MaxKey/2) + "x",
		strings.Repeat("x", 60_000), strings.Repeat("x", 100_000)} {
		t.acquire(want{key: k}).fails("invalid")
	}
	t.mustHold("good", f, "after keys that cannot be")
	p.excluded("good", "the session goes on")
	t.release("good", f).ok()
}

func badTerms(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "good"}).fence()
	for _, ttl := range []int64{-1, protocol.MaxTTL + 1, 1 << 40, 1 << 53} {
		t.acquire(want{key: "k", ttl: ttl}).fails("invalid")
	}
	t.mustHold("good", f, "after a TTL that cannot be")
	p.excluded("good", "the session goes on")
	k := t.acquire(want{key: "k", ttl: protocol.MaxTTL}).fence()
	t.release("k", k).ok()
}

func (t *T) cancel(p *pending) *pending { return t.send(Command{"do": "cancel", "target": p.id}) }

func cancel(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	theirs := p.acquire("k", "nobody has it")
	w := t.acquire(want{key: "k", wait: -1})
	p.waiters("k", 1)
	t.cancel(w).ok()
	w.fails("canceled")
	p.waiters("k", 0)
	p.release("k", theirs)
	f := t.acquire(want{key: "k"}).fence()
	t.mustHold("k", f, "acquired after a wait was withdrawn")
	t.release("k", f).ok()
	p.free("k", "the client has released it")
}

func cancelCrossed(t *T) {
	f := t.fake()
	t.connect().ok()
	w := t.acquire(want{key: "k", wait: -1})
	q := f.expectAcquire("k")
	t.cancel(w)
	c := f.expect(protocol.OpCancel, "the cancel")
	if c.Target != q.ID || string(c.Key) != "k" {
		t.failf("the cancel is for the id %d and the key %q; the acquire has the id %d and the "+
			"key k", c.Target, c.Key, q.ID)
	}
	// The grant crosses the cancel: the daemon answers the target first, and then the cancel.
	q.c.free(c.ID)
	q.c.answer(q.ID, protocol.AppendCanceled(protocol.AppendGrant(nil, q.ID, f.grant(5)), c.ID, false))
	a := w.answer()
	if a.OK {
		t.mustHold("k", w.fence(), "the client says that it has it")
		f.letGo("k", 5)
	} else {
		w.fails("canceled")
		back := f.expect(protocol.OpRelease, "the release of a grant that crossed its cancel")
		if string(back.Key) != "k" || back.Owner != q.Owner || back.Fence != 5 {
			t.failf("a grant of k with the fence 5 crossed its cancel, and the client released "+
				"%q with the fence %d", back.Key, back.Fence)
		}
		back.released()
	}
	t.mustNotHold("k", 5, "it was withdrawn or released")
	_, again := f.hold(want{key: "k"}, f.grant(6))
	t.mustHold("k", again, "acquired after a wait was withdrawn")
}

// cancelAcquire delays the answer to a cancel. The client may send the next acquire of the owner
// only after that answer, or with another owner number.
func cancelAcquire(t *T) {
	f := t.fake()
	t.connect().ok()
	w := t.acquire(want{key: "k", wait: -1, ttl: 0})
	q := f.expectAcquire("k")
	t.cancel(w)
	c := f.expect(protocol.OpCancel, "the cancel")
	next := t.acquire(want{key: "k", wait: -1})
	var again asked
	take := func(q2 asked) {
		if q2.Op == protocol.OpAcquire && string(q2.Key) == "k" {
			if q2.Owner == q.Owner && again.c == nil && c.c != nil {
				t.failf("the client has asked for the key again under the same owner before the " +
					"cancel of its first acquire was answered: if the first was granted, the " +
					"second re-enters it")
			}
			again = q2
			return
		}
		t.answerRelease(q2, protocol.OK)
	}
	f.barrierWith(take)
	// The grant has crossed the cancel. A client that keeps this hold would re-enter it.
	q.c.free(c.ID)
	q.c.answer(q.ID, protocol.AppendCanceled(protocol.AppendGrant(nil, q.ID, f.grant(5)), c.ID, false))
	c.c = nil
	t.poll("the acquire after the cancel", func() bool { f.each(take); return again.c != nil || next.done() })
	if again.c != nil {
		fence := uint64(6)
		if w.done() && w.answer().OK {
			fence = 5
		}
		again.give(f.grant(fence))
	}
	got := next.fence()
	t.mustHold("k", got, "acquired after a wait was canceled")
}

func renew(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "k"}).fence()
	a := t.renew("k", f, 60_000).ok()
	if a.Fence != nil && *a.Fence != f {
		t.failf("the fence %v has become %v by a renewal", f, *a.Fence)
	}
	t.mustHold("k", f, "after a renewal")
	p.excluded("k", "the client holds it")
	t.release("k", f).ok()
	t.renew("k", f, 0).fails("not_held")
	p.free("k", "a renewal of what is not held takes nothing")
}

func manyKeys(t *T) {
	const n = 500
	r := t.real()
	p := r.peer()
	t.connect().ok()
	ps := make([]*pending, n)
	for i := range n {
		ps[i] = t.acquire(want{key: fmt.Sprint("k", i), wait: -1})
	}
	fences := make([]Fence, n)
	for i := range n {
		if fences[i] = ps[i].fence(); fences[i] == 0 {
			t.failf("the fence of k%d is 0", i)
		}
	}
	rows := 0
	for _, err := range p.c.All(t.ctx, "") {
		t.must(err)
		rows++
	}
	if rows != n {
		t.failf("the client says that it holds %d keys, and the daemon knows of %d", n, rows)
	}
	for i := range n {
		ps[i] = t.release(fmt.Sprint("k", i), fences[i])
	}
	for _, p := range ps {
		p.ok()
	}
	p.free("k0", "the client has released it")
	p.free("k499", "the client has released it")
}

func (t *T) acquireMany(keys []string, wait int64) *pending {
	return t.send(Command{"do": "acquire_many", "keys": keys, "owner": 1, "mode": "exclusive",
		"wait_ms": wait, "ttl_ms": 0})
}

func (t *T) releaseMany(keys []string, fences []Fence) *pending {
	return t.send(Command{"do": "release_many", "keys": keys, "owner": 1, "fences": fences})
}

func (p *pending) fences(n int) []Fence {
	a := p.ok()
	if len(a.Fences) != n {
		p.t.failf("%s has %d fences for %d keys", p.what, len(a.Fences), n)
	}
	return a.Fences
}

func acquireMany(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	keys := []string{"zebra", "ant", "mouse", "Ant", "ä"}
	p.free("mouse", "nobody has it") // so that the fences differ more
	fences := t.acquireMany(keys, -1).fences(len(keys))
	for i, k := range keys {
		s, err := p.c.Inspect(t.ctx, k)
		t.must(err)
		if s.Fence != uint64(fences[i]) {
			t.failf("%q has the fence %d, and the client says %v", k, s.Fence, fences[i])
		}
		t.mustHold(k, fences[i], "after acquire_many")
		p.excluded(k, "the client holds it with others")
	}
	t.releaseMany(keys, fences).ok()
	for i, k := range keys {
		t.mustNotHold(k, fences[i], "after release_many")
		p.free(k, "the client has released it with others")
	}
}

func acquireManyFails(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	theirs := p.acquire("m", "nobody has it")
	t.acquireMany([]string{"a", "m", "z"}, 0).fails("busy")
	t.timesOut(func() *pending { return t.acquireMany([]string{"z", "m", "a"}, soon.Milliseconds()) })
	for _, k := range []string{"a", "z"} {
		p.free(k, "the client got none of them")
	}
	p.release("m", theirs)
	t.acquireMany([]string{"a", "b", "a"}, 0).fails("invalid")
	fences := t.acquireMany([]string{"z", "m", "a"}, 0).fences(3)
	t.releaseMany([]string{"z", "m", "a"}, fences).ok()
}

func manyLengths(t *T) {
	f := t.fake()
	keys := []string{"a", "b", "c"}
	for _, n := range []int{0, 2} {
		t.connect().ok()
		p := t.acquireMany(keys, 0)
		q := f.expect(protocol.OpAcquireMany, "the acquire-many")
		gs := make([]protocol.Grant, n)
		for i := range gs {
			gs[i] = *f.grant(uint64(10 + i))
		}
		q.c.send(protocol.AppendGrants(nil, q.ID, gs))
		q.c.parted(fmt.Sprintf("%d grants for %d keys", n, len(keys)))
		p.fails()
	}
	t.connect().ok()
	p := t.acquireMany(keys, 0)
	q := f.expect(protocol.OpAcquireMany, "the acquire-many")
	q.c.answer(q.ID, protocol.AppendGrants(nil, q.ID,
		[]protocol.Grant{*f.grant(21), *f.grant(22), *f.grant(23)}))
	p = t.releaseMany(keys, p.fences(len(keys)))
	// Otherwise the client releases the keys one by one.
	if q = f.next("the release-many"); q.Op == protocol.OpReleaseMany {
		q.c.send(protocol.AppendCodes(nil, q.ID, make([]protocol.Code, 2)))
		q.c.parted("2 codes for 3 keys")
	} else {
		q.released()
		t.poll(p.what, func() bool { f.drop(); return p.done() })
	}
	p.answer()
}

func tooLarge(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	f := t.acquire(want{key: "good"}).fence()
	var keys []string
	for i := range 200 {
		keys = append(keys, fmt.Sprintf("%0500d", i))
	}
	t.acquireMany(keys, 0).fails("invalid", "limit", "overlong")
	t.mustHold("good", f, "after a request that does not fit into a frame")
	if _, err := p.try(keys[0], false); errors.Is(err, client.ErrBusy) {
		t.failf("a request that failed holds something")
	}
}
