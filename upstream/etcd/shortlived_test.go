package etcd_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A short-lived queue entry does not make the lock contended: the holder gets only HintTried. In
// the queue it counts like any other entry of a writer.
func TestShortLivedEntryDoesNotContend(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, q, r := newPeer(t, srv, ""), newPeer(t, srv, ""), newPeer(t, srv, "")
	shortLived := func(token uint64) cache.Result {
		res, _ := q.apply(upstream.Op{Kind: cache.OpJoin, ShortLived: true, Key: "k",
			Token: token, TTL: long})
		return res[0]
	}
	a, _ := p.take("k", cache.Exclusive)
	for range 2 { // the first entry is found when the watch is made, and the watch reports the second
		gone := q.token()
		q.want(shortLived(gone), cache.Queued)
		p.tried("k")
		if x := p.do(cache.OpRenew, cache.Exclusive, "k", a); x.Status != cache.Done || x.Contended {
			t.Errorf("it is %v, contended %v", x.Status, x.Contended)
		}
		q.want(q.do(cache.OpWithdraw, cache.Exclusive, "k", gone), cache.Done)
	}
	try, wait := q.token(), r.token()
	q.want(shortLived(try), cache.Queued)
	p.tried("k")
	r.want(r.do(cache.OpJoin, cache.Shared, "k", wait), cache.Queued)
	p.hinted(cache.HintContended, "k")
	p.want(p.do(cache.OpDowngrade, cache.Shared, "k", a), cache.Done)
	r.want(r.do(cache.OpJoin, cache.Shared, "k", wait), cache.Queued)
	p.want(p.do(cache.OpRelease, cache.Shared, "k", a), cache.Done)
	q.want(shortLived(try), cache.Granted)
	r.want(r.do(cache.OpJoin, cache.Shared, "k", wait), cache.Queued)
	q.want(q.do(cache.OpRelease, cache.Exclusive, "k", try), cache.Done)
	r.want(r.do(cache.OpJoin, cache.Shared, "k", wait), cache.Granted)
}

// tried waits for the hint that another host tries for key. It fails if an earlier hint says that
// another host waits.
func (p *peer) tried(key string) {
	p.Helper()
	for end := time.After(bound); ; {
		select {
		case h := <-p.Hints():
			switch h {
			case cache.Hint{Kind: cache.HintTried, Key: key}:
				return
			case cache.Hint{Kind: cache.HintContended, Key: key}:
				p.Fatalf("%s is contended", key)
			}
		case <-end:
			p.Fatalf("nobody tries for %s", key)
		}
	}
}
