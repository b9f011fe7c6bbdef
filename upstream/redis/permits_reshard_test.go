package redis_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// permitStorm is a storm of daemons that take, renew and give back permits of one semaphore. It
// counts the permits that are valid at the same time.
type permitStorm struct {
	*storm
	key    string
	limit  int
	rounds atomic.Int64 // batches that were answered
	// Guarded by mu of the storm's only key:
	ends  map[permitID]time.Time // of each permit that is held
	bases map[uint64]bool        // of all permits ever granted
	most  int                    // permits valid at once
}

// permitID identifies a permit: different daemons use the same tokens.
type permitID struct {
	daemon int
	token  uint64
}

// permitTTL is longer than the test, so that no permit expires.
const permitTTL = 5 * time.Minute

func newPermitStorm(t *testing.T, url string, daemons, limit int, key string) *permitStorm {
	t.Helper()
	s := &permitStorm{storm: newStorm(t, url, 0, key), key: key, limit: limit,
		ends: map[permitID]time.Time{}, bases: map[uint64]bool{}}
	for n := range daemons {
		st := openStore(t, url)
		s.wg.Go(func() { s.daemon(n+1, st) })
	}
	t.Cleanup(s.halt) // before the stores are closed
	return s
}

// permitState is the state of one of a daemon's tokens.
type permitState struct{ ending, held, queued bool }

// daemon has three tokens at any time. Each tries or queues, is renewed and released. A token whose
// answer did not come is withdrawn.
func (s *permitStorm) daemon(n int, st *redis.Store) {
	rnd := rand.New(rand.NewPCG(uint64(n), 7))
	tokens, last := map[uint64]*permitState{}, uint64(0)
	for {
		select {
		case <-s.stop:
			return
		default:
		}
		for len(tokens) < 3 {
			last++
			tokens[last] = &permitState{}
		}
		var ops []upstream.Op
		for token, p := range tokens {
			op := upstream.Op{Mode: cache.Permit, Key: s.key, Token: token, TTL: permitTTL,
				Limit: uint32(s.limit)}
			switch {
			case p.ending:
				op.Kind = cache.OpWithdraw
			case p.held && rnd.IntN(3) == 0:
				op.Kind = cache.OpRelease
				s.gone(permitID{n, token})
				p.ending, p.held = true, false
			case p.held:
				op.Kind = cache.OpRenew
			case p.queued || rnd.IntN(2) == 0:
				op.Kind = cache.OpJoin
			default:
				op.Kind = cache.OpTry
			}
			ops = append(ops, op)
		}
		sent := time.Now()
		for i, r := range s.apply(st, ops) {
			if s.answered(permitID{n, ops[i].Token}, tokens[ops[i].Token], ops[i].Kind, r, sent) {
				delete(tokens, ops[i].Token)
			}
		}
		s.rounds.Add(1)
	}
}

// answered records a result. It reports whether the token is no longer in use.
func (s *permitStorm) answered(id permitID, p *permitState, kind cache.OpKind, r cache.Result,
	sent time.Time) (over bool) {
	switch {
	case kind == cache.OpRenew && r.Status == cache.NotHeld:
		s.t.Errorf("a permit that is held was lost")
		s.gone(id)
		return true
	case kind == cache.OpRenew || kind == cache.OpRelease || kind == cache.OpWithdraw:
		return kind != cache.OpRenew && (r.Status == cache.Done || r.Status == cache.NotHeld)
	case r.Status == cache.Granted:
		p.held, p.queued = true, false
		s.granted(id, r.Base, sent.Add(permitTTL))
	case r.Status == cache.Queued:
		p.queued = true
	case r.Status == cache.Busy:
		return true
	case r.Status == cache.Unknown || p.queued:
		p.ending = true
	}
	return false
}

func (s *permitStorm) granted(id permitID, base uint64, ends time.Time) {
	k := &s.keys[0]
	k.mu.Lock()
	defer k.mu.Unlock()
	s.grants.Add(1)
	s.ends[id] = ends
	valid := 0
	for _, e := range s.ends {
		if time.Now().Before(e) {
			valid++
		}
	}
	if s.most = max(s.most, valid); valid > s.limit {
		s.t.Errorf("%d permits of %d at once", valid, s.limit)
	}
	if s.bases[base] {
		s.t.Errorf("base %d for two permits", base)
	}
	s.bases[base] = true
}

// answers waits until n more batches have been answered.
func (s *permitStorm) answers(n int64) {
	s.t.Helper()
	from := s.rounds.Load()
	for end := time.Now().Add(bound); s.rounds.Load() < from+n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("only %d batches were answered", s.rounds.Load()-from)
		}
	}
}

func (s *permitStorm) gone(id permitID) {
	s.keys[0].mu.Lock()
	defer s.keys[0].mu.Unlock()
	delete(s.ends, id)
}

// A slot moves between three nodes again and again, key by key, while daemons take locks and
// permits in it. No lock has two holders, no semaphore has too many, no two permits share a fence,
// none is lost.
func TestASlotMovesManyTimesUnderLocksAndPermits(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 0)
	url := c.URL() + "?timeout=5s"
	slot := c.Slot("lock:{x}")
	locks := newStorm(t, url, 3, "{x}a", "{x}b")
	permits := newPermitStorm(t, url, 4, 3, "{x}sem")
	rnd := rand.New(rand.NewPCG(5, 11))
	moves := 0
	for begun := time.Now(); moves < 20 || moves < 250 && time.Since(begun) < 10*time.Second; moves++ {
		from, to := c.Owner(slot), c.Nodes[rnd.IntN(3)]
		for to == from {
			to = c.Nodes[rnd.IntN(3)]
		}
		c.BeginMove(slot, to)
		for {
			keys, _ := from.Do("CLUSTER", "GETKEYSINSLOT", slot, 1+rnd.IntN(3)).([]any)
			if len(keys) == 0 {
				break
			}
			c.MoveKeys(slot, from, to, keys...)
			if rnd.IntN(4) == 0 { // siblings are on both nodes meanwhile
				permits.answers(2)
			}
		}
		c.EndMove(slot, from, to)
		locks.more(1)
		permits.more(2)
	}
	locks.end("locks")
	permits.end("permits")
	t.Logf("%d moves, at most %d permits at once", moves, permits.most)
	if locks.overlaps.Load() != 0 {
		t.Errorf("%d overlaps", locks.overlaps.Load())
	}
	if permits.most < permits.limit {
		t.Errorf("at most %d permits of %d were held at once: too little load",
			permits.most, permits.limit)
	}
}
