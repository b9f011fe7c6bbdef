package sim

import "github.com/locksidecar/locksidecar/cache"

// The audit log, as the engine tells of it: each hold begins once and ends once there.

// audited is a hold in the audit log.
type audited struct {
	session uint64
	key     string
	owner   uint64
	fence   uint64
}

// notices takes in what the engine has for the log.
func (h *host) notices(ns []cache.Notice) {
	w := h.w
	for i := range ns {
		n := &ns[i]
		w.counts.Notices[n.Kind]++
		if n.Took > h.clock()-h.off {
			w.fail("audit", n.Key, "host %d: kind %d, code %d took %d ms, and the world is %d ms old", h.id, n.Kind, n.Code, n.Took/ms, (h.clock()-h.off)/ms)
		}
		if n.Kind == cache.NoticeRefused || n.Fence == 0 { // holds without a fence are too much alike
			continue
		}
		id := audited{n.Session.ID, n.Key, n.Owner, n.Fence}
		began := n.Kind == cache.NoticeAcquired
		if h.audit[id] == began {
			w.fail("audit", n.Key, "host %d: fence %d of session %d begins (%v) or ends a second time", h.id, n.Fence, id.session, began)
		}
		if began {
			h.audit[id] = true
		} else {
			delete(h.audit, id)
		}
	}
}

// auditEnds checks, when nothing is held, that the audit log says so.
func (h *host) auditEnds() {
	for id := range h.audit {
		h.w.fail("audit", id.key, "host %d: fence %d of session %d has not ended in the log", h.id, id.fence, id.session)
	}
}
