package faulty

import "math"

// name identifies a hold in the adapter's commands.
type name struct {
	key          string
	owner, fence uint64
}

// keyOwner is an owner of a key.
type keyOwner struct {
	key   string
	owner uint64
}

// hold is one hold, from its grant until it has been released as often as it was acquired. It is
// guarded by Client.mu.
type hold struct {
	name
	c        *conn
	permit   bool
	fixed    bool  // acquired as fixed; a re-entry does not change that
	valid    int64 // milliseconds of our clock: stated validity
	end      int64 // when it ends, whatever a keepalive states; 0 for never
	count    int   // the client's own count: acquires less releases
	lost     string
	releases int // releases of the last count in flight
	over     bool
	believed bool // for a fault: the result of its timer
}

// held answers the program's question whether the hold is held. A hold that has run out is lost
// from then on.
func (h *hold) held() bool {
	owned := h.owned()
	if !owned && !h.c.client.fault.is("denies-and-forgets") {
		h.lapse()
	}
	return owned
}

// owned reports whether the lock is held at this moment. It reads the clock and sends nothing.
func (h *hold) owned() bool {
	f := h.c.client.fault
	switch {
	case f.is("believes-over-connections") && h.lost == "connection":
		return true
	case f.is("takes-holds-along") && h.lost == "connection" && h.c.client.conn != h.c:
		return true

	case h.over || h.lost != "":
		return false
	case f.is("believes-silence"):
		return true
	case f.is("counts-timers"):
		return h.believed
	case h.releases > 0:
		return false
	}
	return now() < h.until()
}

func (h *hold) until() int64 {
	if h.end != 0 && !h.c.client.fault.is("forgets-the-end") {
		return min(h.valid, h.end)
	}
	return h.valid
}

// granted applies a grant to the hold. The client counts the acquires itself.
func (h *hold) granted(g *grant, acquired bool) {
	f := h.c.client.fault
	deadline := h.c.local(g.deadline)
	if f.is("counts-left-from-receipt") {
		deadline = now() + int64(g.left)
	}
	if f.is("lets-keepalives-cover-later-grants") {
		deadline = max(deadline, h.c.keepalive)
	}
	if !acquired && f.is("shortens-by-renewals") {
		h.valid = deadline
	}
	h.valid = max(h.valid, deadline)
	if g.end != 0 {
		if end := h.c.local(g.end); end > h.end || f.is("moves-ends-back") {
			h.end = end
		}
	}
	if acquired {
		h.count++
	} else if f.is("revives-by-renewals") {
		h.revive()
	}
	if f.is("counts-as-the-daemon-does") {
		h.count = int(g.count)
	}
}

// stated applies a keepalive to the hold.
func (h *hold) stated(until int64) {
	if h.c.client.fault.is("shortens-by-keepalives") {
		h.valid = until
	}
	h.valid = max(h.valid, until)
	if h.c.client.fault.is("revives-by-keepalives") {
		h.revive()
	}
}

// revive makes a hold valid again that has run out. Only faults use it.
func (h *hold) revive() {
	if h.lost == "silence" {
		h.lost = ""
	}
}

// lose ends the hold if it has not been released. It reports only the first reason, and only once.
func (h *hold) lose(reason string) {
	if h.over && !h.c.client.fault.is("tells-of-losses-that-cross") || h.lost != "" {
		return
	}
	h.lost = reason
	if reason == "forced" && h.c.client.fault.is("tells-of-force-at-once") {
		_, _ = h.c.send(3, nil, h.key, h.owner, h.fence, 2)
	}
	if h.releases == 0 && !h.c.client.fault.is("tells-nothing") {
		h.c.client.say(event{Event: "lost", Key: h.key, Owner: h.owner, Fence: h.fence, Reason: reason})
	}
}

// lapse ends the hold if its validity has run out without a lost push.
func (h *hold) lapse() {
	if h.over || h.lost != "" || h.releases > 0 || now() < h.until() {
		return
	}
	f := h.c.client.fault
	switch passed := h.end != 0 && now() >= h.end; {
	case passed && h.fixed && !f.is("calls-a-fixed-end-silence"), passed &&
		f.is("calls-every-end-fixed"):
		h.lose("fixed_end")
	case passed && !h.fixed && !f.is("calls-the-longest-hold-silence"):
		h.lose("too_long")
	default:
		h.lose("silence")
	}
}

// closedToOthers reports whether the daemon may keep the key of a lost hold closed to others.
func (h *hold) closedToOthers() bool {
	f := h.c.client.fault
	switch h.lost {
	case "forced":
		return !f.is("keeps-what-was-forced")
	case "silence", "fixed_end", "too_long":
		return !f.is("keeps-what-ran-out")
	}
	return false
}

// grant is the reply that creates, re-enters or extends a hold.
type grant struct {
	fence, left, deadline, count, end, flags uint64
}

func readGrant(f *fields) (g grant, err error) {
	g = grant{f.num(), f.num(), f.num(), f.num(), f.num(), f.num()}
	switch {
	case f.fault.is("refuses-fence-0") && f.err == nil && g.fence == 0,
		f.fault.is("refuses-unknown-flags") && g.flags > 1:
		return g, errBad
	case f.fault.is("takes-fences-for-doubles"):
		g.fence = uint64(min(float64(g.fence), math.MaxInt64-1024))
	}
	return g, f.done()
}
