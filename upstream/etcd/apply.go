package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	maxTxnOps = 128     // what etcd takes on a path of nested transactions unless --max-txn-ops says otherwise
	maxBytes  = 1 << 20 // of a transaction, by our own estimate; etcd takes 1.5 MiB unless told otherwise
	maxRounds = 12      // of questions to etcd in one Apply: two do, unless something changes meanwhile
	depth     = 3       // the longest path of operations below the one for a key
)

// Apply carries out one batch: in one round trip when nothing stands in the way of
// any op, else in two. What writes is one transaction, and what reads one for each
// 64 ops, all sent at once.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	b := &batch{s: s, sess: s.cur.Load(), ops: ops, results: results, steps: make([]step, 0, len(ops))}
	b.plan()
	for round := 0; len(b.steps) > 0 && round < maxRounds; round++ {
		b.round(ctx)
	}
	for i := range b.steps {
		b.giveUp(&b.steps[i], fmt.Errorf("%w: something else changes all the time", ErrNoAnswer))
	}
	if len(b.permits) > 0 {
		b.endPermits()
	}
	return b.err
}

// fail gives a step its end. The first error is kept for logs; one that says that
// the store is down goes before others.
func (b *batch) fail(st *step, status cache.Status, err error) {
	b.results[st.i] = upstream.Result{Status: status, Left: -1, Err: err}
	if b.err == nil || errors.Is(err, upstream.ErrDown) && !errors.Is(b.err, upstream.ErrDown) {
		b.err = err
	}
}

func (b *batch) answer(st *step, status cache.Status) {
	b.results[st.i] = upstream.Result{Status: status, Left: -1}
}

// round asks what there is to ask, all at once, and reads the answers; what is
// left is for the next round.
func (b *batch) round(ctx context.Context) {
	parts := b.parts()
	var wg sync.WaitGroup
	for i := 1; i < len(parts); i++ {
		wg.Go(func() { b.ask(ctx, &parts[i]) })
	}
	b.ask(ctx, &parts[0])
	wg.Wait()
	b.steps = b.steps[:0]
	t := &b.s.lockKeys
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range parts {
		b.readLocked(&parts[i])
	}
}

// parts divides the steps into transactions.
func (b *batch) parts() []part {
	var takes, reads, permits []step
	writes := make([]step, 0, len(b.steps))
	for i := range b.steps {
		switch st := &b.steps[i]; {
		case st.plan.permit():
			permits = append(permits, *st)
		case st.plan == planTake && b.apart:
			takes = append(takes, *st)
		case st.plan <= planDowngrade:
			writes = append(writes, *st)
		default:
			reads = append(reads, *st)
		}
	}
	var parts []part
	limit := part{most: b.s.most.Load(), bytes: b.s.bytes.Load()}
	most := int(limit.most)
	room := most - depth - 1 // one for the session's key
	groups := min(3, max(1, room/2))
	for _, w := range [][]step{writes, takes} {
		for len(w) > 0 {
			n := fits(w, groups*(room-groups), limit.bytes)
			p := limit
			if p.steps = w[:n]; n > room {
				p.group = room - groups
			}
			parts, w = append(parts, p), w[n:]
		}
	}
	for len(reads) > 0 {
		n := fits(reads, max(1, most/2), limit.bytes)
		p := limit
		p.steps, reads = reads[:n], reads[n:]
		parts = append(parts, p)
	}
	if len(permits) > 0 {
		parts = b.permitParts(parts, permits, limit)
	}
	return parts
}

// fits is how many of w go into one transaction.
func fits(w []step, most int, bytes int64) int {
	for i := range w {
		if bytes -= int64(8*len(w[i].key) + 4*len(w[i].dir) + len(w[i].pred) + 160); i == most || i > 0 && bytes < 0 {
			return i
		}
	}
	return len(w)
}

// ask sends one transaction.
func (b *batch) ask(ctx context.Context, p *part) {
	req := b.request(p)
	p.asked, p.err = b.s.client.call(ctx, func(ctx context.Context) (err error) {
		p.resp, err = b.s.client.kv.Txn(ctx, req)
		return err
	})
	if p.err == nil {
		b.s.saw(p.resp.Header.Revision)
	}
}

