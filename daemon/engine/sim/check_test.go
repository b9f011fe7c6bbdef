package sim

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// quiet is a world in which nothing has happened yet: a Redis, some hosts, no
// faults, and two clients that are connected.
func quiet(t *testing.T) (w *World, a, b *client) {
	t.Helper()
	for seed := uint64(1); w == nil; seed++ {
		p := emptyWorld(seed).newProfile(int64(time.Minute))
		if p.Store == likeRedis && p.Foreign > 0 && p.TTLs[0] >= 1000 && !p.Pairs {
			w = newWorld(seed, time.Minute, 0)
		}
	}
	w.p.Calm, w.p.MaxHold = true, 0
	for _, c := range w.clients[:2] {
		c.k = newConn(c)
		c.known = make(map[grantID]*hold)
	}
	return w, w.clients[0], w.clients[1]
}

// hears has the client read a frame from its daemon.
func (c *client) hears(t *testing.T, frame []byte) {
	t.Helper()
	payload, _, ok, err := protocol.Cut(frame, 1<<20)
	if !ok || err != nil {
		t.Fatal("not a frame")
	}
	m, err := protocol.DecodeMessage(payload)
	if err != nil {
		t.Fatal(err)
	}
	c.handle(m)
}

// asked is a request under way.
func (c *client) asked(q *request) *request {
	c.nextID++
	q.id, q.key, q.k, q.sent = c.nextID, c.w.keys[0], c.k, c.w.now
	c.calls = append(c.calls, q)
	return q
}

// takes has the client hold the first key, by a grant as the daemon would send it.
func (c *client) takes(t *testing.T, mode protocol.Mode, fence uint64) *hold {
	t.Helper()
	q := c.asked(&request{op: protocol.OpAcquire, mode: mode, ttl: 1000})
	c.hears(t, grant(c, q.id, fence, 1))
	return c.known[grantID{q.key, 0, fence}]
}

func grant(c *client, id, fence, count uint64) []byte {
	until := uint64(c.clock()/ms - c.offset + 1000)
	return protocol.AppendGrant(nil, id, &protocol.Grant{Fence: fence, Count: count,
		Deadline: until, Left: 1000})
}

func failure(id uint64, code protocol.Code) []byte {
	return protocol.AppendError(nil, id, code, "", -1)
}

func lost(h *hold, why protocol.Reason) []byte {
	return protocol.AppendLost(nil, h.key.name, h.owner, h.fence, why)
}

// keeps makes the daemon keep the key of a hold for d from now on.
func (c *client) keeps(h *hold, d int64) *kept {
	id := audited{0, h.key.name, h.owner, h.fence}
	x := &kept{h: c.h, id: id, until: c.h.boot() + d, as: h}
	c.h.kept[id], c.h.audit[id] = x, 1
	c.w.kept = append(c.w.kept, x)
	return x
}

func releaseFailed(h *hold, code protocol.Code) []byte {
	return protocol.AppendReleaseFailed(nil, h.key.name, h.owner, h.fence, code, "")
}

// releasesQuietly has the client send a quiet release of a hold.
func (c *client) releasesQuietly(h *hold) {
	c.givesUp(h, true)
	id := grantID{h.key, h.owner, h.fence}
	c.k.quiet[id] = append(c.k.quiet[id], &request{op: protocol.OpRelease, key: h.key, holds: []*hold{h}})
}

const exclusive, shared, permit = protocol.Exclusive, protocol.Shared, protocol.Permit

// semaphore makes the first key one.
func (w *World) semaphore(permits int) {
	w.keys[0].permits, w.keys[0].fences = permits, make(map[fenceAt]*hold)
}

