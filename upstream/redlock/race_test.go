package redlock_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
)

// register is the resource that a lock guards. It knows the present holders, and accepts writes
// only in the order of their bases.
type register struct {
	mu     sync.Mutex
	inside string
	until  time.Time
	base   uint64
	turns  map[string]int
}

func (g *register) enter(t *testing.T, who string, base uint64, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !now.Before(until) {
		return
	}
	if g.inside != "" && now.Before(g.until) {
		t.Errorf("%s is inside beside %s", who, g.inside)
	}
	if base <= g.base {
		t.Errorf("%s has base %d after %d", who, base, g.base)
	}
	g.inside, g.until, g.base = who, until, max(g.base, base)
	g.turns[who]++
}

func (g *register) extend(who string, until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside == who {
		g.until = until
	}
}

func (g *register) leave(who string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside == who {
		g.inside = ""
	}
}

// turn polls for the key with jitter, holds it, and releases it.
func (p *peer) turn(t *testing.T, g *register, who string, rnd *rand.Rand, ttl time.Duration) bool {
	tok := p.token()
	op := upstream.Op{Kind: cache.OpJoin, Key: "k", Token: tok, TTL: ttl}
	end := time.Now().Add(bound)
	for {
		sent := time.Now()
		r := p.op(op)
		if r.Status == cache.Granted {
			until := deadline(sent, ttl)
			g.enter(t, who, r.Base, until)
			if rnd.IntN(3) == 0 {
				sent := time.Now()
				op.Kind = cache.OpRenew
				if time.Now().Before(until) && p.op(op).Status == cache.Done {
					g.extend(who, deadline(sent, ttl))
				}
			}
			g.leave(who)
			break
		}
		if time.Now().After(end) {
			t.Errorf("%s never gets it: %v (%v)", who, r.Status, r.Err)
			return false
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(20 * time.Millisecond))))
	}
	for op.Kind = cache.OpRelease; time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if r := p.op(op); r.Status == cache.Done || r.Status == cache.NotHeld {
			break
		}
	}
	return true
}

func TestHostsThatSplitTheVotesAllGetTheirTurns(t *testing.T) {
	t.Parallel()
	c := start(t, 5)
	g := &register{turns: map[string]int{}}
	var wg sync.WaitGroup
	for i, who := range []string{"a", "b", "c"} {
		p := newPeer(t, c.url(patient))
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(i)))
			for range 15 {
				if !p.turn(t, g, who, rnd, long) {
					return
				}
			}
		})
	}
	wg.Wait()
	for who, n := range g.turns {
		if n != 15 {
			t.Errorf("%s had %d turns", who, n)
		}
	}
	c.empty(t)
}

func TestNobodyHoldsBesideAnotherWhileNodesAreKilledAndPaused(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second // and nodes that restarted wait for as long
	c := start(t, 5)
	g := &register{turns: map[string]int{}}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i, who := range []string{"a", "b", "c"} {
		cfg, err := redlock.Parse(c.url("timeout=300ms&max_ttl=2s"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := redlock.OpenLazy(cfg, agedMember)
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{TB: t, Store: s}
		t.Cleanup(p.end)
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(i)))
			for !stop.Load() && p.turn(t, g, who, rnd, ttl) {
			}
		})
	}
	soon(t, "the nodes vote", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.base > 0 })
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 10 { // at most two nodes at a time are stopped, or too young to vote
		a, b := rnd.IntN(5), rnd.IntN(5)
		c[a].Pause()
		if b != a && rnd.IntN(4) == 0 {
			c[b].Restart()
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(400 * time.Millisecond))))
		c[a].Resume()
	}
	stop.Store(true)
	wg.Wait()
	t.Log(g.turns)
}
