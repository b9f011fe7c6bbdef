package redis_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// permitOp is an op on the semaphore of key.
func permitOp(kind cache.OpKind, key string, limit uint32, token uint64) upstream.Op {
	return upstream.Op{Kind: kind, Mode: cache.Permit, Limit: limit, Key: key, Token: token, TTL: long}
}

func (p *peer) permit(kind cache.OpKind, key string, limit uint32, token uint64) cache.Result {
	p.Helper()
	return p.apply(permitOp(kind, key, limit, token))[0]
}

// takePermits takes n permits at once.
func (p *peer) takePermits(key string, limit uint32, n int) (ops []upstream.Op) {
	p.Helper()
	for range n {
		ops = append(ops, permitOp(cache.OpTry, key, limit, p.token()))
	}
	p.allPermits(ops, cache.OpTry, cache.Granted)
	return ops
}

// allPermits carries out one kind of op on permits, in batches.
func (p *peer) allPermits(ops []upstream.Op, kind cache.OpKind,
	want cache.Status) (rs []cache.Result) {
	p.Helper()
	for part := range slices.Chunk(ops, upstream.MaxBatch) {
		for i := range part {
			part[i].Kind = kind
		}
		rs = append(rs, p.apply(part...)...)
	}
	for _, r := range rs {
		p.want(r, want)
	}
	return rs
}

func TestPermitsStandWhereTheLayoutSays(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 0)
	for i, prefix := range []string{"lock:", "", "{", "a}{b"} {
		p, q := onCluster(t, c, "prefix="+prefix), onCluster(t, c, "prefix="+prefix)
		for _, key := range []string{"k", "{", "{}", "{a}", "}{", "{}{a}", "a:permits:b"} {
			key += fmt.Sprint(i)
			p.takePermits(key, 2, 2)
			q.want(q.permit(cache.OpJoin, key, 2, q.token()), cache.Queued)
			slot := c.Slot(prefix + key)
			for _, kind := range []string{"permits:", "permitqueue:", "permitwaiters:", "permithosts:"} {
				name := strings.TrimSuffix(redis.FenceName(slot), "fence") + kind + prefix + key
				if c.Slot(name) != slot {
					t.Errorf("%s is in another slot", name)
				}
				if ttl := c.Owner(slot).Admin().PTTL(t.Context(), name).Val(); ttl <= 0 ||
					ttl > long+2*time.Second {
					t.Errorf("%s ends in %v", name, ttl)
				}
			}
			if c.Owner(slot).Do("EXISTS", prefix+key) != int64(0) {
				t.Errorf("there is a lock %s", prefix+key)
			}
			if l := p.listAll(key, 10); len(l) != 2 || l[0].Key != key || l[0].Mode != cache.Permit ||
				!l[0].Mine || l[0].Waiters != 1 || l[0].Left <= 0 {
				t.Errorf("the list is %v", l)
			}
		}
	}
}

func TestFencesOfPermitsAndLocksAreOneSequence(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string, _ func(string, ...any)) {
		p, q := &peer{T: t, Store: openStore(t, url)}, &peer{T: t, Store: openStore(t, url)}
		seen, last, rnd := map[uint64]bool{}, uint64(0), rand.New(rand.NewPCG(3, 4))
		for n := range 60 {
			at, floor := []*peer{p, q}[n%2], uint64(0)
			if rnd.IntN(4) == 0 {
				floor = last + uint64(rnd.IntN(1000))
			}
			var ops []upstream.Op
			for range 1 + rnd.IntN(200) { // more than fit into one call
				op := permitOp(cache.OpTry, "{k}", 1<<20, at.token())
				switch rnd.IntN(3) {
				case 0:
					op.TTL += time.Duration(rnd.IntN(3)) * time.Second
				case 1:
					op.Kind = cache.OpJoin
				}
				ops = append(ops, op)
			}
			lock := upstream.Op{Kind: cache.OpTry, Key: "{k}" + fmt.Sprint(n), Token: at.token(), TTL: long}
			ops = append(ops, lock)
			ops[0].Floor = floor
			high := last
			for i, r := range at.apply(ops...) {
				at.want(r, cache.Granted)
				if seen[r.Base] || r.Base <= last || r.Base <= ops[i].Floor {
					t.Fatalf("base %d after %d, with floor %d", r.Base, last, floor)
				}
				seen[r.Base], high = true, max(high, r.Base)
			}
			// A new base for a held permit is new, too.
			for i := range ops[:3%len(ops)] {
				ops[i].Kind, ops[i].Rebase, ops[i].Floor = cache.OpRenew, true, high
			}
			last = high
			for _, r := range at.apply(ops[:3%len(ops)]...) {
				at.want(r, cache.Done)
				if seen[r.Base] || r.Base <= last {
					t.Fatalf("new base %d after %d", r.Base, last)
				}
				seen[r.Base], high = true, max(high, r.Base)
			}
			last = high
		}
	})
}

func TestPermitsOnAnOlderServer(t *testing.T) {
	defer redis.BeforeRedis62()()
	// These are subtests, so that their stores are closed before the scripts are restored.
	t.Run("last", TestASemaphoreLastsAsLongAsItsLongestPermit)
	t.Run("hints", TestAsManyAreToldAsCanCome)
	t.Run("end", TestPermitsEndWithTheirServer)
}

func TestASemaphoreLastsAsLongAsItsLongestPermit(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	const name = "locksidecar:{}:permits:lock:k"
	least := time.Duration(0)
	for _, d := range []time.Duration{time.Second, time.Hour, time.Minute,
		2 * time.Hour, time.Second} {
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpRenew, cache.OpTry} {
			op := permitOp(kind, "k", 100, p.last)
			if op.TTL = d; kind != cache.OpRenew {
				op.Token = p.token()
			}
			if st := p.apply(op)[0].Status; st != cache.Granted && st != cache.Done {
				t.Fatal(st)
			}
			least = max(least, d)
			if ttl := srv.Admin().PTTL(t.Context(), name).Val(); ttl < least-10*time.Second ||
				ttl > least+2*time.Second {
				t.Errorf("after %v with %v it ends in %v", kind, d, ttl)
			}
		}
	}
}

func TestWhatIsNoPermitIsRefused(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	srv.Do("SET", "locksidecar:{}:permits:lock:f", "somebody's")
	for _, op := range []upstream.Op{permitOp(cache.OpTry, "k", 0, 1),
		permitOp(cache.OpJoin, "k", 0, 1), permitOp(cache.OpDowngrade, "k", 1, 1),
		permitOp(cache.OpTry, "f", 1, 1), permitOp(cache.OpJoin, "f", 1, 1),
		permitOp(cache.OpRenew, "f", 1, 1), permitOp(cache.OpRelease, "f", 1, 1),
		permitOp(cache.OpPeek, "f", 1, 0)} {
		rs := p.apply(permitOp(cache.OpTry, "before", 1000, p.token()), op,
			permitOp(cache.OpTry, "behind", 1000, p.token()))
		p.want(rs[0], cache.Granted)
		p.want(rs[1], cache.Refused)
		p.want(rs[2], cache.Granted)
	}
	if l := p.listAll("f", 10); len(l) != 0 {
		t.Errorf("the list is %v", l)
	}
}