// histories are those that must not be, by the check that says so, and some that
// may be.
var histories = []struct {
	check string // "" for a good one
	what  string
	play  func(t *testing.T, w *World, a, b *client)
}{
	{"", "one holder after the other", func(t *testing.T, w *World, a, b *client) {
		w.over(a.takes(t, exclusive, 5<<10))
		w.over(b.takes(t, exclusive, 5<<10+1))
		a.takes(t, shared, 6<<10)
		b.takes(t, shared, 6<<10)
	}},
	{"", "the next one comes when the validity is over", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		w.now = a.h.trueTime((h.valid)*ms - a.off)
		b.takes(t, exclusive, 6<<10)
	}},
	{"two holders", "both exclusive", func(t *testing.T, w *World, a, b *client) {
		a.takes(t, exclusive, 5<<10)
		b.takes(t, exclusive, 6<<10)
	}},
	{"two holders", "a reader beside a writer", func(t *testing.T, w *World, a, b *client) {
		a.takes(t, exclusive, 5<<10)
		b.takes(t, shared, 6<<10)
	}},
	{"two holders", "the former's validity comes back after the next has come",
		func(t *testing.T, w *World, a, b *client) {
			h := a.takes(t, exclusive, 5<<10)
			w.now = a.h.trueTime((h.valid)*ms - a.off)
			b.takes(t, exclusive, 6<<10)
			a.keepalive(h.valid + 5000)
		}},
	{"two holders", "a plain locker beside a holder", func(t *testing.T, w *World, a, b *client) {
		a.takes(t, shared, 5<<10)
		f := w.foreign[0]
		f.took(w.keys[0], f.clock()+sec, 0)
	}},
	{"two holders", "a holder beside a plain locker", func(t *testing.T, w *World, a, b *client) {
		f := w.foreign[0]
		f.took(w.keys[0], f.clock()+sec, 0)
		a.takes(t, exclusive, 5<<10)
	}},
	{"", "as many permits as there are, and one more when one is given back",
		func(t *testing.T, w *World, a, b *client) {
			w.semaphore(2)
			h := a.takes(t, permit, 5<<10+512)
			b.takes(t, permit, 6<<10+512)
			w.over(h)
			a.takes(t, permit, 5<<10+513)
		}},
	{"two holders", "more permits than there are", func(t *testing.T, w *World, a, b *client) {
		w.semaphore(2)
		a.takes(t, permit, 5<<10+512)
		b.takes(t, permit, 6<<10+512)
		b.takes(t, permit, 7<<10+512)
	}},
	{"fence order", "two permits with the same fence", func(t *testing.T, w *World, a, b *client) {
		w.semaphore(2)
		a.takes(t, permit, 5<<10+512)
		b.takes(t, permit, 5<<10+512)
	}},
	{"order", "the second waiter gets a permit", func(t *testing.T, w *World, a, b *client) {
		w.semaphore(1)
		q1, q2 := a.asked(&request{op: protocol.OpAcquire, mode: permit, seq: 1}),
			a.asked(&request{op: protocol.OpAcquire, mode: permit, seq: 2})
		a.h.waits[q1.key] = append(a.h.waits[q1.key], q1)
		a.h.grants = append(a.h.grants, granted{a.k, q2, q2.key, 5<<10 + 512})
		w.checkOrder(a.h)
	}},
	{"fence order", "a later exclusive holder with the same fence",
		func(t *testing.T, w *World, a, b *client) {
			w.over(a.takes(t, exclusive, 5<<10))
			b.takes(t, exclusive, 5<<10)
		}},
	{"fence order", "… with a smaller one than an earlier reader's",
		func(t *testing.T, w *World, a, b *client) {
			w.over(a.takes(t, shared, 5<<10+3))
			b.takes(t, exclusive, 5<<10+2)
		}},
	{"fence order", "a reader with the fence of the exclusive holder before",
		func(t *testing.T, w *World, a, b *client) {
			w.over(a.takes(t, exclusive, 5<<10))
			b.takes(t, shared, 5<<10)
		}},
	{"fence order", "a daemon's fence is smaller at another store",
		func(t *testing.T, w *World, a, b *client) {
			w.over(a.takes(t, exclusive, 9<<10))
			a.h.conf.namespaces[0].at = w.newStore(likeRedis)
			a.takes(t, exclusive, 8<<10)
		}},
	{"", "… at one that decides it itself, or another daemon's",
		func(t *testing.T, w *World, a, b *client) {
			w.over(a.takes(t, exclusive, 9<<10))
			w.p.Rebase = false
			a.h.conf.namespaces[0].at = w.newStore(likeEtcd)
			w.over(a.takes(t, exclusive, 8<<10))
			a.k.gen++
			a.h.conf.namespaces[0].at = w.newStore(likeRedis)
			a.takes(t, exclusive, 7<<10)
		}},
	{"fence", "none at all", func(t *testing.T, w *World, a, b *client) { a.takes(t, exclusive, 0) }},
	{"fenced write", "the present holder's write is refused",
		func(t *testing.T, w *World, a, b *client) {
			old := a.takes(t, exclusive, 9<<10)
			w.written(old)
			w.over(old)
			// so that the order of the fences is not seen first
			w.keys[0].fencesOf(old)[0].exclusive, w.keys[0].own = nil, nil
			w.written(b.takes(t, exclusive, 8<<10))
		}},
	{"stale write", "an earlier holder's write is taken behind a later one's",
		func(t *testing.T, w *World, a, b *client) {
			old := a.takes(t, exclusive, 9<<10)
			w.over(old)
			w.keys[0].fencesOf(old)[0].exclusive, w.keys[0].own = nil, nil
			w.written(b.takes(t, exclusive, 8<<10))
			w.written(old)
		}},
	{"past the deadline", "a grant is sent when its deadline is over",
		func(t *testing.T, w *World, a, b *client) {
			q := a.asked(&request{op: protocol.OpAcquire, ttl: 1000})
			w.inTime(a.k, q, q.key, &protocol.Grant{Fence: 5 << 10, Count: 1,
				Deadline: uint64(a.h.clock()/ms - 1)})
		}},
	{"a third of the TTL", "a handoff gives less", func(t *testing.T, w *World, a, b *client) {
		q := a.asked(&request{op: protocol.OpAcquire, ttl: 1000})
		w.inTime(a.k, q, q.key, &protocol.Grant{Fence: 5<<10 + 1, Count: 1,
			Deadline: uint64(a.h.clock()/ms + 300)})
	}},
	{"fixed", "a hold ends before its TTL is over", func(t *testing.T, w *World, a, b *client) {
		q := a.asked(&request{op: protocol.OpAcquire, ttl: 5000, fixed: true, cameAt: a.h.clock()})
		end := uint64((a.h.clock() + 4900*ms - w.p.Timeout) / ms)
		w.inTime(a.k, q, q.key, &protocol.Grant{Fence: 5 << 10, Count: 1, Deadline: end, End: end})
	}},
	{"order", "the second waiter is let in", func(t *testing.T, w *World, a, b *client) {
		q1, q2 := a.asked(&request{op: protocol.OpAcquire, seq: 1}),
			b.asked(&request{op: protocol.OpAcquire, seq: 2})
		a.h.waits[q1.key] = append(a.h.waits[q1.key], q1)
		a.h.grants = append(a.h.grants, granted{b.k, q2, q2.key, 5 << 10})
		w.checkOrder(a.h)
	}},
	{"every wait ends", "an answer is late", func(t *testing.T, w *World, a, b *client) {
		a.asked(&request{op: protocol.OpAcquire, wait: 10, late: patience})
		w.now += patience + ms
		w.audit()
	}},
	{"nothing left", "a session stays", func(t *testing.T, w *World, a, b *client) {
		a.h.eng.Open(engine.Peer{}, a.k)
		w.nothingLeft()
	}},
	{"nothing left", "a key stays in the store", func(t *testing.T, w *World, a, b *client) {
		w.stores[0].redis.foreignTake(w.keys[0].name, 1, 1000)
		w.nothingLeft()
	}},
	{"", "nothing stays", func(t *testing.T, w *World, a, b *client) { w.nothingLeft() }},
	{"grant", "a fence that has been given already", func(t *testing.T, w *World, a, b *client) {
		a.takes(t, exclusive, 5<<10)
		a.takes(t, exclusive, 5<<10)
	}},
	{"grant", "re-entry of what is not held", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, grant(a, a.asked(&request{op: protocol.OpAcquire}).id, 5<<10, 2))
	}},
	{"upgrade", "a reader becomes a writer", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, shared, 5<<10)
		a.hears(t, grant(a, a.asked(&request{op: protocol.OpAcquire}).id, h.fence, 2))
	}},
	{"count", "a re-entry is not counted", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		a.hears(t, grant(a, a.asked(&request{op: protocol.OpAcquire}).id, h.fence, 3))
	}},
	{"count", "the last release leaves something", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		q := a.asked(&request{op: protocol.OpRelease, holds: []*hold{h}})
		a.hears(t, protocol.AppendReleased(nil, q.id, 1))
	}},
	{"lost", "a watched hold ends as fixed", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, lost(a.takes(t, exclusive, 5<<10), protocol.LostFixed))
	}},
	{"lost", "a hold is lost though nothing was wrong", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, lost(a.takes(t, exclusive, 5<<10), protocol.LostExpired))
	}},
	{"lost once", "… twice", func(t *testing.T, w *World, a, b *client) {
		w.p.Calm = false
		h := a.takes(t, exclusive, 5<<10)
		a.hears(t, lost(h, protocol.LostExpired))
		a.hears(t, lost(h, protocol.LostExpired))
	}},
	{"lost before grant", "what was never granted", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, lost(&hold{key: w.keys[0], fence: 5 << 10}, protocol.LostExpired))
	}},
	{"lost in time", "a renewal says that the hold is gone, and no lost came",
		func(t *testing.T, w *World, a, b *client) {
			h := a.takes(t, exclusive, 5<<10)
			a.hears(t, failure(a.asked(&request{op: protocol.OpRenew, holds: []*hold{h}}).id,
				protocol.NotHeld))
		}},
	{"after lost", "a renewal is granted after that", func(t *testing.T, w *World, a, b *client) {
		w.p.Calm = false
		h := a.takes(t, exclusive, 5<<10)
		a.hears(t, lost(h, protocol.LostExpired))
		a.hears(t, grant(a, a.asked(&request{op: protocol.OpRenew, holds: []*hold{h}}).id, h.fence, 1))
	}},
	{"forced", "nobody has unlocked it", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, lost(a.takes(t, exclusive, 5<<10), protocol.LostForced))
	}},
	{"forced", "one hold is ended, and two are said to be", func(t *testing.T, w *World, a, b *client) {
		a.h.forced[w.keys[0].name] = 1
		a.h.unlocked(w.keys[0], 2)
	}},
	{"forced", "its holder is not told", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		a.k.forced[grantID{h.key, h.owner, h.fence}]++
		a.hasBeenTold()
	}},
	{"", "it is unlocked, and its holder is told", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		a.k.forced[grantID{h.key, h.owner, h.fence}]++
		a.hears(t, lost(h, protocol.LostForced))
		a.hasBeenTold()
	}},
	{"one push", "a quiet release fails that was not sent", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, releaseFailed(a.takes(t, exclusive, 5<<10), protocol.NotHeld))
	}},
	{"one push", "a quiet release fails twice", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		a.releasesQuietly(h)
		a.hears(t, releaseFailed(h, protocol.Unknown))
		a.hears(t, releaseFailed(h, protocol.NotHeld))
	}},
	{"one push", "the failure of a quiet release is not told", func(t *testing.T, w *World, a, b *client) {
		w.p.Calm = false
		h := a.takes(t, exclusive, 5<<10)
		a.releasesQuietly(h)
		a.hears(t, lost(h, protocol.LostExpired))
		a.hasReadFailures()
	}},
	{"", "… and is told", func(t *testing.T, w *World, a, b *client) {
		w.p.Calm = false
		h := a.takes(t, exclusive, 5<<10)
		a.releasesQuietly(h)
		a.hears(t, lost(h, protocol.LostExpired))
		a.hears(t, releaseFailed(h, protocol.NotHeld))
		a.hasReadFailures()
	}},
	{"bounded", "a handoff too many since another host wants the key",
		func(t *testing.T, w *World, a, b *client) {
			a.h.learns(&upstream.Op{Kind: cache.OpTry, Key: w.keys[0].name, Token: 7},
				&upstream.Result{Status: cache.Granted, Contended: true})
			for range w.p.Hands + 1 {
				a.h.bounded(w.keys[0])
			}
		}},
	{"", "as many as may be", func(t *testing.T, w *World, a, b *client) {
		op := upstream.Op{Kind: cache.OpJoin, Key: w.keys[0].name, Token: 7}
		a.h.learns(&op, &upstream.Result{Status: cache.Granted})
		for range w.p.Hands + 1 { // before it knows
			a.h.bounded(w.keys[0])
		}
		op.Kind = cache.OpRenew
		for range w.p.Hands {
			a.h.learns(&op, &upstream.Result{Status: cache.Done, Contended: true})
			a.h.bounded(w.keys[0])
		}
	}},
	{"stale fence", "a release with a wrong fence is carried out",
		func(t *testing.T, w *World, a, b *client) {
			q := a.asked(&request{op: protocol.OpRelease, holds: []*hold{nil}})
			a.hears(t, protocol.AppendReleased(nil, q.id, 0))
		}},
	{"stale fence", "… a renewal", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, grant(a, a.asked(&request{op: protocol.OpRenew, holds: []*hold{nil}}).id, 5<<10, 1))
	}},
	{"limits", "a session has more than it may", func(t *testing.T, w *World, a, b *client) {
		a.k.accept()
		w.p.MaxHolds = -1
		a.k.Flush()
	}},
	{"inspect", "it denies what is held", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		q := a.asked(&request{op: protocol.OpInspect, holds: []*hold{h}})
		a.hears(t, protocol.AppendInspected(nil, q.id, &protocol.State{Held: protocol.HeldNot, Left: -1}))
	}},
	{"cancel", "answered before its target", func(t *testing.T, w *World, a, b *client) {
		target := a.asked(&request{op: protocol.OpAcquire})
		a.hears(t, protocol.AppendCanceled(nil, a.asked(&request{op: protocol.OpCancel,
			target: target}).id, false))
	}},
	{"cancel", "it claims to have withdrawn what was granted",
		func(t *testing.T, w *World, a, b *client) {
			a.hears(t, protocol.AppendCanceled(nil, a.asked(&request{op: protocol.OpCancel,
				target: &request{}}).id, true))
		}},
	{"one reply", "a second one", func(t *testing.T, w *World, a, b *client) {
		q := a.asked(&request{op: protocol.OpPing})
		a.hears(t, protocol.AppendPong(nil, q.id, 1))
		a.hears(t, protocol.AppendPong(nil, q.id, 1))
	}},
	{"reply", "busy to one who waits", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, failure(a.asked(&request{op: protocol.OpAcquire, wait: 10}).id, protocol.Busy))
	}},
	{"reply", "a wrong request is carried out", func(t *testing.T, w *World, a, b *client) {
		q := a.asked(&request{op: protocol.OpPing, wrong: protocol.Invalid})
		a.hears(t, protocol.AppendPong(nil, q.id, 1))
	}},
	{"protocol", "a key that nobody uses", func(t *testing.T, w *World, a, b *client) {
		a.hears(t, lost(&hold{key: &key{name: "other"}}, protocol.LostExpired))
	}},
	{"takeover", "a session that has no connection", func(t *testing.T, w *World, a, b *client) {
		a.h.eng.Open(engine.Peer{}, a.k)
		a.h.passOn(a.h.conf)
	}},
	{"", "hosts whose keys are at different stores do not exclude each other",
		func(t *testing.T, w *World, a, b *client) {
			other := w.newStore(likeRedis)
			a.takes(t, exclusive, 5<<10)
			host := *a.h
			b.h, b.k.h = &host, &host
			b.h.bases = map[baseOf]*link{{w.keys[0], 6}: {h: b.h, s: other}}
			b.takes(t, exclusive, 6<<10)
		}},
	{"two holders", "those of one host do", func(t *testing.T, w *World, a, b *client) {
		other := w.newStore(likeRedis)
		a.takes(t, exclusive, 5<<10)
		b.h, b.k.h, b.k.gen = a.h, a.h, a.k.gen
		b.h.bases[baseOf{w.keys[0], 6}] = &link{h: b.h, s: other}
		b.takes(t, exclusive, 6<<10)
	}},
	{"silent", "a client that is heard of loses a hold as silent",
		func(t *testing.T, w *World, a, b *client) {
			w.p.Heartbeat, w.p.Faults[hostLag], a.k.heard = 2*sec, 0, w.now-sec
			w.emitted(a.k, lost(a.takes(t, exclusive, 5<<10), protocol.LostSilent))
		}},
	{"silent", "… or one that has answered every keepalive",
		func(t *testing.T, w *World, a, b *client) {
			w.p.Heartbeat, w.p.Faults[hostLag], a.k.heard, a.k.asked = 2*sec, 0, w.now-2*sec, 0
			w.emitted(a.k, lost(a.takes(t, exclusive, 5<<10), protocol.LostSilent))
		}},
	{"silent", "… or one that had no time to answer", func(t *testing.T, w *World, a, b *client) {
		w.p.Heartbeat, w.p.Faults[hostLag], a.k.heard, a.k.asked = 2*sec, 0, w.now-2*sec, w.now-sec/2
		w.emitted(a.k, lost(a.takes(t, exclusive, 5<<10), protocol.LostSilent))
	}},
	{"", "… one that is not", func(t *testing.T, w *World, a, b *client) {
		w.p.Heartbeat, w.p.Faults[hostLag], a.k.heard, a.k.asked = 2*sec, 0, w.now-2*sec, w.now-sec
		w.emitted(a.k, lost(a.takes(t, exclusive, 5<<10), protocol.LostSilent))
	}},
	{"dropped in use", "a store is dropped under a holder",
		func(t *testing.T, w *World, a, b *client) {
			a.takes(t, exclusive, 5<<10).link = a.h.links[0]
			a.h.dropped(a.h.links[0])
		}},
	{"reload", "a reload fails", func(t *testing.T, w *World, a, b *client) {
		w.conf.spare = []*simStore{w.newStore(likeRedis)}
		w.conf.spare[0].name = w.stores[0].name
		a.h.takeUp(w.conf, false)
	}},
	{"access", "a user whom the configuration does not name any more is let in",
		func(t *testing.T, w *World, a, b *client) {
			w.conf.namespaces[0].Users = []int{7}
			q := a.asked(&request{op: protocol.OpAcquire, ttl: 1000})
			w.mayHave(a.k, q.key, &protocol.Grant{Fence: 5 << 10, Count: 1})
		}},
	{"access", "a host grants alone where it may not", func(t *testing.T, w *World, a, b *client) {
		w.conf.namespaces[0].Local = false
		q := a.asked(&request{op: protocol.OpAcquire, ttl: 1000})
		w.mayHave(a.k, q.key, &protocol.Grant{Count: 1, Flags: protocol.GrantDegraded})
	}},
	{"audit", "a hold ends that has not begun", func(t *testing.T, w *World, a, b *client) {
		a.k.accept()
		observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeReleased, Session: &cache.Session{},
			Fence: 5 << 10}})
	}},
	{"audit", "one does not end", func(t *testing.T, w *World, a, b *client) {
		observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeAcquired, Session: &cache.Session{},
			Fence: 5 << 10}})
		a.h.auditEnds()
	}},
	{"audit", "a wait from before the beginning", func(t *testing.T, w *World, a, b *client) {
		observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeRefused, Took: a.h.boot()}})
	}},
	{"found gone", "a hold is lost at a release that it has not had",
		func(t *testing.T, w *World, a, b *client) {
			w.stores[0].lost(nil)
			observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeLost, Reason: protocol.LostGone,
				Released: true, Session: &cache.Session{}, Fence: 5 << 10}})
		}},
	{"found gone", "a hold is lost at its release, and no store has lost anything",
		func(t *testing.T, w *World, a, b *client) {
			w.p.Faults[hostLag], w.p.Faults[doubled] = 0, 0
			a.h.released[audited{fence: 5 << 10}] = true
			observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeLost, Reason: protocol.LostGone,
				Released: true, Session: &cache.Session{}, Fence: 5 << 10}})
		}},
	{"", "… and one that has", func(t *testing.T, w *World, a, b *client) {
		w.stores[0].lost(nil)
		a.h.released[audited{fence: 5 << 10}] = true
		observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeLost, Reason: protocol.LostGone,
			Released: true, Session: &cache.Session{}, Fence: 5 << 10}})
	}},
	{"view", "a hold is not shown", func(t *testing.T, w *World, a, b *client) {
		a.h.audit[audited{1, w.keys[0].name, 0, 5 << 10}] = 1
		a.h.view()
	}},
	{"limits", "more holds begin in a namespace than may", func(t *testing.T, w *World, a, b *client) {
		w.conf.namespaces[0].MaxHolds = 1
		for fence := range uint64(2) {
			observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeAcquired, Key: w.keys[0].name,
				Session: new(cache.Session), Fence: fence + 5}})
		}
	}},
	{"token", "a daemon asks for a token that it has withdrawn",
		func(t *testing.T, w *World, a, b *client) {
			for _, kind := range []cache.OpKind{cache.OpJoin, cache.OpWithdraw, cache.OpJoin} {
				newFlight(a.h.links[0], []upstream.Op{{Kind: kind, Key: w.keys[0].name, Token: 1}}).send()
			}
		}},
	{"", "… or for another one", func(t *testing.T, w *World, a, b *client) {
		for token, kind := range []cache.OpKind{cache.OpJoin, cache.OpWithdraw, cache.OpJoin} {
			newFlight(a.h.links[0], []upstream.Op{{Kind: kind, Key: w.keys[0].name,
				Token: uint64(1 + token/2)}}).send()
		}
	}},
	{"batch", "a batch renews a lock under two tokens",
		func(t *testing.T, w *World, a, b *client) {
			op := upstream.Op{Kind: cache.OpRenew, Key: w.keys[0].name, Token: 1}
			newFlight(a.h.links[0], []upstream.Op{op, {Kind: op.Kind, Key: op.Key, Token: 2}}).send()
		}},
	{"", "… or a semaphore", func(t *testing.T, w *World, a, b *client) {
		op := upstream.Op{Kind: cache.OpRenew, Mode: cache.Permit, Key: w.keys[0].name, Token: 1}
		newFlight(a.h.links[0], []upstream.Op{op, {Kind: op.Kind, Mode: op.Mode, Key: op.Key,
			Token: 2}}).send()
	}},
	{"silent", "a silent client keeps a hold", func(t *testing.T, w *World, a, b *client) {
		w.p.Heartbeat, w.conf.namespaces[0].Heartbeat = 2*sec, 2*time.Second
		w.p.Faults[hostLag] = 0
		w.conf.namespaces = w.conf.namespaces[:1]
		a.k.s = a.h.eng.Open(engine.Peer{PID: -1, Watched: true}, a.k)
		a.k.heard = w.now
		a.h.conns = append(a.h.conns, a.k)
		a.h.audit[audited{a.k.s.ID(), w.keys[0].name, 0, 5 << 10}] = 1
		w.now += 20 * sec
		a.h.keepsSilent()
	}},
	{"kept", "a client gets a key that its daemon keeps for another",
		func(t *testing.T, w *World, a, b *client) {
			h := a.takes(t, exclusive, 5<<10)
			a.keeps(h, sec)
			w.over(h)
			b.k.h, b.k.gen = a.h, a.h.gen
			b.takes(t, exclusive, 5<<10+1)
		}},
	{"", "… or for no longer", func(t *testing.T, w *World, a, b *client) {
		h := a.takes(t, exclusive, 5<<10)
		a.keeps(h, sec)
		w.over(h)
		w.now += 2 * sec
		b.takes(t, exclusive, 6<<10)
	}},
	{"kept", "a hold with a keep ends early", func(t *testing.T, w *World, a, b *client) {
		x := a.keeps(a.takes(t, exclusive, 5<<10), sec)
		observer{a.h}.Notices([]cache.Notice{{Kind: cache.NoticeReleased, Session: &cache.Session{},
			Key: x.id.key, Fence: x.id.fence}})
	}},
	{"kept", "a daemon does not notice that it has lost a hold with a keep",
		func(t *testing.T, w *World, a, b *client) {
			x := a.keeps(a.takes(t, exclusive, 5<<10), sec)
			w.over(a.holds[0])
			b.k.h = w.hosts[len(w.hosts)-1]
			if b.k.h == a.h {
				b.k.h = w.hosts[0]
			}
			b.takes(t, exclusive, 6<<10)
			w.now = a.h.trueTime(x.until)
			x.ends(&cache.Notice{Kind: cache.NoticeReleased, Key: x.id.key}, false)
		}},
	{"kept", "a detached hold does not end", func(t *testing.T, w *World, a, b *client) {
		a.h.detached = append(a.h.detached, a.keeps(a.takes(t, exclusive, 5<<10), sec))
		w.now += 20 * sec
		a.h.noneTooLong()
	}},
	{"busy", "a try of several keys is busy, and one was free",
		func(t *testing.T, w *World, a, b *client) {
			w.notBusy(a.h, a.triesAny(w), w.keys[0])
		}},
	{"", "… or another daemon has used it since", func(t *testing.T, w *World, a, b *client) {
		q := a.triesAny(w)
		w.keys[0].uses(&host{w: w})
		w.notBusy(a.h, q, w.keys[0])
	}},
	{"planted", "as asked for", func(t *testing.T, w *World, a, b *client) {
		w.plant = 3
		w.play(sec)
	}},
	{"panic", "the code panics", func(t *testing.T, w *World, a, b *client) {
		w.at(w.now, func() { panic("planted") })
		w.play(sec)
	}},
}

// triesAny has an acquire of one of several keys arrive. It fails if its keys are not free.
func (c *client) triesAny(w *World) *request {
	w.p.Foreign, w.p.Local = 0, false
	q := c.asked(&request{op: protocol.OpAcquireAny, keys: w.keys[:1]})
	if c.k.arrives(q); len(q.any.free) != 1 {
		panic("the key is not free")
	}
	return q
}

func TestChecksBite(t *testing.T) {
	bites := make(map[string]bool)
	for _, x := range histories {
		bites[x.check] = true
		t.Run(x.check+"/"+x.what, func(t *testing.T) {
			w, a, b := quiet(t)
			x.play(t, w, a, b)
			switch f := w.failure; {
			case f == nil && x.check != "":
				t.Errorf("the check %q lets it pass", x.check)
			case f != nil && f.Check != x.check:
				t.Errorf("it fails %v", f)
			}
		})
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\.fail\("([^"]+)"`).FindAllSubmatch(text, -1) {
			if !bites[string(m[1])] {
				t.Errorf("no bad history is for the check %q", m[1])
			}
		}
	}
}
