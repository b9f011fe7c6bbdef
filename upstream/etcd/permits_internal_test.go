package etcd

import (
	"context"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// bare is a store with the helpers of these tests.
type bare struct {
	*testing.T
	*Store
}

func openBare(t *testing.T) *bare {
	t.Helper()
	srv := testserver.StartEtcd(t)
	cfg, err := Parse("etcd://" + srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &bare{t, s}
}

func permitOp(kind cache.OpKind, limit uint32, token uint64) upstream.Op {
	return upstream.Op{Kind: kind, Mode: cache.Permit, Limit: limit, Key: "k", Token: token,
		TTL: time.Minute}
}

func (s *bare) want(st cache.Status, op upstream.Op) cache.Result {
	s.Helper()
	res := make([]upstream.Result, 1)
	_ = s.Apply(s.T.Context(), []upstream.Op{op}, res)
	if res[0].Status != st {
		s.Fatalf("%v is %v (%v), not %v", op.Kind, res[0].Status, res[0].Err, st)
	}
	return res[0]
}

// stands returns the number of keys of a kind.
func (s *bare) stands(queue bool) int {
	s.Helper()
	held, q := s.permits("k")
	if queue {
		held = q
	}
	keys, err := s.read(s.T.Context(), held, dirEnd(held), 0)
	if err != nil {
		s.Fatal(err)
	}
	return len(keys)
}

// guess changes what the store knows of the semaphore, and of a token.
func (s *bare) guess(seen int64, token uint64, change func(*lockKey)) {
	s.lockKeys.mu.Lock()
	defer s.lockKeys.mu.Unlock()
	m := s.lockKeys.sems["k"]
	m.seen = seen
	if change != nil {
		change(m.tokens[token])
	}
}

func TestLatePermitRequestDoesNothing(t *testing.T) {
	t.Parallel()
	s := openBare(t)
	s.want(cache.Granted, permitOp(cache.OpTry, 50, 1000))
	token := uint64(0)
	for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
		for _, act := range []action{actTakePermit, actQueuePermit} {
			token++
			op := permitOp(kind, 50, token)
			s.guess(0, 0, nil) // so the store does not read first
			b := &batch{s: s.Store, sess: s.cur.Load(), ops: []upstream.Op{op},
				results: make([]upstream.Result, 1)}
			b.start()
			b.steps[0].action = act
			p := b.parts()[0]
			late := b.request(&p)
			b.forgetPermits()
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			s.lockKeys.mu.Lock() // as if the request had been sent without an answer
			g := s.lockKeys.sems["k"].addLocked(token)
			g.permit.uncertain = true
			s.lockKeys.unresolved[acquireID{g.lock, g.token, true}] = s.cur.Load().fence.Load()
			s.lockKeys.mu.Unlock()
			_ = s.Apply(gone, []upstream.Op{op}, make([]upstream.Result, 1))
			s.want(cache.Done, permitOp(cache.OpWithdraw, 0, token))
			r, err := s.client.kv.Txn(t.Context(), late)
			if err != nil || r.Succeeded {
				t.Fatalf("the late request succeeds: %v, %v", r, err)
			}
			if h, q := s.stands(false), s.stands(true); h != 1 || q != 0 {
				t.Errorf("%d hold and %d queue", h, q)
			}
			if len(s.lockKeys.unresolved) != 0 {
				t.Error("it is still in doubt")
			}
		}
	}
}

// A late removal does not affect the next token with the same slot.
func TestLateRemovalOfAPermitDoesNothing(t *testing.T) {
	t.Parallel()
	s := openBare(t)
	s.want(cache.Granted, permitOp(cache.OpTry, 2, 1))
	b := &batch{s: s.Store, sess: s.cur.Load(), ops: []upstream.Op{permitOp(cache.OpRelease, 0, 1)},
		results: make([]upstream.Result, 1)}
	b.start()
	p := b.parts()[0]
	late := b.request(&p)
	b.forgetPermits()
	s.want(cache.Done, permitOp(cache.OpRelease, 0, 1))
	s.want(cache.Granted, permitOp(cache.OpTry, 2, 2))
	s.lockKeys.mu.Lock()
	slot := s.lockKeys.sems["k"].tokens[2].permit.slot
	s.lockKeys.mu.Unlock()
	if slot != 0 {
		t.Fatalf("slot %d", slot)
	}
	if _, err := s.client.kv.Txn(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	s.want(cache.Done, permitOp(cache.OpRenew, 0, 2))
}

// A token that other hosts were faster than holds nothing. A try leaves, and a join queues.
func TestPutThatComesTooLate(t *testing.T) {
	t.Parallel()
	s := openBare(t)
	s.want(cache.Granted, permitOp(cache.OpTry, 2, 1))
	s.want(cache.Granted, permitOp(cache.OpTry, 2, 2))
	s.guess(0, 0, nil)
	s.want(cache.Busy, permitOp(cache.OpTry, 2, 3))
	if h, q := s.stands(false), s.stands(true); h != 2 || q != 0 {
		t.Errorf("%d hold and %d queue", h, q)
	}
	s.guess(0, 0, nil)
	s.want(cache.Queued, permitOp(cache.OpJoin, 2, 4))
	s.guess(0, 0, nil)
	s.want(cache.Queued, permitOp(cache.OpJoin, 2, 5))
	s.guess(0, 0, nil)
	s.want(cache.Busy, permitOp(cache.OpTry, 3, 6)) // queued tokens count
	if h, q := s.stands(false), s.stands(true); h != 2 || q != 2 {
		t.Errorf("%d hold and %d queue", h, q)
	}
	s.want(cache.Done, permitOp(cache.OpRelease, 0, 1))
	s.want(cache.Queued, permitOp(cache.OpJoin, 2, 5))
	s.want(cache.Granted, permitOp(cache.OpJoin, 2, 4))
	// The first tokens of a full batch get permits.
	s.want(cache.Done, permitOp(cache.OpWithdraw, 0, 5))
	s.guess(0, 0, nil)
	var ops []upstream.Op
	for i := range 20 {
		ops = append(ops, permitOp(cache.OpTry, 12, uint64(10+i)))
	}
	res, granted := make([]upstream.Result, len(ops)), 0
	_ = s.Apply(t.Context(), ops, res)
	for i, r := range res {
		if r.Status == cache.Granted {
			granted++
		} else if r.Status != cache.Busy {
			t.Errorf("number %d is %v (%v)", i, r.Status, r.Err)
		}
	}
	if h := s.stands(false); granted != 10 || h != 12 {
		t.Errorf("%d are granted, %d stand", granted, h)
	}
}

// The order of keys decides whether a key of unknown rank holds a permit.
func TestPermitOfAnUnknownRank(t *testing.T) {
	t.Parallel()
	s := openBare(t)
	unsure := func(g *lockKey) { g.held, g.permit.uncertain = false, true }
	base := s.want(cache.Granted, permitOp(cache.OpTry, 2, 1)).Base
	s.want(cache.Granted, permitOp(cache.OpTry, 2, 2))
	s.guess(unseen, 1, func(g *lockKey) { s.lockKeys.notHeldLocked(g); unsure(g) })
	s.want(cache.Done, permitOp(cache.OpRenew, 0, 1))
	s.guess(unseen, 1, func(g *lockKey) { s.lockKeys.notHeldLocked(g); unsure(g) })
	if r := s.want(cache.Granted, permitOp(cache.OpTry, 2, 1)); r.Base != base {
		t.Errorf("base %d after %d", r.Base, base)
	}
	// There is one key too many, as after a removal without an answer.
	for token, kind := range map[uint64]cache.OpKind{3: cache.OpTry, 4: cache.OpJoin} {
		s.lockKeys.mu.Lock()
		g := s.lockKeys.sems["k"].addLocked(token)
		g.permit.uncertain, g.permit.limit = true, 2
		s.lockKeys.mu.Unlock()
		if _, err := s.client.kv.Put(t.Context(), &pb.PutRequest{Key: []byte(g.key),
			Value: []byte(g.permit.value), Lease: g.sess.lease}); err != nil {
			t.Fatal(err)
		}
		s.want(cache.NotHeld, permitOp(cache.OpRenew, 0, token))
		want := cache.Busy
		if kind == cache.OpJoin {
			want = cache.Queued
		}
		s.want(want, permitOp(kind, 2, token))
	}
	if h, q := s.stands(false), s.stands(true); h != 2 || q != 1 {
		t.Errorf("%d hold and %d queue", h, q)
	}
}

func TestPermitBasesOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	s := openBare(t)
	op := permitOp(cache.OpTry, 1, 1)
	op.Floor = 1 << 40
	s.want(cache.Refused, op)
	if h := s.stands(false); h != 0 || len(s.lockKeys.sems) != 0 {
		t.Errorf("%d stand", h)
	}
	g := (&sem{key: "k", sess: s.cur.Load(), tokens: map[uint64]*lockKey{}}).addLocked(1)
	b := &batch{s: s.Store, sess: s.cur.Load(), ops: []upstream.Op{op},
		results: make([]upstream.Result, 1)}
	b.grantPermitLocked(&step{g: g}, int64(cache.MaxBase>>slotBits)+1, true)
	if len(b.steps) != 1 || b.steps[0].action != actRemovePermit {
		t.Error("a base of 2^53 is granted")
	}
}
