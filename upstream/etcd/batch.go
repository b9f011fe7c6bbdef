package etcd

import (
	"context"
	"fmt"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	// etcd accepts 128 operations on a path of nested transactions unless --max-txn-ops is set.
	defaultMaxOps = 128
	// defaultMaxBytes limits a transaction, by our own estimate of its size. etcd accepts 1.5 MiB by
	// default.
	defaultMaxBytes = 1 << 20
	// maxRounds limits the rounds of requests in one Apply. Two are enough unless something changes
	// meanwhile.
	maxRounds = 12
)

// action is what a step does in the next transaction. Actions that write are in one transaction,
// and actions that only read are in another, which etcd carries out without its log.
type action uint8

const (
	actTake          action = iota // writes: takes the lock, or joins its queue
	actRemove                      // writes: removes our key
	actDowngrade                   // writes: makes our key a reader's
	actTakePermit                  // writes: takes a permit
	actQueuePermit                 // writes: queues for a permit
	actRequeuePermit               // writes: moves our key from the holders back to the queue
	actRemovePermit                // writes: removes our key from the holders or the queue
	// reads our keys; writes if requests in flight must be invalidated
	actResolvePermit
	actRenew         // reads the whole queue of our key, which holds the lock
	actCheck         // reads our key, which queues, and the one before it
	actPeek          // reads the holder of the lock
	actReadQueue     // reads the whole queue
	actReadSemaphore // reads how many hold permits, and the queue
	// reads our key, which queues for a permit, and the one before it
	actCheckPermit
	actConfirmPermit // reads our permit's key
	actRenewPermit   // reads our permit's key, and whether other hosts queue
	actRankPermit    // reads all holders
	actPeekPermit    // reads whether there are holders
)

// reads reports whether the action only reads.
func (a action) reads() bool { return a >= actRenew }

// needsSpace reports whether the action is kept apart from those that remove keys once the server's
// database is full, so that removals succeed.
func (a action) needsSpace() bool {
	return !a.reads() && a != actRemove && a != actDowngrade && a != actRemovePermit
}

// permit reports whether the action is about a semaphore.
func (a action) permit() bool { return a >= actTakePermit && !a.reads() || a >= actReadSemaphore }

// takes reports whether the step must not be carried out once it has been given up. That is true of
// steps that take something for a token. It is also true of steps that remove it on behalf of an
// acquire, because the same token is requested again if there is no answer.
func (st *step) takes() bool {
	switch st.action {
	case actTake, actTakePermit, actQueuePermit, actRequeuePermit:
		return true
	case actRemove, actRemovePermit:
		return st.kind == cache.OpTry || st.kind == cache.OpJoin
	}
	return false
}

// step is an op that has no answer yet.
type step struct {
	i          int // of the op
	kind       cache.OpKind
	action     action
	mode       cache.Mode // actRenew: the mode of the existing key; otherwise the mode of the op
	join       bool
	shortLived bool
	unresolved bool // an earlier request to take it was not answered
	again      bool // actRemove, actRemovePermit: an earlier request may have removed the key
	queued     bool // actTakePermit: our key queues
	err        error

	keyState
	put int64 // of a join: the revision at which it has put our key into a queue

	g *lockKey // of a semaphore's token; nil for a lock
}

// batch is one Apply.
type batch struct {
	s        *Store
	sess     *session
	ops      []upstream.Op
	results  []upstream.Result
	steps    []step     // without an answer yet
	separate bool       // no transaction may both take and remove
	permits  []*lockKey // tokens that are busy with this batch
	err      error
}

// part is one transaction.
type part struct {
	steps     []step
	at        []int // reads: where each step's begin among the operations
	group     int   // steps in each nested transaction; 0 when there are none
	maxOps    int64 // operations that the server was believed to accept
	maxBytes  int64 // bytes that it was believed to accept
	takes     bool
	about     *permitPart // semaphores; nil for locks
	moveFence bool
	fence     int64
	resp      *pb.TxnResponse
	mayBeDone bool // the server may have carried it out
	err       error
}

// Apply carries out one batch: in one round trip if no op meets another holder, else in two. All
// ops that write are one transaction. Those that read are one transaction for each 64. All are sent
// at the same time.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	b := &batch{s: s, sess: s.cur.Load(), ops: ops, results: results, steps: make([]step, 0, len(ops))}
	b.start()
	for round := 0; len(b.steps) > 0 && round < maxRounds; round++ {
		b.round(ctx)
	}
	for i := range b.steps {
		b.giveUp(&b.steps[i], fmt.Errorf("%w: something else changes all the time", ErrNoAnswer))
	}
	if len(b.permits) > 0 {
		b.forgetPermits()
	}
	return b.err
}

// round sends all requests at the same time, and reads the answers. Steps that need another request
// remain for the next round.
func (b *batch) round(ctx context.Context) {
	parts := b.parts()
	var wg sync.WaitGroup
	for i := 1; i < len(parts); i++ {
		wg.Go(func() { b.send(ctx, &parts[i]) })
	}
	b.send(ctx, &parts[0])
	wg.Wait()
	b.steps = b.steps[:0]
	t := &b.s.lockKeys
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range parts {
		b.readLocked(&parts[i])
	}
}

