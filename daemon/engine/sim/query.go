package sim

import (
	"context"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// ask runs a query of a store in two steps, each after a while, as storeSet.ask does on another
// goroutine. The stores here list nothing, so that answers show what the tables know.
func (h *host) ask(q engine.Query) {
	w, ctx := h.w, context.Background()
	h.queries++
	h.after(w.skewed(w.p.Latency), func() {
		then := q(ctx, func(*engine.StoreLane) (none upstream.Capabilities) { return none })
		h.after(w.skewed(w.p.Latency), func() {
			then(ctx)
			h.queries--
			w.counts.Tallies[queried]++
		})
	})
}
