package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has how a client handles answers to requests about its holds, and failures.

// kept handles the grant that answers a renewal or a downgrade.
func (c *client) kept(q *request, g *protocol.Grant) {
	h := q.holds[0]
	if h == nil || g.Fence != h.fence {
		c.w.fail("stale fence", q.key.name, "a %s with a wrong fence was carried out", requestNames[q.op])
		return
	}
	if h.gone {
		c.w.fail("after lost", h.key.name, "a %s of fence %d is granted after lost",
			requestNames[q.op], h.fence)
	}
	c.counts(h, h.owner, int(g.Count), h.said, false)
	if h.over {
		return
	}
	lapsed := !h.believed()
	c.state(h, g)
	if lapsed {
		c.w.revive(h)
	}
}

// released handles the answer to a release. h is nil for a release with a wrong fence.
func (c *client) released(q *request, h *hold, left int) {
	if h == nil {
		c.w.fail("stale fence", q.key.name, "a release with a wrong fence was carried out")
		return
	}
	// A degraded hold has no fence to tell it from the owner's present hold: PROTOCOL.md, section 8.
	if h.gone && h.degraded {
		i := slices.IndexFunc(c.holds, func(o *hold) bool {
			return o.degraded && o.key == h.key && o.owner == h.owner
		})
		if i >= 0 {
			h = c.holds[i]
			c.givesUp(h, q.all)
		}
	}
	want := h.said - 1
	if q.all {
		want = 0
	}
	if h.gone {
		c.w.fail("count", h.key.name, "client %d: a hold that is gone was released", c.id)
	}
	c.counts(h, h.owner, left, want, false)
	if left == 0 {
		c.forget(h)
	}
}

// forget records that the daemon no longer has such a hold.
func (c *client) forget(h *hold) {
	if h.gone {
		return
	}
	h.gone = true
	c.w.over(h)
	c.holds = slices.DeleteFunc(c.holds, func(o *hold) bool { return o == h })
	c.old = append(c.old, h)
	if len(c.old) > 4 {
		c.old = slices.Delete(c.old, 0, 1)
	}
}

func (c *client) releasedMany(q *request, m protocol.Message) error {
	codes, err := m.Codes()
	if err != nil {
		return err
	}
	if len(codes) != len(q.holds) {
		c.w.fail("protocol", "", "%d codes for %d releases", len(codes), len(q.holds))
		return nil
	}
	for n, code := range codes {
		if code == protocol.OK {
			h := q.holds[n]
			if h == nil {
				c.w.fail("stale fence", "", "a release with a wrong fence was carried out")
				return nil
			}
			// A multi-acquire in progress may have re-entered the hold, and keep it.
			if h.said--; q.all || h.said <= 0 && h.count <= 0 && !h.unsure && c.many(h.key, h.owner) == nil {
				c.forget(h)
			}
			h.unsure = true // other replies may have gone before
		} else {
			c.notReleased(q, q.holds[n], code)
		}
	}
	return nil
}

func (c *client) canceled(q *request, found bool) {
	if slices.Contains(c.calls, q.target) {
		c.w.fail("cancel", q.key.name, "the cancel is answered before its target")
	}
	if !found {
		c.w.counts.Tallies[crossedCancels]++
	}
	if found != q.target.withdrawn {
		c.w.fail("cancel", q.key.name, "found %v, and the target was answered otherwise", found)
	}
}

// failed handles a failure.
func (c *client) failed(q *request, code protocol.Code) {
	w := c.w
	bad := func() { w.fail("reply", q.keyName(), "%v to a %s", code, requestNames[q.op]) }
	switch q.op {
	case protocol.OpHello:
		if code != protocol.Draining {
			bad()
		}
		c.close()
		c.reconnect()
	case protocol.OpAcquireMany:
		c.gaveBack(q)
		c.refused(q, code, bad)
	case protocol.OpAcquire, protocol.OpAcquireAny:
		c.refused(q, code, bad)
	case protocol.OpRelease:
		c.notReleased(q, q.holds[0], code)
	case protocol.OpRenew, protocol.OpDowngrade:
		h := q.holds[0]
		switch {
		case code == protocol.Unavailable && q.op == protocol.OpRenew:
		case code == protocol.Limit && q.op == protocol.OpRenew && c.w.p.MaxHolds < 1000:
		case code != protocol.NotHeld:
			bad()
		case h != nil && !h.over && !h.gone && !q.stale:
			w.fail("lost in time", h.key.name, "client %d: a %s of fence %d is not held, and no lost came before", c.id, requestNames[q.op], h.fence)
		}
	case protocol.OpInspect:
		if code == protocol.Denied && c.w.p.Users > 1 {
			return
		}
		if code != protocol.Unavailable &&
			(code != protocol.Limit || c.w.p.MaxHolds > 1000 && !c.w.p.Queries) {
			bad()
		}
	case protocol.OpForceUnlock:
		if code != protocol.Denied || isOperator(c.uid) {
			bad()
		}
	default:
		bad()
	}
}

func (q *request) keyName() string {
	if q.key == nil {
		return ""
	}
	return q.key.name
}

// refused handles the failure of an acquire.
func (c *client) refused(q *request, code protocol.Code, bad func()) {
	switch code {
	case protocol.Busy:
		if q.wait != 0 {
			bad()
		}
	case protocol.Timeout:
		if q.wait <= 0 && (q.wait == 0 || c.w.p.MaxWait == 0) {
			bad()
		}
	case protocol.Canceled:
		q.withdrawn = true
	case protocol.Upgrade, protocol.Unavailable, protocol.Draining:
	case protocol.Limit:
		if c.w.p.MaxHolds > 1000 && c.w.p.NamespaceLimit == 0 {
			bad()
		}
	case protocol.Denied:
		if c.w.p.Users <= 1 {
			bad()
		}
	case protocol.Unsupported:
		if q.keep == 0 || !c.w.p.Local {
			bad()
		}
	default:
		bad()
	}
}

// notReleased handles the failure of a release.
func (c *client) notReleased(q *request, h *hold, code protocol.Code) {
	if h == nil && code == protocol.NotHeld {
		return // it had a wrong fence
	}
	if h == nil || code != protocol.NotHeld && code != protocol.Unknown {
		c.w.fail("reply", q.keyName(), "%v to a release", code)
		return
	}
	c.forget(h)
}
