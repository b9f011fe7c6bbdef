package redis_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// tries requests n permits in batches, and returns the ops of the granted ones.
func (p *peer) tries(key string, limit uint32, n int, ttl time.Duration) (got []upstream.Op,
	bases []uint64) {
	p.Helper()
	for n > 0 {
		var ops []upstream.Op
		for range min(n, upstream.MaxBatch) {
			op := permitOp(cache.OpTry, key, limit, p.token())
			op.TTL = ttl
			ops = append(ops, op)
		}
		n -= len(ops)
		for i, r := range p.apply(ops...) {
			switch r.Status {
			case cache.Granted:
				got, bases = append(got, ops[i]), append(bases, r.Base)
			case cache.Busy:
			default:
				p.Errorf("it is %v (%v)", r.Status, r.Err)
			}
		}
	}
	return got, bases
}

// crowd has some daemons with their permits of one semaphore.
type crowd struct {
	*testing.T
	ps  [3]*peer
	got [3][]upstream.Op
}

const crowdLimit = 1000

func TestAThousandPermitsAreOneThousand(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string, _ func(string, ...any)) {
		c := &crowd{T: t}
		for i := range c.ps {
			c.ps[i] = &peer{T: t, Store: openStore(t, url+"?timeout=10s&waiter_lease=1m")}
		}
		c.takeAll()
		w := c.ps[0].joinPermits("k", crowdLimit, 600)
		for _, page := range []int{37, 300, 5000} {
			c.listed(page, len(w))
		}
		c.change(w)
		c.comeBack()
	})
}

// takeAll makes all daemons try for more permits than there are, at once.
func (c *crowd) takeAll() {
	c.Helper()
	var bases [3][]uint64
	var wg sync.WaitGroup
	for i := range c.ps {
		wg.Go(func() { c.got[i], bases[i] = c.ps[i].tries("k", crowdLimit, 450, long) })
	}
	wg.Wait()
	seen, n := map[uint64]bool{}, 0
	for i := range c.ps {
		for _, b := range bases[i] {
			seen[b] = true
		}
		n += len(c.got[i])
	}
	if n != crowdLimit || len(seen) != crowdLimit {
		c.Fatalf("%d are granted, with %d bases", n, len(seen))
	}
}

// listed checks that the list has each permit.
func (c *crowd) listed(page, waiters int) {
	c.Helper()
	held := map[string]int{}
	for _, l := range c.ps[1].listAll("k", page) {
		if l.Mode != cache.Permit || l.Waiters != waiters || l.Mine != (l.Holder == c.ps[1].Instance()) {
			c.Fatalf("listed is %v", l)
		}
		held[l.Holder]++
	}
	for i, p := range c.ps {
		if held[p.Instance()] != len(c.got[i]) {
			c.Errorf("of %d permits of one %d are listed", len(c.got[i]), held[p.Instance()])
		}
	}
}

// change makes two daemons renew all permits while the third releases all of its permits. Waiters
// take these, and then all daemons release theirs.
func (c *crowd) change(w []upstream.Op) {
	c.Helper()
	var wg sync.WaitGroup
	for i := range c.ps {
		wg.Go(func() {
			if i < 2 {
				c.ps[i].allPermits(c.got[i], cache.OpRenew, cache.Done)
			} else {
				c.ps[i].allPermits(c.got[i], cache.OpRelease, cache.Done)
			}
		})
	}
	wg.Wait()
	free := min(len(c.got[2]), len(w))
	c.ps[0].allPermits(w[:free], cache.OpJoin, cache.Granted)
	c.ps[0].allPermits(w[free:], cache.OpWithdraw, cache.Done)
	more, _ := c.ps[2].tries("k", crowdLimit, 450, long)
	if len(more) != len(c.got[2])-free {
		c.Errorf("%d more of %d", len(more), len(c.got[2])-free)
	}
	for i, ops := range [][]upstream.Op{append(c.got[0], w[:free]...), c.got[1], more} {
		c.ps[i].allPermits(ops, cache.OpRelease, cache.Done)
	}
	if l := c.ps[0].listAll("k", 10); len(l) != 0 {
		c.Errorf("there is left %v", l)
	}
}

