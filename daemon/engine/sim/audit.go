package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file checks the audit log, which the daemon writes from the notices of the engine. Each hold
// begins once and ends once there.

// audited is a hold in the audit log.
type audited struct {
	session uint64
	key     string
	owner   uint64
	fence   uint64
}

// observer receives the events of a host's engine.
type observer struct{ h *host }

func (observer) SessionBegins(*engine.Session)        {}
func (observer) SpanEnds(*engine.Span)                {}
func (observer) WaitCycle([]engine.CycleWait)         {}
func (observer) FencesMayFall(string, string, uint64) {}

// Notices handles notices about locks.
func (o observer) Notices(ns []cache.Notice) {
	h, w := o.h, o.h.w
	for i := range ns {
		n := &ns[i]
		w.counts.Notices[n.Kind]++
		if n.Kind == cache.NoticeReleased {
			w.counts.Causes[n.Cause]++
		}
		if n.Took > h.clock()-h.off {
			w.fail("audit", n.Key, "host %d: kind %d, code %d took %d ms, and the world is %d ms old", h.id,
				n.Kind, n.Code, n.Took/ms, (h.clock()-h.off)/ms)
		}
		if n.Kind == cache.NoticeAcquired {
			h.mayBegin(n)
		}
		if n.Kind == cache.NoticeRefused || n.Fence == 0 { // holds without a fence are too much alike
			continue
		}
		id := h.keepNotice(n)
		if n.Released {
			h.foundGone(id, n)
			continue
		}
		began := n.Kind == cache.NoticeAcquired
		if (h.audit[id] > 0) == began {
			w.fail("audit", n.Key, "host %d: fence %d of session %d begins (%v) or ends a second time", h.id,
				n.Fence, id.session, began)
		}
		if began {
			h.audit[id] = 1
			h.notTooMany(n.Key)
			continue
		}
		if h.audit[id]--; h.audit[id] == 0 {
			delete(h.audit, id)
		}
		if n.Kind == cache.NoticeDetached { // it continues without a session
			id.session = 0
			h.audit[id]++
		} else {
			h.released[id] = n.Kind == cache.NoticeReleased
		}
	}
}

// foundGone is called when the daemon reports that a hold had been lost before its release. It
// checks that the hold was released, and that a store has lost leases. There are two exceptions:
// the daemon may work with an old reading of the clock, and a request that is carried out twice may
// be answered by the second copy.
func (h *host) foundGone(id audited, n *cache.Notice) {
	w := h.w
	w.counts.Tallies[foundGone]++
	if !h.released[id] {
		w.fail("found gone", id.key, "host %d: fence %d of session %d is lost once more, or was not released", h.id, id.fence, id.session)
	}
	delete(h.released, id)
	excused := w.p.Faults[hostLag] > 0 || w.p.Faults[doubled] > 0 ||
		slices.ContainsFunc(w.stores, func(s *simStore) bool { return s.lostSince(0) })
	if n.Reason != protocol.LostGone || !excused {
		w.fail("found gone", id.key, "host %d: fence %d of session %d is lost (%d), and no store has lost anything", h.id, id.fence, id.session, n.Reason)
	}
}

// mayBegin checks that the host's configuration lets the client have the key when the daemon grants
// it. It also checks each key of a multi-acquire.
func (h *host) mayBegin(n *cache.Notice) {
	ns := h.conf.of(n.Key)
	h.began[n.Session.ID] = h.w.now
	if k := h.connOf(n.Session.ID); k != nil && !h.allows(n.Key, k.c.uid) {
		h.w.fail("access", n.Key, "client %d of user %d gets fence %d, and namespace %q is for %v",
			k.c.id, k.c.uid, n.Fence, ns.Prefix, ns.Users)
	}
	if n.Degraded && !h.mayDegrade(n.Key) {
		h.w.fail("access", n.Key, "session %d gets a degraded hold, and namespace %q does not allow it",
			n.Session.ID, ns.Prefix)
	}
}

// connOf returns the connection of a session; nil once the session has ended.
func (h *host) connOf(session uint64) *conn {
	for _, k := range h.conns {
		if k.s != nil && k.s.ID() == session {
			return k
		}
	}
	return nil
}

// notTooMany checks, when a hold begins, the limit of its namespace. Holds that a reload has moved
// there may exceed the limit; then no new hold begins.
func (h *host) notTooMany(key string) {
	ns, n := h.conf.of(key), int64(0)
	switch {
	case ns.MaxHolds == 0:
		return
	case h.steps != nil: // the log may lack the ends of holds
		n = h.heldIn(ns)
	default:
		for id, holds := range h.audit {
			if h.conf.of(id.key) == ns {
				n += int64(holds)
			}
		}
	}
	if n > ns.MaxHolds {
		h.w.fail("limits", key, "host %d: hold %d begins in namespace %q, and there may be %d", h.id, n,
			ns.Prefix, ns.MaxHolds)
	}
}

// heldIn counts the holds of a namespace that a view of the daemon shows.
func (h *host) heldIn(ns *namespace) (n int64) {
	var v engine.View
	h.eng.View(engine.ViewQuery{Sort: engine.ViewSorts[0], Limit: engine.MaxViewRows}, &v)
	for i := range v.Holds {
		if o := &v.Holds[i]; !o.Forced && h.conf.of(o.Key) == ns {
			n++
		}
	}
	return n
}

// notTooManyWait checks the limit of waiters of a namespace when an acquire begins to wait there.
func (h *host) notTooManyWait(q *request) {
	ns, n := h.conf.of(q.key.name), int64(0)
	if ns.MaxWaiters == 0 {
		return
	}
	waits := func(q *request) bool { return q.k.c.k == q.k && !q.k.killed && !q.k.unwritten(q) }
	for _, k := range h.w.everything {
		for _, o := range h.waits[k] {
			if h.conf.of(k.name) == ns && waits(o) {
				n++
			}
		}
	}
	if slices.Contains(h.waits[q.key], q) && waits(q) && n > ns.MaxWaiters {
		h.w.fail("limits", q.key.name, "host %d: acquire %d waits as number %d in namespace %q, and %d may", h.id, q.id, n, ns.Prefix, ns.MaxWaiters)
	}
}

// auditEnds checks, when nothing is held, that the audit log agrees.
func (h *host) auditEnds() {
	for id := range h.audit {
		h.w.fail("audit", id.key, "host %d: fence %d of session %d has not ended in the log", h.id,
			id.fence, id.session)
	}
}
