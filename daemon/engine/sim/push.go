package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has how a client handles pushes.

func (c *client) push(m protocol.Message) {
	w := c.w
	w.counts.Pushes[min(max(0, int(m.Event)-int(protocol.EventLost)), 7)]++
	w.note(kindPush, nil, uint64(c.id), uint64(m.Event))
	var err error
	switch m.Event {
	case protocol.EventLost:
		var name string
		var id grantID
		var why protocol.Reason
		if name, id.owner, id.fence, why, err = m.Lost(); err == nil {
			if id.key = w.key(name); id.key == nil {
				return
			}
			w.counts.Lost[min(int(why), 15)]++
			w.say(id.key, "client %d: lost fence %d, %v", c.id, id.fence, why)
			c.lost(id, why)
		}
	case protocol.EventKeepalive:
		var until uint64
		if until, _, err = m.Keepalive(); err == nil {
			c.keepalive(c.fromDaemon(until))
			c.heartbeat()
		}
	case protocol.EventGoingAway:
		_, _, err = m.GoingAway()
	case protocol.EventFatal:
		var code protocol.Code
		if code, _, err = m.Fatal(); err == nil {
			w.say(nil, "client %d: fatal %v", c.id, code)
			w.counts.Fatals[min(int(code), 31)]++
		}
		c.close()
		c.reconnect()
	case protocol.EventReleaseFailed:
		var name string
		var id grantID
		var code protocol.Code
		if name, id.owner, id.fence, code, _, err = m.ReleaseFailed(); err == nil {
			id.key = w.key(name)
			w.say(id.key, "client %d: the quiet release of fence %d has failed: %v", c.id, id.fence, code)
			c.releaseFailed(id, code)
		}
	default:
		w.fail("protocol", "", "unknown event %d", m.Event)
	}
	if err != nil {
		w.fail("protocol", "", "push %d: %v", m.Event, err)
	}
}

func (c *client) lost(id grantID, why protocol.Reason) {
	if why == protocol.LostForced {
		c.readForced(id)
	}
	h := c.known[id]
	if h == nil && c.many(id.key, id.owner) != nil {
		return // a hold that a multi-acquire in progress had taken: it is lost before the grant
	}
	if h == nil {
		c.w.fail("lost before grant", id.key.name, "client %d is told that it lost fence %d, which it was never granted", c.id, id.fence)
		return
	}
	if h.gone {
		c.w.fail("lost once", h.key.name, "client %d is told once more that fence %d is gone", c.id,
			h.fence)
	}
	c.w.lostCheck(h, why)
	if id.fence != 0 { // without a fence, the release may be of another hold
		for _, q := range c.k.quiet[id] {
			q.doomed = true // the loss has crossed it
		}
	}
	c.forget(h)
	c.notSoon(h)
	if h.key.permits == 0 && c.greeted && !c.w.calm && c.silent <= c.w.now && c.w.load == nil &&
		c.w.chance(100) {
		// The client acquires the key again as if the hold were not lost, and the daemon has to grant a
		// new hold. A real client waits for its owner to give the lost hold up.
		c.w.counts.Tallies[reacquired]++
		c.acquire(h.key, h.owner)
	}
}

// releaseFailed handles the failure of a quiet release. The client is told once of each.
func (c *client) releaseFailed(id grantID, code protocol.Code) {
	sent := c.k.quiet[id]
	if len(sent) == 0 {
		c.w.fail("one push", "", "client %d is told that a quiet release of fence %d has failed, and has sent none, or knows it", c.id, id.fence)
		return
	}
	i := max(0, slices.IndexFunc(sent, func(q *request) bool { return q.doomed }))
	q := sent[i]
	c.k.quiet[id] = slices.Delete(sent, i, i+1)
	c.w.counts.Tallies[quietFailures]++
	c.notReleased(q, q.holds[0], code)
}

// hasReadFailures checks, at the end of a run, that the client was told of each quiet release that
// had to fail.
func (c *client) hasReadFailures() {
	if c.k == nil || c.w.failure != nil {
		return
	}
	for id, sent := range c.k.quiet {
		if slices.ContainsFunc(sent, func(q *request) bool { return q.doomed }) {
			c.w.fail("one push", id.key.name, "client %d has never been told that its quiet release of fence %d has failed", c.id, id.fence)
			return
		}
	}
}

// keepalive handles a keepalive. It extends all holds that were granted before it and not lost.
func (c *client) keepalive(until int64) {
	for _, h := range c.holds {
		if until <= h.valid {
			continue
		}
		lapsed := !h.believed()
		h.valid = until
		if lapsed {
			c.w.revive(h)
		}
	}
}
