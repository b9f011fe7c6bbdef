package redis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// storm has a few daemons that acquire and release a few keys continuously. It notices two holders
// at once, and a fence that does not rise.
type storm struct {
	t        *testing.T
	keys     []stormKey
	stop     chan struct{}
	halt     func() // ends the daemons, also if the test fails before end
	wg       sync.WaitGroup
	grants   atomic.Int64
	unknown  atomic.Int64
	refused  atomic.Int64
	overlaps atomic.Int64 // grants before the deadline of another holder
	falls    atomic.Int64 // grants with a base that is not larger
}

// stormKey is the resource that one lock guards.
type stormKey struct {
	name string
	mu   sync.Mutex
	base uint64    // the highest base; guarded by mu, as are the fields below
	who  int       // the holder, or 0
	ends time.Time // the holder's deadline
}

func newStorm(t *testing.T, url string, daemons int, keys ...string) *storm {
	t.Helper()
	s := &storm{t: t, keys: make([]stormKey, len(keys)), stop: make(chan struct{})}
	s.halt = sync.OnceFunc(func() { close(s.stop); s.wg.Wait() })
	for i, k := range keys {
		s.keys[i].name = k
	}
	for n := range daemons {
		st := openStore(t, url)
		s.wg.Go(func() { s.daemon(n+1, st) })
	}
	t.Cleanup(s.halt) // before the stores are closed
	return s
}

// stormTTL is longer than the failovers of these tests.
const stormTTL = 20 * time.Second

// heldLock is a lease that a daemon holds in a storm.
type heldLock struct {
	token  uint64
	rounds int // until its release
}

// daemon acquires keys, holds each for a few rounds, and releases it. It settles unresolved
// requests by their tokens, as the real daemon does.
func (s *storm) daemon(who int, st *redis.Store) {
	rnd := rand.New(rand.NewPCG(uint64(who), 3))
	token := uint64(0)
	pending, held := map[string]uint64{}, map[string]*heldLock{}
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		var ops []upstream.Op
		for i := range s.keys {
			name := s.keys[i].name
			op := upstream.Op{Key: name, TTL: stormTTL}
			switch g := held[name]; {
			case pending[name] != 0:
				op.Kind, op.Token = cache.OpWithdraw, pending[name]
			case g != nil:
				if g.rounds--; g.rounds > 0 {
					continue
				}
				s.leave(who, name)
				op.Kind, op.Token = cache.OpRelease, g.token
				delete(held, name)
				pending[name] = g.token // until it is done
			case rnd.IntN(2) == 0:
				token++
				op.Kind, op.Token = cache.OpTry, token
			default:
				continue
			}
			ops = append(ops, op)
		}
		sent := time.Now()
		for i, r := range s.apply(st, ops) {
			switch op := ops[i]; {
			case r.Status == cache.Granted:
				s.enter(who, op.Key, r.Base, sent.Add(stormTTL))
				held[op.Key] = &heldLock{op.Token, 1 + rnd.IntN(10)}
			case op.Kind == cache.OpTry && r.Status == cache.Unknown:
				pending[op.Key] = op.Token
			case op.Kind != cache.OpTry && (r.Status == cache.Done || r.Status == cache.NotHeld):
				delete(pending, op.Key)
			}
		}
	}
}

func (s *storm) apply(st *redis.Store, ops []upstream.Op) []cache.Result {
	res := make([]cache.Result, len(ops))
	ctx, cancel := context.WithTimeout(context.Background(), st.Info().Timeout)
	defer cancel()
	_ = st.Apply(ctx, ops, res)
	for i := range res {
		switch res[i].Status {
		case cache.Unknown:
			s.unknown.Add(1)
		case cache.Refused:
			s.refused.Add(1)
		}
	}
	return res
}

func (s *storm) key(name string) *stormKey {
	for i := range s.keys {
		if s.keys[i].name == name {
			return &s.keys[i]
		}
	}
	return nil
}