// comeBack lets most permits end by themselves.
func (c *crowd) comeBack() {
	c.Helper()
	short, _ := c.ps[0].tries("k", crowdLimit, 700, time.Second)
	kept, _ := c.ps[1].tries("k", crowdLimit, 300, long)
	if len(short) != 700 || len(kept) != 300 {
		c.Fatalf("%d and %d are granted", len(short), len(kept))
	}
	left := 700
	c.ps[2].eventually("they come back", func() bool {
		more, _ := c.ps[2].tries("k", crowdLimit, left, long)
		left -= len(more)
		return left == 0
	})
	c.ps[0].allPermits(short, cache.OpRenew, cache.NotHeld)
	c.ps[1].allPermits(kept, cache.OpRenew, cache.Done)
	if more, _ := c.ps[2].tries("k", crowdLimit, 1, long); len(more) != 0 {
		c.Error("there is one more")
	}
}

// siege has a few daemons that acquire and release permits of a few semaphores continuously. It
// notices too many holders.
type siege struct {
	t       *testing.T
	keys    []string
	inside  []atomic.Int32
	grants  atomic.Int64
	unknown atomic.Int64
	refused atomic.Int64
	stop    atomic.Bool
}

const siegeLimit = 3

// daemon uses a few tokens of each semaphore at a time. It settles unresolved requests by their
// tokens.
func (s *siege) daemon(who int, p *peer) {
	rnd := rand.New(rand.NewPCG(uint64(who), 6))
	type work struct {
		key         int
		held, ended bool
	}
	tokens := map[uint64]*work{}
	for !s.stop.Load() || len(tokens) > 0 {
		for len(tokens) < 2*len(s.keys) && !s.stop.Load() {
			tokens[p.token()] = &work{key: rnd.IntN(len(s.keys))}
		}
		var ops []upstream.Op
		for tok, w := range tokens {
			op := permitOp(cache.OpJoin, s.keys[w.key], siegeLimit, tok)
			switch {
			case w.ended:
				op.Kind = cache.OpWithdraw
			case w.held && rnd.IntN(3) == 0:
				op.Kind = cache.OpRenew
			case w.held:
				s.inside[w.key].Add(-1)
				op.Kind, w.ended = cache.OpRelease, true
			case s.stop.Load() || rnd.IntN(10) == 0:
				op.Kind, w.ended = cache.OpWithdraw, true
			case rnd.IntN(3) == 0:
				op.Kind = cache.OpTry
			}
			ops = append(ops, op)
		}
		for i, r := range p.try(ops...) {
			op := ops[i]
			w := tokens[op.Token]
			switch {
			case r.Status == cache.Unknown:
				s.unknown.Add(1)
				w.ended = w.ended || !w.held
			case r.Status == cache.Refused:
				s.refused.Add(1)
			case op.Kind == cache.OpRenew && r.Status != cache.Done:
				s.t.Errorf("a renewal is %v", r.Status)
			case r.Status == cache.Granted:
				w.held = true
				s.grants.Add(1)
				if n := s.inside[w.key].Add(1); n > siegeLimit {
					s.t.Errorf("%d are inside", n)
				}
			case w.ended && (r.Status == cache.Done || r.Status == cache.NotHeld):
				delete(tokens, op.Token)
			}
		}
	}
}

func (s *siege) more(n int64) {
	s.t.Helper()
	from := s.grants.Load()
	for end := time.Now().Add(bound); s.grants.Load() < from+n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("only %d grants, %d unknown, %d refused", s.grants.Load()-from, s.unknown.Load(),
				s.refused.Load())
		}
	}
}

func TestReshardingUnderLoadGivesNoPermitTwice(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 2, 0)
	keys := scattered(6)
	s := &siege{t: t, keys: keys, inside: make([]atomic.Int32, len(keys))}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer s.stop.Store(true)
	for who := range 3 {
		p := &peer{T: t, Store: openStore(t, c.URL()+"?timeout=5s")}
		wg.Go(func() { s.daemon(who, p) })
	}
	s.more(200)
	for round := range 3 {
		for _, k := range keys {
			slot, to := c.Slot("lock:"+k), c.Nodes[round%2]
			if c.Owner(slot) != to {
				c.Move(slot, to)
			}
			s.more(20)
		}
	}
	s.stop.Store(true)
	wg.Wait()
	t.Logf("%d grants, %d unknown, %d refused", s.grants.Load(), s.unknown.Load(), s.refused.Load())
	if s.unknown.Load() != 0 {
		t.Errorf("%d results are unknown: nothing was cut", s.unknown.Load())
	}
	for _, name := range c.Keys() {
		if strings.Contains(name, ":permit") {
			t.Errorf("there is left %s", name)
		}
	}
}
