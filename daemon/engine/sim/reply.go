package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has how a client handles the answers that it reads.

func (c *client) handle(m protocol.Message) {
	if m.ID == 0 {
		c.push(m)
		return
	}
	i := slices.IndexFunc(c.calls, func(q *request) bool { return q.id == m.ID })
	if i < 0 {
		c.w.fail("one reply", "", "client %d reads a reply to %d, which is not in flight", c.id, m.ID)
		return
	}
	q := c.calls[i]
	c.calls = slices.Delete(c.calls, i, i+1)
	c.k.answered(q)
	c.w.counts.Replies[min(int(m.Code), 31)]++
	c.w.note(kindReply, q.key, uint64(c.id)<<8|uint64(m.Code), q.id)
	c.w.say(q.key, "client %d: %s %d answered %v", c.id, requestNames[q.op], q.id, m.Code)
	if c.w.load != nil {
		c.w.load.answered(c, q, m.Code)
	}
	if q.wrong != protocol.OK {
		// Whether the user may use the key is checked first.
		if m.Code != q.wrong && (m.Code != protocol.Denied || c.w.p.Users <= 1) {
			c.w.fail("reply", "", "%v to a request that deserves %v", m.Code, q.wrong)
		}
		return
	}
	if q.detached != nil {
		c.releasedDetached(q, m.Code)
		return
	}
	if m.Code != protocol.OK {
		if _, _, err := m.Error(); err != nil {
			c.w.fail("protocol", "", "failure %v to a %s: %v", m.Code, requestNames[q.op], err)
		}
		c.failed(q, m.Code)
		return
	}
	var err error
	switch q.op {
	case protocol.OpHello:
		err = c.welcome(m)
	case protocol.OpAcquire, protocol.OpRenew, protocol.OpDowngrade:
		var g protocol.Grant
		if g, err = m.Grant(); err == nil && q.op == protocol.OpAcquire {
			c.granted(q, q.key, &g)
		} else if err == nil {
			c.kept(q, &g)
		}
	case protocol.OpAcquireMany:
		var gs []protocol.Grant
		if gs, err = m.Grants(); err == nil {
			c.w.counts.Tallies[manyGrants]++
			for n := range gs {
				if gs[n].Flags&protocol.GrantDegraded != 0 {
					c.w.counts.Tallies[manyAlone]++
				}
				c.granted(q, q.keys[n], &gs[n])
			}
		}
	case protocol.OpAcquireAny:
		err = c.grantedAny(q, m)
	case protocol.OpRelease:
		var n uint64
		n, err = m.Number()
		c.released(q, q.holds[0], int(n))
	case protocol.OpReleaseMany:
		err = c.releasedMany(q, m)
	case protocol.OpCancel:
		var n uint64
		n, err = m.Number()
		c.canceled(q, n == 1)
	case protocol.OpInspect:
		var s protocol.State
		s, err = m.State()
		if err == nil {
			c.inspected(q, &s)
		}
	case protocol.OpPing, protocol.OpForceUnlock:
		_, err = m.Number()
	case protocol.OpList:
		_, _, err = m.List()
	case protocol.OpStored:
		_, _, err = m.Stored()
	}
	if err != nil {
		c.w.fail("protocol", "", "reply to a %s: %v", requestNames[q.op], err)
	}
}

// inspected handles the state of a key. A client that has held the key since it asked is among the
// holders.
func (c *client) inspected(q *request, s *protocol.State) {
	c.w.counts.Inspects[min(int(s.Held), 3)]++
	if len(q.holds) == 0 || !q.holds[0].believed() {
		return
	}
	h := q.holds[0]
	if s.Held != protocol.HeldHere {
		c.w.fail("inspect", q.key.name, "client %d holds it, and inspect says %d", c.id, s.Held)
	}
	if !q.asksHolders {
		return
	}
	c.w.counts.Tallies[holdersNamed]++
	id := c.k.s.ID()
	if int(s.Holders) == len(s.By) && !slices.ContainsFunc(s.By,
		func(o protocol.Holder) bool { return o.Session == id && o.Fence == h.fence }) {
		c.w.fail("inspect", q.key.name, "client %d holds it, and is not among the %d holders",
			c.id, len(s.By))
	}
}

func (c *client) welcome(m protocol.Message) error {
	v, err := m.Welcome()
	if err != nil {
		return err
	}
	now, t1 := int64(v.Now), c.clock()/ms
	c.offset = 0
	if !(c.helloAt <= now && now <= t1 && t1-c.helloAt <= 100) {
		c.offset = c.helloAt - now - 1
	}
	c.greeted = true
	return nil
}

