package cache

import (
	"errors"

	"github.com/locksidecar/locksidecar/protocol"
)

// Abandon ends everything that this table has at a store that this process cannot reach. An earlier
// process of this host used the store, and the configuration of this one does not name it. The
// holds there are lost. Nothing is released at the store: the leases there end with their TTLs, or
// with the store session, which is no longer renewed. Waiters and inspections move to the store to
// which their key is routed now. The key stays closed there until the validity stated to its
// holders ends, so that this host grants nothing twice.
//
// The keys must be routed elsewhere already. Abandon sends no request to a store; Reroute, which
// has to be called next, does. Then s has no users.
func (t *Table) Abandon(s *StoreTraits, now int64, out *Effects) {
	st := t.store(s)
	st.downAt, st.err = 0, nil
	for _, l := range t.sorted() {
		if l.st == st {
			t.abandon(l, now, out)
			t.toAdvance = append(t.toAdvance, l)
		}
	}
}

func (t *Table) abandon(l *Lease, now int64, out *Effects) {
	until := t.statedUntil(l, now)
	if l.state == stateClosed {
		until = max(until, l.releasing.endsAt)
	}
	for h := range l.holds.all() {
		t.lose(h, protocol.LostSession, now, out)
	}
	t.failReleaser(l, protocol.Unknown, errAbandoned, out)
	l.op, l.opGen, l.asked.early = 0, 0, 0
	t.endClaim(l, out)
	t.finishMove(l, out)
	if until > now && l.semaphore() == nil {
		t.close(l, until)
	}
}

var errAbandoned = errors.New(
	"the store is no longer in the configuration; the lease there ends by itself")
