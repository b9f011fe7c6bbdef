package etcd

import (
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// places is a semaphore as one transaction saw it.
type places struct {
	held, queued int64
	order        []*mvccpb.KeyValue // those that queue, if they were asked for
	index        map[string]int     // in order
	fresh        int64              // tokens of this batch that come behind them
	done         map[*lockKey]bool  // tokens that this batch answers
}

// newPlacesLocked reads the answer to howMany or inOrder.
func newPlacesLocked(m *sem, r []*pb.ResponseOp) *places {
	x := &places{held: r[0].GetResponseRange().Count, queued: r[1].GetResponseRange().Count, order: kvs(r[1]), done: map[*lockKey]bool{}}
	slices.SortFunc(x.order, func(a, b *mvccpb.KeyValue) int {
		return cmp.Or(cmp.Compare(a.CreateRevision, b.CreateRevision), cmp.Compare(string(a.Key), string(b.Key)))
	})
	x.index = make(map[string]int, len(x.order))
	for i, kv := range x.order {
		x.index[string(kv.Key)] = i
	}
	m.seen = x.held + x.queued
	return x
}

// placedPermitLocked says whether a token may have a permit: when those who hold one
// and those who queue before it are fewer than there are.
func (b *batch) placedPermitLocked(st *step, x *places) {
	g, p, t := st.g, st.g.permit, &b.s.lockKeys
	x.done[g] = true
	before := x.queued
	at, ok := x.index[p.place]
	if ok {
		before = int64(at)
		if x.order[at].CreateRevision != g.rev || !p.queued {
			t.standsLocked(g, true, x.order[at].CreateRevision)
		}
	} else {
		t.standsLocked(g, false, 0)
		before += x.fresh
	}
	switch free := x.held+before < st.g.permit.limit; {
	case free && st.err == nil:
		if !ok {
			x.fresh++
		}
		b.next(st, planPut)
	case !st.join && ok:
		b.next(st, planEnd) // a try leaves nothing behind
	case free && ok, st.err == nil && ok: // it keeps its place
		b.keepsPlaceLocked(st, x, at)
	case st.err != nil:
		b.fail(st, cache.Refused, st.err)
	case !st.join:
		b.answer(st, cache.Busy)
	default:
		if x.fresh++; len(x.order) > 0 {
			last := x.order[len(x.order)-1]
			st.pred, st.predRev = string(last.Key), last.CreateRevision
		} else {
			st.pred, st.predRev = "", 0
		}
		b.next(st, planQueue)
	}
}

func (b *batch) keepsPlaceLocked(st *step, x *places, at int) {
	if !b.stamp(st, cache.Queued) {
		return
	}
	if at == 0 {
		b.s.lockKeys.waitsLocked(st.g, "", 0)
		return
	}
	b.s.lockKeys.waitsLocked(st.g, string(x.order[at-1].Key), x.order[at-1].CreateRevision)
}

// othersLocked has those of our tokens ask that may come in too: when several permits
// come free at once, one of them alone is woken by what it watches.
func (b *batch) othersLocked(m *sem, x *places) {
	for i := 0; i < len(x.order) && x.held+int64(i) < m.limit; i++ {
		if g := m.slotLocked(string(x.order[i].Key), m.queue); g != nil && g.permit.queued && !g.leaving && !x.done[g] {
			b.s.hintPermit(cache.HintAvailable, g.lock, g.token)
		}
	}
}

func (s *Store) hintPermit(k cache.HintKind, key string, token uint64) {
	s.sendHint(upstream.Hint{Kind: k, Mode: cache.Permit, Key: key, Token: token})
}
