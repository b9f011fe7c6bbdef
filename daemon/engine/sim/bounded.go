package sim

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// told is the knowledge that a host's daemon has of one of its leases.
type told struct {
	token     uint64
	contended bool
	hands     int // handoffs since it was contended
}

// learns records whether an answer says that a key is contended.
func (h *host) learns(op *upstream.Op, r *upstream.Result) {
	k := h.w.key(op.Key)
	switch t := h.told[k]; {
	case k == nil || k.permits > 0:
	case r.Status == cache.Granted:
		h.told[k] = told{token: op.Token, contended: r.Contended}
	case r.Status == cache.Done && op.Kind == cache.OpRenew && t.token == op.Token && r.Contended:
		t.contended = true
		h.told[k] = t
	}
}

// bounded checks that handoffs are bounded while another host waits for the key.
func (h *host) bounded(k *key) {
	t := h.told[k]
	if !t.contended {
		return
	}
	t.hands++
	h.told[k] = t
	if limit := h.w.p.Hands; t.hands > limit {
		h.w.fail("bounded", k.name, "%d handoffs on host %d since the key is contended, limit %d",
			t.hands, h.id, limit)
	}
}
