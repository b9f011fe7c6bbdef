package sim

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// side is a host's table beside the model of Redis, step by step.
type side struct {
	t     *testing.T
	inst  uint32
	tab   *cache.Table
	ns    *cache.Namespace
	store *redisModel
	now   *int64
	out   cache.Effects
	ids   uint64
}

func newSide(t *testing.T, inst uint32, store *redisModel, now *int64) *side {
	return &side{t: t, inst: inst, tab: cache.New(cache.DefaultConfig()), store: store, now: now,
		ns: &cache.Namespace{Store: &cache.StoreTraits{Rebase: true, Queue: true}, MaxHandoffs: 8,
			MaxHandoffTime: 50 * time.Millisecond}}
}

// take is what the last event has made.
func (s *side) take() (ms []cache.Message, ops []cache.Op) {
	ms, ops = append(ms, s.out.Messages...), append(ops, s.out.Ops...)
	s.out.Reset()
	return ms, ops
}

func (s *side) acquire(who *cache.Session) []cache.Op {
	s.ids++
	s.tab.Acquire(&cache.Acquire{Re: cache.Request{Session: who, ID: s.ids}, NS: s.ns,
		Key: []byte("k"), Wait: cache.Forever, TTL: 3 * sec}, *s.now, &s.out)
	_, ops := s.take()
	return ops
}

// arrives has the store do op now.
func (s *side) arrives(op cache.Op) cache.Result {
	r := cache.Result{Left: -1}
	s.store.run(s.inst, []*cache.Op{&op}, []*cache.Result{&r})
	return r
}

func (s *side) answer(op cache.Op, r cache.Result, sent int64) ([]cache.Message, []cache.Op) {
	s.tab.Result(&op, &r, sent, *s.now, &s.out)
	return s.take()
}

// A host gives up an acquire, and its repetition gets the lease. The lease runs out, and another
// host holds the key. Then the first acquire reaches the store, and directly after it a renewal
// that was sent in time. A host that was frozen meanwhile must not continue with that lease,
// because its fences are too small. The formal model found this fault.
func TestALateAskAndARenewalReviveNoLease(t *testing.T) {
	now := 1000 * sec
	store := newRedisModel(func() int64 { return now / 1000 }, func(uint32, cache.HintKind, string) {})
	a, b := newSide(t, 1, store, &now), newSide(t, 2, store, &now)
	holder, next, other := cache.NewSession(1, 1), cache.NewSession(2, 1), cache.NewSession(3, 1)

	late := a.acquire(holder)[0] // a join that is on its way for long
	_, _ = a.answer(late, cache.Result{Left: -1}, now)
	now += sec / 10
	a.tab.Tick(now, 9, &a.out)
	_, ops := a.take()
	got, _ := a.answer(ops[0], a.arrives(ops[0]), now)
	if ops[0].Token != late.Token || len(got) != 1 || got[0].Kind != cache.MsgGranted {
		t.Fatalf("%+v %+v", ops, got)
	}
	fence, granted := got[0].Fence, now
	a.acquire(next)

	now += 2 * sec
	a.tab.RenewDue(ops[0].Ref, late.Token, now, &a.out)
	_, ops = a.take()
	renewal, sent := ops[0], now
	now = granted + 3*sec + 2*ms // a is frozen; its lease is over
	ops = b.acquire(other)
	got, _ = b.answer(ops[0], b.arrives(ops[0]), now)
	if len(got) != 1 || got[0].Kind != cache.MsgGranted || got[0].Fence <= fence {
		t.Fatalf("%+v", got)
	}
	passed := got[0].Fence
	b.tab.EndSession(other, 1, now, &b.out)
	_, ops = b.take()
	b.arrives(ops[0])

	if r := a.arrives(late); r.Status != cache.Granted {
		t.Fatalf("the late ask: %+v", r)
	}
	r := a.arrives(renewal)
	if r.Status != cache.Done {
		t.Fatalf("the renewal: %+v", r)
	}
	got, _ = a.answer(renewal, r, sent)
	a.tab.EndSession(holder, 1, now, &a.out)
	more, _ := a.take()
	for _, m := range append(got, more...) {
		if m.Kind == cache.MsgGranted && m.Fence <= passed {
			t.Errorf("fence %d is granted after %d", m.Fence, passed)
		}
	}
	if len(got) == 0 || got[0].Kind != cache.MsgLost {
		t.Errorf("the first holder hears %+v, and not that it has lost the key", got)
	}
}
