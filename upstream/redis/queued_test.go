package redis_test

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// An acquire checks for a queue only if the fence counter shows that there may be one.
func TestTheCounterSaysThatSomebodyMayQueue(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	c := testserver.StartRedisCluster(t, 3, 0)
	for _, k := range []struct {
		name, url, beside string
		srv               *testserver.Redis
	}{
		{"standalone", srv.URL() + "?", "locksidecar:{}:", srv},
		{"cluster", c.URL() + "?", strings.TrimSuffix(redis.FenceName(c.Slot("{k}")), "fence"),
			c.Owner(c.Slot("{k}"))},
	} {
		t.Run(k.name, func(t *testing.T) {
			peerOf := func() *peer { return &peer{T: t, Store: openStore(t, k.url+"waiter_lease=2s")} }
			p, q, r := peerOf(), peerOf(), peerOf()
			marked := func(want bool) {
				t.Helper()
				if v, _ := k.srv.Do("GET", k.beside+"fence").(string); strings.HasSuffix(v, "q") != want {
					t.Fatalf("the counter is %q", v)
				}
			}
			var last uint64
			grow := func(base uint64) {
				t.Helper()
				if base <= last {
					t.Fatalf("base %d after %d", base, last)
				}
				last = base
			}
			for i, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
				key := "{k}" + mode.String()
				held, base := p.take(key, cache.Exclusive)
				grow(base)
				marked(false)
				w := q.token()
				join := func(want cache.Status) {
					t.Helper()
					res := q.do(cache.OpJoin, mode, key, w)
					q.want(res, want)
					if want == cache.Granted {
						grow(res.Base)
					}
				}
				join(cache.Queued)
				marked(true)
				// Other locks in the slot work, and the mark stays.
				for _, m := range []cache.Mode{cache.Exclusive, cache.Shared} {
					_, base := r.take(key+"other"+m.String(), m)
					grow(base)
					marked(true)
				}
				p.want(p.do(cache.OpRelease, 0, key, held), cache.Done)
				barge := func() {
					t.Helper()
					join(cache.Granted)
					q.want(q.do(cache.OpRelease, 0, key, w), cache.Done)
					held, base := p.take(key, cache.Exclusive)
					grow(base)
					w = q.token()
					join(cache.Queued)
					p.want(p.do(cache.OpRelease, 0, key, held), cache.Done)
					r.want(r.do(cache.OpTry, cache.Exclusive, key, r.token()), cache.Busy)
				}
				// The lock is free, but not for us.
				r.want(r.do(cache.OpTry, cache.Exclusive, key, r.token()), cache.Busy)
				barge()
				// The mark is kept if the counter was lost or is ahead.
				k.srv.Do("DEL", k.beside+"fence")
				if i > 0 {
					last = 0 // the counter was ahead of the clock
				}
				r.want(r.do(cache.OpTry, cache.Exclusive, key, r.token()), cache.Busy)
				marked(true)
				barge()
				k.srv.Do("SET", k.beside+"fence", "7000000000000000q", "KEEPTTL")
				last = max(last, 7000000000000000+uint64(i))
				r.want(r.do(cache.OpTry, cache.Exclusive, key, r.token()), cache.Busy)
				marked(true)
				join(cache.Granted)
				q.want(q.do(cache.OpRelease, 0, key, w), cache.Done)
				// When the mark has ended, the counter has no q again.
				n := 0
				p.eventually("nobody looks any more", func() bool {
					n++
					token, base := r.take(key+"last", cache.Exclusive)
					grow(base)
					r.want(r.do(cache.OpRelease, 0, key+"last", token), cache.Done)
					v, _ := k.srv.Do("GET", k.beside+"fence").(string)
					return !strings.HasSuffix(v, "q")
				})
			}
		})
	}
}
