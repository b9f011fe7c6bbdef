package conformance

import (
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Sections 10 and 11: quiet releases, and unlocking by force.
var quietScenarios = []Scenario{
	{"quiet-release", "10 Requests (release)",
		"a quiet release waits for no answer, and the key can be acquired again at once",
		[]string{"quiet"}, quietRelease},
	{"quiet-release-failed", "11 Pushes",
		"a quiet release that fails is told once, as a loss, and ends no other hold",
		[]string{"quiet", "events"}, quietReleaseFailed},
	{"quiet-release-expired", "9 Validity",
		"the quiet release of a lost hold is the error not_held, and is not sent quietly",
		[]string{"quiet"}, quietReleaseExpired},
	{"force-unlock", "10 Requests (force-unlock)",
		"unlocking by force ends the holds of a key, or the one with a fence",
		[]string{"unlock"}, forceUnlock},
}

// sendQuiet tells the client to release a hold quietly.
func (t *T) sendQuiet(key string, fence Fence) *pending {
	return t.send(Command{"do": "release", "key": key, "owner": 1, "fence": fence, "quiet": true})
}

// quietly makes the client release a hold quietly, and returns the request.
func (f *fake) quietly(key string, fence Fence) asked {
	p := f.t.sendQuiet(key, fence)
	q := f.expect(protocol.OpRelease, fmt.Sprintf("the quiet release of %q", key))
	if string(q.Key) != key || q.Fence != uint64(fence) || q.Flags&protocol.FlagQuiet == 0 {
		f.t.failf("the client was told to release %q with the fence %v quietly and sent %q, %d and "+
			"the flags %d", key, fence, q.Key, q.Fence, q.Flags)
	}
	p.ok()
	f.t.mustNotHold(key, fence, "it was released quietly")
	return q
}

func quietRelease(t *T) {
	f := t.fake()
	t.connect().ok()
	for fence := range uint64(3) {
		_, held := f.hold(want{key: "k"}, f.grant(3+fence))
		t.mustHold("k", held, "before its quiet release")
		f.quietly("k", held)
	}
}

// quietReleaseFailed has quiet releases fail when their owner has the key again.
func quietReleaseFailed(t *T) {
	f := t.fake()
	t.connect().ok()
	for i, c := range []struct {
		code    protocol.Code
		crossed bool // the hold is called lost before the client's release arrives
		reason  string
	}{
		{protocol.NotHeld, false, "gone"},
		{protocol.NotHeld, true, "gone"},
		{protocol.Unknown, false, "unconfirmed"},
	} {
		key := fmt.Sprint("k", i)
		_, fence := f.hold(want{key: key}, f.grant(uint64(10+10*i)))
		q := f.quietly(key, fence)
		if c.crossed {
			q.c.send(protocol.AppendLost(nil, key, q.Owner, q.Fence, protocol.LostForced))
		}
		_, again := f.hold(want{key: key}, f.grant(q.Fence+1))
		q.refuse(c.code)
		f.barrier()
		t.told(key, fence, c.reason)
		t.mustHold(key, again, "the quiet release of an earlier hold has failed")
		f.letGo(key, again)
		if n := t.losses(key); n != 1 {
			t.failf("there are %d lost events of %q, which has failed once", n, key)
		}
	}
}

// losses returns the number of lost events of a key.
func (t *T) losses(key string) (n int) {
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	for _, e := range t.p.events {
		if e.Event == "lost" && e.Key == key {
			n++
		}
	}
	return n
}

// quietReleaseExpired lets holds run out, or calls them lost by force, before their quiet release.
func quietReleaseExpired(t *T) {
	f := t.fake()
	t.connect().ok()
	_, fence, until := f.shortHold("k", 3)
	t.after(until)
	f.releaseLostQuietly("k", fence, protocol.OK)

	q, fence := f.hold(want{key: "l"}, f.grant(4))
	q.c.send(protocol.AppendLost(nil, "l", q.Owner, 4, protocol.LostForced))
	f.barrier()
	f.releaseLostQuietly("l", fence, protocol.NotHeld)
}

// releaseLostQuietly makes the client release a lost hold quietly. If the client tells the daemon,
// the daemon answers with c.
func (f *fake) releaseLostQuietly(key string, fence Fence, c protocol.Code) {
	p := f.t.sendQuiet(key, fence)
	f.t.poll(p.what, func() bool {
		f.each(func(q asked) {
			if q.Flags&protocol.FlagQuiet != 0 {
				f.t.failf("%q is lost, and the client has sent a quiet release of it", key)
			}
			f.t.answerRelease(q, c)
		})
		return p.done()
	})
	p.fails("not_held")
}

func forceUnlock(t *T) {
	r := t.real()
	p := r.peer()
	t.connect().ok()
	unlock := func(key string, fence Fence, ended uint64) {
		a := t.send(Command{"do": "force_unlock", "key": key, "fence": fence}).ok()
		if a.Ended == nil || *a.Ended != ended {
			t.failf("the client was told to unlock %q with the fence %v by force, which ends %d "+
				"holds; its answer says otherwise", key, fence, ended)
		}
	}
	unlock("k", 0, 0)
	a := p.acquire("k", "it is free")
	unlock("k", a+1, 0)
	unlock("k", a, 1)
	_, err := p.c.Release(t.ctx, client.ReleaseArgs{Key: "k", Owner: rival, Fence: uint64(a)})
	if !errors.Is(err, client.ErrNotHeld) {
		t.failf("the hold was unlocked by force, and its release is %v", err)
	}
	p.acquire("k", "it was unlocked by force")
	unlock("k", 0, 1)
	mine := t.acquire(want{key: "mine"}).fence()
	unlock("mine", 0, 1)
	t.parts("mine", mine, "it was unlocked by force")
	t.told("mine", mine, "forced")
	t.release("mine", mine).fails("not_held")
}
