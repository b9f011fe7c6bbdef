package zookeeper_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A server that has lost data can pass the highest transaction id that a store has seen, before the
// store has a connection again. Other clients write, or an ensemble elects a leader, whose ids
// begin above all earlier ones. Then the server resumes the session, with nodes that the store has
// deleted since the copy was made, and that nothing would ever delete.
func TestAnOlderCopyWhoseTransactionIDsAreNotBehindLosesTheSession(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	url := srv.URL() + "?session=20s&timeout=5s"
	p, q := newPeer(t, url), newPeer(t, url)
	token, _ := p.take("a", cache.Exclusive)
	srv.Kill()
	restore := srv.Backup()
	srv.Start()
	p.released("a", token)
	token, base := q.take("a", cache.Exclusive)
	q.released("a", token)
	srv.Kill()
	restore()
	srv.Start()
	advance(t, srv)
	p.lost(1)
	q.eventually("the lock is free once the session has expired", func() bool {
		r := q.try("a", q.token())
		return r.Status == cache.Granted && r.Base > base
	})
}

// The session's own node shows whether the server has lost data. But anybody may delete it.
func TestASessionWithoutItsOwnNodeContinues(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL())
	held, _ := p.take("held", cache.Exclusive)
	del(t, srv.Admin(), "/.locksidecar", 0)
	srv.Restart()
	p.eventually("it is renewed", func() bool { return p.renew("held", held).Status == cache.Done })
	if r := p.want(p.renew("held", held), cache.Done); r.SessionNo != 1 {
		t.Errorf("it is session %d", r.SessionNo)
	}
	p.take("other", cache.Exclusive)
}