// parts divides the steps into transactions. Steps of locks and steps of permits are separate, and
// so are writes and reads. If no transaction may both take and remove, the writes that take are
// separate as well.
func (b *batch) parts() []part {
	var groups [6][]step
	for i := range b.steps {
		st, g := &b.steps[i], 0
		switch {
		case st.action.reads():
			g = 2
		case b.separate && st.action.needsSpace():
			g = 1
		}
		if st.action.permit() {
			g += 3
		}
		if groups[g] == nil {
			groups[g] = make([]step, 0, len(b.steps)-i)
		}
		groups[g] = append(groups[g], *st)
	}
	var parts []part
	for g, steps := range groups {
		for len(steps) > 0 {
			p := part{maxOps: b.s.maxOps.Load(), maxBytes: b.s.maxBytes.Load()}
			if g >= 3 {
				steps = p.fillPermits(steps)
			} else {
				steps = p.fillLocks(steps, g == 2)
			}
			parts = append(parts, p)
		}
	}
	return parts
}

// fillLocks moves steps into p as long as they fit, at least one, and returns the rest.
func (p *part) fillLocks(steps []step, reads bool) (rest []step) {
	maxOps := int(p.maxOps)
	room := maxOps - depth - 1 // one for the session's key
	groups := min(3, max(1, room/2))
	limit := groups * (room - groups)
	if reads {
		limit = max(1, maxOps/2)
	}
	n := fits(steps, limit, p.maxBytes)
	if !reads && n > room {
		p.group = room - groups
	}
	p.steps = steps[:n]
	return steps[n:]
}

// fits returns how many of w fit into one transaction.
func fits(w []step, limit int, bytes int64) int {
	for i := range w {
		bytes -= int64(8*len(w[i].key) + 4*len(w[i].dir) + len(w[i].pred) + 160)
		if i == limit || i > 0 && bytes < 0 {
			return i
		}
	}
	return len(w)
}

// send sends one transaction.
func (b *batch) send(ctx context.Context, p *part) {
	req, high := b.request(p), b.s.high.Load()
	p.resp, p.mayBeDone, p.err = request(ctx, b.s.client, b.s.client.kv.Txn, req)
	if p.err == nil {
		p.err = b.s.checkHistory(b.sess, p.resp, high)
	}
}

func (b *batch) request(p *part) *pb.TxnRequest {
	all := make([]*pb.RequestOp, 0, len(p.steps)+1)
	if b.reading(p) {
		if p.about != nil {
			return &pb.TxnRequest{Success: p.about.reads}
		}
		for i := range p.steps {
			p.at = append(p.at, len(all))
			all = append(all, p.steps[i].reads()...)
		}
		return &pb.TxnRequest{Success: all}
	}
	for i := range p.steps {
		p.takes = p.takes || p.steps[i].takes()
		p.moveFence = p.moveFence || p.steps[i].unresolved
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
	if p.moveFence { // last, so that the answers of the steps keep their positions
		req.Success = append(req.Success, txnOp(&pb.TxnRequest{
			Compare: []*pb.Compare{{
				Key: []byte(b.sess.key), Target: pb.Compare_CREATE, Result: pb.Compare_GREATER,
				TargetUnion: &pb.Compare_CreateRevision{CreateRevision: 0}}},
			Success: ops(putOp(b.sess.key, "", b.sess.lease))}))
	}
	if p.takes {
		p.fence = b.sess.fence.Load()
		req.Compare, req.Failure = one(ifWritten(b.sess.key, p.fence)), ops(getOp(b.sess.key))
	}
	return req
}

// start makes a step of each op, unless the answer is known.
func (b *batch) start() {
	n, noSession := b.s.liveSession()
	if noSession == nil {
		b.sess = n
	}
	t := &b.s.lockKeys
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range b.ops {
		op := &b.ops[i]
		st := step{i: i, kind: op.Kind, mode: op.Mode}
		if op.Kind < cache.OpTry || op.Kind > cache.OpPeek || op.Key == "" {
			b.fail(&st, cache.Refused, fmt.Errorf("%w: operation %d on %q",
				ErrRefused, op.Kind, op.Key))
			continue
		}
		if len(t.unresolved) > 0 {
			_, st.unresolved = t.unresolved[b.requestOf(&st)]
		}
		switch {
		case b.known(&st, noSession):
		case op.Mode == cache.Permit:
			if b.startPermitOpLocked(&st, op) {
				b.steps = append(b.steps, st)
			}
		default:
			b.startLockOpLocked(&st, op)
			b.steps = append(b.steps, st)
		}
	}
}

// known answers ops that need no request. Without a session nothing is taken, and under a session
// that has ended there is nothing.
func (b *batch) known(st *step, noSession error) bool {
	n := b.sess
	ended := n == nil || n.gone.Load()
	switch kind := st.kind; {
	case (kind == cache.OpTry || kind == cache.OpJoin) && noSession != nil:
		b.fail(st, cache.Refused, b.s.cfg.explain(ErrRefused, noSession))
	case kind == cache.OpWithdraw && ended:
		b.finish(st, cache.Done)
	case kind == cache.OpRelease && ended,
		(kind == cache.OpRenew || kind == cache.OpDowngrade) && (ended || n.lost.Load()):
		b.finish(st, cache.NotHeld)
	default:
		return false
	}
	return true
}