func (b *batch) request(p *part) *pb.TxnRequest {
	all := make([]*pb.RequestOp, 0, len(p.steps)+1)
	if b.reading(p) {
		if p.about != nil {
			return &pb.TxnRequest{Success: p.permitReads()}
		}
		for i := range p.steps {
			p.at = append(p.at, len(all))
			all = append(all, p.steps[i].reads()...)
		}
		return &pb.TxnRequest{Success: all}
	}
	for i := range p.steps {
		p.takes = p.takes || p.steps[i].takes()
		p.bump = p.bump || p.steps[i].doubt
		all = append(all, p.steps[i].request(b.sess.lease))
	}
	if p.about != nil {
		all = p.counts(all)
	}
	req := &pb.TxnRequest{Success: all}
	if p.group > 0 {
		req.Success = nil
		for len(all) > 0 {
			n := min(p.group, len(all))
			req.Success, all = append(req.Success, txnOp(&pb.TxnRequest{Success: all[:n:n]})), all[n:]
		}
	}
	if p.bump { // last, so that it is in nobody's way when the answers are counted
		req.Success = append(req.Success, txnOp(&pb.TxnRequest{
			Compare: []*pb.Compare{{Key: []byte(b.sess.key), Target: pb.Compare_CREATE, Result: pb.Compare_GREATER,
				TargetUnion: &pb.Compare_CreateRevision{CreateRevision: 0}}},
			Success: ops(putOp(b.sess.key, "", b.sess.lease))}))
	}
	if p.takes {
		p.fence = b.sess.fence.Load()
		req.Compare, req.Failure = one(ifWritten(b.sess.key, p.fence)), ops(getOp(b.sess.key))
	}
	return req
}

// failedLocked reads the error of a transaction.
func (b *batch) failedLocked(p *part) {
	err := p.err
	switch {
	case is(err, rpctypes.ErrGRPCTooManyOps) && p.most > 2*depth:
		b.s.most.CompareAndSwap(p.most, max(2*depth, p.most/2))
		b.steps = append(b.steps, p.steps...)
		return
	case tooLarge(err) && len(p.steps) > 1:
		b.s.bytes.CompareAndSwap(p.bytes, p.bytes/2)
		b.steps = append(b.steps, p.steps...)
		return
	case is(err, rpctypes.ErrGRPCNoSpace) && !b.reading(p):
		b.noSpaceLocked(p)
		return
	}
	what, status := ErrNothingSent, cache.Refused
	switch {
	case refused(err):
		what = ErrRefused
	case p.asked:
		what, status = ErrNoAnswer, cache.Unknown
	}
	if b.reading(p) {
		status = cache.Refused // whatever has happened, nothing was changed
	}
	err = b.s.cfg.explain(what, err)
	for i := range p.steps {
		st := &p.steps[i]
		if st.plan.permit() {
			b.permitFailedLocked(st, status, err, p.fence)
			continue
		}
		if status == cache.Unknown && st.takes() {
			op := &b.ops[st.i]
			b.s.lockKeys.doubts[doubt{lock: op.Key, token: op.Token}] = p.fence
		}
		if st.plan == planEval && (st.kind == cache.OpTry || st.kind == cache.OpJoin) {
			b.fail(st, cache.Unknown, err) // its key may stand
			continue
		}
		b.fail(st, status, err)
	}
}

func (b *batch) reading(p *part) bool { return p.steps[0].plan >= planRenew }

// noSpaceLocked reads the answer that the server's database is full, which it gives
// before or after having done what was asked: both is seen by looking.
func (b *batch) noSpaceLocked(p *part) {
	b.apart = true
	err := b.s.cfg.explain(ErrRefused, p.err)
	for _, st := range p.steps {
		switch {
		case st.plan.permit():
			b.permitNoSpaceLocked(&st, err)
			continue
		case st.plan == planTake:
			st.plan, st.err = planEval, err
		case st.plan == planDowngrade || st.doubt: // these write, too
			b.fail(&st, cache.Unknown, err)
			continue
		default:
			st.again = true
		}
		b.steps = append(b.steps, st)
	}
}