// granted handles a grant that answers an acquire.
func (c *client) granted(q *request, k *key, g *protocol.Grant) {
	w := c.w
	id := grantID{k, q.owner, g.Fence}
	h := c.known[id]
	alone := g.Flags&protocol.GrantDegraded != 0
	many := q.op == protocol.OpAcquireMany
	fresh := g.Count == 1
	if many || c.many(k, q.owner) != nil {
		fresh = h == nil || h.gone // its count may have been lowered since
	}
	if alone && h != nil && g.Count == 1 && (h.gone || h.over || h.count <= 0) {
		fresh, h = true, nil // they all have the same id
	}
	if fresh {
		at, link := c.h.where(k, g.Fence)
		if alone && q.at != nil {
			at = q.at // the configuration may be another by now
		}
		if h != nil && h.at.shares(at) {
			w.fail("grant", k.name, "client %d is granted fence %d a second time", c.id, g.Fence)
			return
		}
		w.counts.Tallies[freshGrants]++
		if link == nil && !alone && len(c.h.bases) > 0 {
			w.fail("fence", k.name, "client %d is granted fence %d·%d, and no store has given that base",
				c.id, g.Fence>>10, g.Fence&1023)
		}
		h = &hold{c: c, k: c.k, key: k, at: at, link: link, owner: q.owner, fence: g.Fence, mode: q.mode,
			ttl: q.ttl, degraded: alone}
		// Another request of this owner, which has given up since, may have made the hold. If this grant
		// is exclusive, so was that one.
		h.vague = (many || g.Count > 1) && q.mode == protocol.Shared
		c.known[id] = h
		c.holds = append(c.holds, h)
		if k.permits > 0 {
			w.counts.Tallies[permits]++
		}
	} else {
		w.counts.Tallies[reentries]++
		if h == nil || h.gone {
			w.fail("grant", k.name, "client %d re-enters fence %d, which it does not hold", c.id, g.Fence)
			return
		}
		if q.mode == protocol.Exclusive && h.mode == protocol.Shared && !many && !h.vague &&
			q.id > h.down {
			w.fail("upgrade", k.name, "client %d holds fence %d shared and was let in exclusive", c.id,
				g.Fence)
		}
	}
	c.counts(h, q.owner, int(g.Count), h.said+1, many)
	if !h.closed {
		h.count++
		h.over = false
	}
	c.state(h, g)
	if fresh {
		w.began(h)
	} else {
		w.meets(h)
	}
	c.soon(k, q)
	c.plan(h, q)
}

// soon bounds the other waits of the owner, which are re-entries now.
func (c *client) soon(k *key, q *request) {
	if k.permits > 0 {
		return
	}
	for _, o := range c.calls {
		if o.asksOnly(k) && o.owner == q.owner {
			o.sent, o.late, o.frozenBefore = c.w.now, patience, c.frozenSoFar()
		}
	}
}

// notSoon gives the other waits of the owner of a lost hold their full time again. The daemon may
// have received them after the loss.
func (c *client) notSoon(h *hold) {
	for _, o := range c.calls {
		if !o.asksOnly(h.key) || o.owner != h.owner || h.key.permits > 0 {
			continue
		}
		switch o.sent, o.frozenBefore = c.w.now, c.frozenSoFar(); {
		case c.w.calm:
			o.late = 2 * patience
		case o.wait < 0:
			o.late = 1 << 60
		default:
			o.late = patience + o.wait*ms
		}
	}
}

// many returns a multi-acquire in progress that may have taken the key already. Then the count of
// the daemon is ahead of the count that it has stated.
func (c *client) many(k *key, owner uint64) *request {
	for _, q := range c.calls {
		if q.op == protocol.OpAcquireMany && q.owner == owner && slices.Contains(q.keys, k) {
			return q
		}
	}
	return nil
}

// counts checks a count that the daemon has stated, where the client can know it.
func (c *client) counts(h *hold, owner uint64, is, want int, unsure bool) {
	leaving := slices.ContainsFunc(c.calls, func(q *request) bool {
		return q.op == protocol.OpReleaseMany && slices.Contains(q.holds, h)
	})
	if leaving || unsure || h.unsure || c.many(h.key, owner) != nil {
		h.said, h.unsure = is, false
		return
	}
	if h.said = is; is != want {
		c.w.fail("count", h.key.name, "client %d: fence %d has count %d and should have %d", c.id,
			h.fence, is, want)
	}
}

// gaveBack records that a multi-acquire has failed: it has released the holds that it had
// re-entered.
func (c *client) gaveBack(q *request) {
	c.holds = slices.DeleteFunc(c.holds, func(h *hold) bool {
		mine := h.owner == q.owner && slices.Contains(q.keys, h.key)
		h.unsure = h.unsure || mine
		return mine && h.over && h.count <= 0 && c.many(h.key, h.owner) == nil
	})
}

// state handles the validity that a grant states.
func (c *client) state(h *hold, g *protocol.Grant) {
	h.valid = max(h.valid, c.fromDaemon(g.Deadline))
	h.end = 0
	if g.End != 0 {
		h.end = c.fromDaemon(g.End)
	}
}

// believed reports whether the client believes in the hold, as far as it can know.
func (h *hold) believed() bool {
	if h.over || h.count <= 0 {
		return false
	}
	until := h.valid
	if h.end != 0 {
		until = min(until, h.end)
	}
	return h.c.clock() < until*ms
}