func (s *storm) enter(who int, name string, base uint64, ends time.Time) {
	k := s.key(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	s.grants.Add(1)
	if k.who != 0 && time.Now().Before(k.ends) {
		s.overlaps.Add(1)
	}
	if base <= k.base {
		s.falls.Add(1)
		s.t.Errorf("%s: base %d after %d", name, base, k.base)
	}
	k.base, k.who, k.ends = max(base, k.base), who, ends
}

func (s *storm) leave(who int, name string) {
	k := s.key(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.who == who {
		k.who = 0
	}
}

// more waits until n more grants have been seen.
func (s *storm) more(n int64) {
	s.t.Helper()
	from := s.grants.Load()
	for end := time.Now().Add(bound); s.grants.Load() < from+n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("only %d grants, %d unknown, %d refused", s.grants.Load()-from, s.unknown.Load(),
				s.refused.Load())
		}
	}
}

func (s *storm) end(what string) {
	s.t.Helper()
	s.halt()
	s.t.Logf("%s: %d grants, %d unknown, %d refused, %d overlaps, all with a larger fence but %d",
		what, s.grants.Load(), s.unknown.Load(),
		s.refused.Load(), s.overlaps.Load(), s.falls.Load())
}

func scattered(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("key%d", i))
	}
	return keys
}

func TestReshardingUnderLoadLetsNobodyInBesideAnother(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 2, 0)
	keys := scattered(12)
	s := newStorm(t, c.URL()+"?timeout=5s", 3, keys...)
	s.more(200)
	empty := c.Add()
	for round := range 3 {
		for _, k := range keys {
			slot := c.Slot("lock:" + k)
			to := []*testserver.Redis{empty, c.Nodes[0], c.Nodes[1]}[round]
			if c.Owner(slot) != to {
				c.Move(slot, to)
			}
			s.more(20)
		}
	}
	s.end("resharding")
	if s.overlaps.Load() != 0 {
		t.Errorf("%d overlaps", s.overlaps.Load())
	}
	if s.unknown.Load() != 0 {
		t.Errorf("%d results are unknown: nothing was cut", s.unknown.Load())
	}
}

func TestAnOrderlyFailoverOfAClustersNodeUnderLoad(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 1)
	s := newStorm(t, c.URL()+"?wait_replicas=1&wait_timeout=2s&timeout=5s", 3, scattered(12)...)
	s.more(200)
	c.Failover(c.Nodes[3])
	c.Failover(c.Nodes[4])
	s.more(200)
	s.end("orderly fail-over, wait_replicas=1")
	if s.overlaps.Load() != 0 {
		t.Errorf("%d overlaps", s.overlaps.Load())
	}
}

// The number of overlaps here is not promised, but the fences are.
func TestANodeOfAClusterDiesUnderLoad(t *testing.T) {
	for _, query := range []string{"timeout=2s", "timeout=2s&wait_replicas=1"} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			c := testserver.StartRedisCluster(t, 3, 1)
			s := newStorm(t, c.URL()+"?"+query, 3, scattered(12)...)
			s.more(200)
			c.Nodes[0].Kill()
			c.WaitOK()
			// Now nothing waits for the dead node. All slots are served, and one shard has no replica.
			if strings.Contains(query, "wait") {
				c.Nodes[0].Start()
				c.WaitOK()
			}
			s.more(200)
			s.end("a node killed, " + query)
			// Here the only replica of each master has all grants, so no second holder gets a key.
			if n := s.overlaps.Load(); n != 0 && strings.Contains(query, "wait") {
				t.Errorf("%d overlaps", n)
			}
		})
	}
}

func TestAMasterDiesUnderLoadAndItsSentinelsNameAnother(t *testing.T) {
	for _, query := range []string{"timeout=2s", "timeout=2s&wait_replicas=1"} {
		t.Run(query, func(t *testing.T) {
			t.Parallel()
			c := testserver.StartRedisSentinel(t, "")
			s := newStorm(t, c.URL()+"?"+query, 3, scattered(6)...)
			s.more(200)
			old := c.Master()
			old.Kill()
			c.WaitOther(old)
			old.Start() // it reports that it is a master until the sentinels find it
			s.more(200)
			s.end("the master killed, " + query)
		})
	}
}
