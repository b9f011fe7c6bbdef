package cache

import "errors"

// Abandon ends everything that this table has at a store that this process cannot reach: an earlier process of
// this host used it, and this one's configuration does not name it. The holds there are lost. Nothing is released
// or settled, because nobody is there to ask: what stands at the store ends with its TTL, or with the session that
// nothing renews any more. Everything else moves to the store to which its key is routed now. The key stays closed
// there until the validity that was stated to its holders ends, so that this host grants nothing twice.
//
// The keys are routed elsewhere already. Abandon asks no store for anything: Reroute, which has to be called next,
// does. Then s has no users.
func (t *Table) Abandon(s *Store, now int64, out *Effects) {
	st := t.store(s)
	st.downAt, st.err = 0, nil
	for _, l := range t.sorted() {
		if l.st == st {
			t.abandon(l, now, out)
			t.followed = append(t.followed, l)
		}
	}
}

func (t *Table) abandon(l *Lease, now int64, out *Effects) {
	until := t.statedUntil(l, now)
	if l.state == stateClosed {
		until = max(until, l.endsAt)
	}
	for l.holds != nil {
		t.lose(l.holds, LostSession, now, out)
	}
	if l.releaser.Session != nil {
		out.fail(l.releaser, CodeUnknown, errAbandoned)
		l.releaser = Request{}
	}
	l.op, l.opGen, l.early = 0, 0, 0
	t.endClaim(l, out)
	t.finishMove(l, out)
	if until > now && l.sem == nil {
		t.close(l, until)
	}
}

var errAbandoned = errors.New("the store is no longer in the configuration, and what is left there ends by itself")
