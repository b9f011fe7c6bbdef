package sim

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// contention is what a host's daemon knows of one of its leases.
type contention struct {
	token     uint64
	contended bool
	hands     int // handoffs since the daemon knew that it is contended
}

// learns records whether an answer says that a key is contended.
func (h *host) learns(op *upstream.Op, r *upstream.Result) {
	k := h.w.key(op.Key)
	switch t := h.contention[k]; {
	case k == nil || k.permits > 0:
	case r.Status == cache.Granted:
		h.contention[k] = contention{token: op.Token, contended: r.Contended}
	case r.Status == cache.Done && op.Kind == cache.OpRenew && t.token == op.Token && r.Contended:
		t.contended = true
		h.contention[k] = t
	}
}

// bounded checks that handoffs are bounded while another host waits for the key.
func (h *host) bounded(k *key) {
	t := h.contention[k]
	if !t.contended {
		return
	}
	t.hands++
	h.contention[k] = t
	if limit := h.w.p.Hands; t.hands > limit {
		h.w.fail("bounded", k.name, "%d handoffs on host %d since the key is contended, limit %d",
			t.hands, h.id, limit)
	}
}
