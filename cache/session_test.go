package cache

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A daemon that starts while its store is down knows only which session TTL it will ask for. The
// store may grant a much shorter one.
func TestAShortSessionGrantsLocksAndKeepsThem(t *testing.T) {
	b := newBench(t, func(x *setup) {
		x.Session, x.SessionTTL, x.Rebase = true, time.Minute, false
	})
	const granted = 9 * time.Second
	b.ns.Store.Grants(granted)
	b.tab.SessionUntil(b.ns.Store, 1, b.now+int64(granted), b.now, &b.out)
	s := b.session()
	b.acquire(s, "k", func(q *Acquire) { q.TTL = int64(time.Minute) })
	ms := b.answer(b.op(OpTry), Result{Status: Granted, Base: 5})
	m := b.only(ms, MsgGranted, protocol.OK)
	// Keepalives come each third of it.
	if v := time.Duration(m.Store.Validity(m.ShortTTL)); v > granted {
		t.Errorf("keepalives for a validity of %v, with a session of %v", v, granted)
	}
}
