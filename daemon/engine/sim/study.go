package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file has studies: worlds without faults in which clients repeat one thing, to show the
// effects of a policy. All checks run, as in any other run.

// load is the behaviour of the clients of a study.
type load interface {
	// begin has a connected client do its first thing.
	begin(c *client)
	// granted is called when a client reads a new grant.
	granted(c *client, h *hold, q *request)
	// answered is called for the answer to any request. For an acquire it comes before granted.
	answered(c *client, q *request, code protocol.Code)
	// carriedOut is called when the store carries out an operation of a host.
	carriedOut(h *host, op *cache.Op)
	// measure is called at the beginning and at the end of the time that counts.
	measure(w *World)
}

// studyWarm is how long a study runs before it counts.
const studyWarm = 2 * sec

// studyProfile returns the settings of all studies: a Redis half a millisecond away, and the
// daemon's defaults.
func studyProfile() Profile {
	return Profile{Store: likeRedis, Calm: true, Keys: 1, Owners: 1,
		TTLs: []int64{30_000}, Act: 200 * ms,
		Latency: 500 * us, Hop: 40 * us, Timeout: 2 * sec, Hands: 8, HandTime: 50 * ms, Pause: 30 * sec,
		InFlight: 2, Batch: 256, Habits: 1024, MaxHolds: 1 << 40, MaxWaits: 1 << 40,
		Out: 1 << 20, Rebase: true}
}

// study runs a load for a time, and then until nothing is left to do.
func study(p Profile, l load, length int64) *World {
	w := emptyWorld(1)
	w.p, w.load = p, l
	w.build()
	w.at(epoch+studyWarm, func() { l.measure(w) })
	w.at(epoch+studyWarm+length, func() { l.measure(w) })
	w.play(studyWarm + length)
	return w
}

// begin has a client of a study do its first thing, once it is connected.
func (c *client) begin() {
	if !c.greeted {
		c.after(ms, c.begin)
		return
	}
	c.w.load.begin(c)
}

// want requests a key. wait is as in the protocol.
func (c *client) want(k *key, wait int64) *request {
	q := &request{op: protocol.OpAcquire, key: k, wait: wait, late: 1 << 60, ttl: c.w.p.TTLs[0]}
	c.send(q, &protocol.Request{Key: []byte(k.name), Wait: wait, TTL: uint64(q.ttl)})
	return q
}

// give releases a hold with a count of one, after a while, and waits for the answer.
func (c *client) give(h *hold, after int64) {
	c.after(after, func() {
		if h.over {
			return // given up at the end of the run
		}
		q := &request{op: protocol.OpRelease, key: h.key, owner: h.owner, holds: []*hold{h}}
		c.givesUp(h, false)
		c.send(q, &protocol.Request{Key: []byte(h.key.name), Owner: h.owner, Fence: h.fence})
	})
}

// ops returns how many operations the store has carried out so far.
func (w *World) ops() (n int) {
	for _, of := range w.counts.Ops {
		n += of
	}
	return n
}

// jain returns Jain's index of fairness: 1 if all have the same, 1/n if one has everything.
func jain(shares []int) float64 {
	sum, squares := 0, 0
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return float64(sum*sum) / float64(len(shares)*squares)
}

// quantile returns the value below which the given permille of the values are. It sorts them.
func quantile(of []int64, permille int) int64 {
	if len(of) == 0 {
		return 0
	}
	slices.Sort(of)
	return of[min(len(of)-1, len(of)*permille/1000)]
}
