package conformance

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// Section 10: acquire-any.

func (t *T) acquireAny(keys []string, wait int64) *pending {
	return t.send(Command{"do": "acquire_any", "keys": keys, "owner": 1, "mode": "exclusive",
		"wait_ms": wait, "ttl_ms": 0})
}

// anyOf returns the key that was acquired, and the fence.
func (p *pending) anyOf(keys []string) (key string, fence Fence) {
	a := p.ok()
	if a.Fence == nil || !slices.Contains(keys, a.Key) {
		p.t.failf("%s has no fence, or the key %q, which was not named", p.what, a.Key)
	}
	return a.Key, *a.Fence
}

func acquireAny(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	keys := []string{"zebra", "ant", "mouse", "ä"}
	theirs := make(map[string]Fence)
	for _, free := range keys {
		for _, k := range keys {
			if k != free {
				theirs[k] = p.acquire(k, "nobody has it")
			}
		}
		key, fence := t.acquireAny(keys, 0).anyOf(keys)
		if key != free {
			t.failf("only %q is free, and the client says that it has %q", free, key)
		}
		t.mustHold(free, fence, "after acquire_any")
		p.excluded(free, "the client holds it")
		if free == "ä" {
			taken := keys[:3]
			t.acquireAny(taken, 0).fails("busy")
			t.timesOut(func() *pending { return t.acquireAny(taken, soon.Milliseconds()) })
		}
		t.release(free, fence).ok()
		t.mustNotHold(free, fence, "after its release")
		p.free(free, "the client has released it")
		for _, k := range keys {
			if k != free {
				p.release(k, theirs[k])
			}
		}
	}
	t.acquireAny([]string{"ant", "mouse", "ant"}, 0).fails("invalid")
	for _, k := range keys {
		p.free(k, "the client has released what it had")
	}
}

func anyIndex(t *T) {
	f := t.fake()
	keys := []string{"a", "b", "c"}
	for _, index := range []uint64{3, 1 << 40} {
		t.connect().ok()
		p := t.acquireAny(keys, 0)
		q := f.expect(protocol.OpAcquireAny, "the acquire-any")
		q.c.send(protocol.AppendGrantOf(nil, q.ID, f.grant(7), index))
		q.c.parted("a grant of a key that was not named")
		p.fails()
	}
}

func anyCrossed(t *T) {
	f := t.fake()
	t.connect().ok()
	keys := []string{"a", "b", "c"}
	w := t.acquireAny(keys, -1)
	q := f.expect(protocol.OpAcquireAny, "the acquire-any")
	t.cancel(w)
	c := f.expect(protocol.OpCancel, "the cancel")
	if c.Target != q.ID || !slices.Contains(keys, string(c.Key)) {
		t.failf("the cancel is for the id %d and the key %q; the acquire-any has the id %d and the "+
			"keys %q", c.Target, c.Key, q.ID, keys)
	}
	q.c.free(c.ID)
	q.c.answer(q.ID, protocol.AppendCanceled(
		protocol.AppendGrantOf(nil, q.ID, f.grant(5), 1), c.ID, false))
	if w.answer().OK {
		key, fence := w.anyOf(keys)
		t.mustHold(key, fence, "the client says that it has it")
		f.letGo("b", 5)
		return
	}
	w.fails("canceled")
	back := f.expect(protocol.OpRelease, "the release of a grant that crossed its cancel")
	if string(back.Key) != "b" || back.Owner != q.Owner || back.Fence != 5 {
		t.failf("a grant of b with the fence 5 crossed its cancel, and the client released "+
			"%q with the fence %d", back.Key, back.Fence)
	}
	back.released()
	t.mustNotHold("b", 5, "it was withdrawn")
}
