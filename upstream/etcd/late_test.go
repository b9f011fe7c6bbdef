package etcd_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// secondFrom accepts the second of the requests that contain text.
func secondFrom(text string) func([]byte) bool {
	n := 0
	return func(b []byte) bool {
		if !bytes.Contains(b, []byte(text)) {
			return false
		}
		n++
		return n == 2
	}
}

// late delivers the request that was held back.
func (p *peer) late(w *wire) {
	p.Helper()
	if n := w.deliver(); n != 1 {
		p.Fatalf("%d requests were held back", n)
	}
}

// An acquire has taken one permit too many, and removes it. The removal is carried out late, when
// the same token has been requested again and has a permit. It must not end that permit.
func TestALateEndOfAnAcquireEndsNoLaterPermit(t *testing.T) {
	t.Parallel()
	for _, kind := range []cache.OpKind{cache.OpJoin, cache.OpTry} {
		t.Run(kind.String(), func(t *testing.T) {
			srv := testserver.StartEtcd(t)
			p, w := wirePeer(t, srv, "timeout=5s&ttl=60s")
			q := newPeer(t, srv, "ttl=60s")
			var key string
			var b, x uint64
			for n := 0; ; n++ { // until p's watch has been slower than its request
				key = fmt.Sprint(key, n)
				p.takePermit(3, key)
				b = q.takePermit(3, key) // p does not know these two
				q.takePermit(3, key)
				x = p.token()
				w.holdFrom(secondFrom(heldDir + key + "/"))
				r := p.permit(kind, 3, key, x)
				if n == 20 || r.Status != cache.Busy && r.Status != cache.Queued {
					p.want(r, cache.Unknown)
					break
				}
				w.holdFrom(nil)
			}
			w.holdFrom(nil)
			p.again(w)
			q.want(q.permit(cache.OpRelease, 0, key, b), cache.Done)
			p.want(p.permit(kind, 3, key, x), cache.Granted)
			p.late(w)
			for range 20 {
				q.want(q.permit(cache.OpTry, 3, key, q.token()), cache.Busy)
				p.want(p.permit(cache.OpRenew, 0, key, x), cache.Done)
			}
		})
	}
}

// A lock is released because its fence would not be high enough. The release is carried out late,
// when the same token has been requested again and has the lock.
func TestALateEndOfAnAcquireEndsNoLaterLock(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, w := wirePeer(t, srv, "timeout=5s&ttl=60s")
	q := newPeer(t, srv, "ttl=60s")
	x := p.token()
	w.holdFrom(secondFrom(dir + "k/"))
	high := upstream.Op{Kind: cache.OpTry, Mode: cache.Exclusive, Key: "k", Token: x, TTL: long,
		Floor: 1 << 40}
	res, _ := p.apply(high)
	p.want(res[0], cache.Unknown)
	w.holdFrom(nil)
	p.again(w)
	p.want(p.do(cache.OpTry, cache.Exclusive, "k", x), cache.Granted)
	p.late(w)
	for range 20 {
		q.want(q.do(cache.OpTry, cache.Exclusive, "k", q.token()), cache.Busy)
		p.want(p.do(cache.OpRenew, cache.Exclusive, "k", x), cache.Done)
	}
}
