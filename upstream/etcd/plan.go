package etcd

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// plan is what is asked of etcd for an op. What writes goes through one
// transaction, what only reads through another: that one etcd carries out without
// its log.
type plan uint8

const (
	planTake      plan = iota // write: take the lock, or join its queue
	planRemove                // write: remove our key
	planDowngrade             // write: make our key a reader's
	planPut                   // write: take a permit
	planQueue                 // write: queue for a permit
	planBack                  // write: go from among the holders back to the queue
	planEnd                   // write: remove our key, whichever stands
	planSettle                // write, as it may have to end what is on its way: our keys
	planRenew                 // read: the whole queue, our key's, which holds
	planCheck                 // read: our key, which queues, and the one before it
	planPeek                  // read: who holds the lock
	planEval                  // read: the whole queue
	planPlace                 // read: how many hold permits, and who queues
	planStill                 // read: our key, which queues for a permit, and the one before it
	planHeld                  // read: our permit's key
	planKeep                  // read: the same, and whether others queue
	planRank                  // read: all holders
	planAny                   // read: whether there are any
)

// permit says whether it is about a semaphore.
func (p plan) permit() bool { return p >= planPut && p < planRenew || p >= planPlace }

// takes says whether it must not happen once it has been given up: what gets something for a token; and what removes
// it on behalf of an acquire, because the same token is asked for again if there is no answer.
func (st *step) takes() bool {
	switch st.plan {
	case planTake, planPut, planQueue, planBack:
		return true
	case planRemove, planEnd:
		return st.kind == cache.OpTry || st.kind == cache.OpJoin
	}
	return false
}

// step is an op on its way.
type step struct {
	i      int // of the op
	kind   cache.OpKind
	plan   plan
	mode   cache.Mode // planRenew: of the key that stands; else of the op
	join   bool
	brief  bool
	doubt  bool // an earlier request to take it was not answered
	again  bool // planRemove: an earlier one may have done it
	queued bool // planPut: our key queues
	err    error

	dir, key string
	rev      int64 // create revision of our key, if known
	put      int64 // of a join: the revision at which it has put our key, in a queue
	pred     string
	predRev  int64
	predMod  int64

	g *lockKey // of a semaphore's token; nil for a lock
}

// batch is one Apply.
type batch struct {
	s       *Store
	sess    *session
	ops     []upstream.Op
	results []upstream.Result
	steps   []step     // what has no answer yet
	apart   bool       // no transaction may both take and remove
	permits []*lockKey // tokens that are busy with this batch
	err     error
}

// part is one transaction.
type part struct {
	steps []step
	at    []int // planned reads: where each step's begin among the operations
	group int   // steps in each nested transaction; 0 when there are none
	most  int64 // operations that the server was believed to take
	bytes int64 // … and bytes
	takes bool
	about *permitPart // semaphores; nil for locks
	bump  bool
	fence int64
	resp  *pb.TxnResponse
	asked bool // it may have happened
	err   error
}

// plan makes a step of each op, unless its answer is known.
func (b *batch) plan() {
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
			b.fail(&st, cache.Refused, fmt.Errorf("%w: operation %d on %q", ErrRefused, op.Kind, op.Key))
			continue
		}
		switch {
		case b.known(&st, noSession):
		case op.Mode == cache.Permit:
			if b.planPermitLocked(&st, op) {
				b.steps = append(b.steps, st)
			}
		default:
			b.planLocked(&st, op)
			b.steps = append(b.steps, st)
		}
	}
}

// known answers what needs no question: nothing is taken without a session, and
// nothing stands under one that has ended.
func (b *batch) known(st *step, noSession error) bool {
	n := b.sess
	ended := n == nil || n.gone.Load()
	switch st.kind {
	case cache.OpTry, cache.OpJoin:
		if noSession == nil {
			return false
		}
		b.fail(st, cache.Refused, b.s.cfg.explain(ErrRefused, noSession))
	case cache.OpRelease:
		if !ended {
			return false
		}
		b.answer(st, cache.NotHeld)
	case cache.OpWithdraw:
		if !ended {
			return false
		}
		b.answer(st, cache.Done)
	case cache.OpRenew, cache.OpDowngrade:
		if !ended && !n.lost.Load() {
			return false
		}
		b.answer(st, cache.NotHeld)
	default:
		return false
	}
	return true
}

// planLocked is called with lockKeys.mu held.
func (b *batch) planLocked(st *step, op *upstream.Op) {
	st.dir = b.s.dir(op.Key)
	if op.Kind == cache.OpPeek {
		st.plan = planPeek
		return
	}
	t := &b.s.lockKeys
	g := t.findLocked(b.sess, op.Key, op.Token)
	if g != nil {
		st.key, st.rev = g.key, g.rev
	} else {
		st.key = key(st.dir, b.sess.lease, op.Token)
	}
	if len(t.doubts) > 0 {
		_, st.doubt = t.doubts[doubt{lock: op.Key, token: op.Token}]
	}
	st.join, st.brief = op.Kind == cache.OpJoin, op.ShortLived
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		switch {
		case g == nil || st.doubt:
		case g.held || !st.join:
			st.plan = planEval
		default:
			st.plan, st.pred, st.predRev, st.predMod = planCheck, g.pred, g.predRev, g.predMod
		}
	case cache.OpRelease, cache.OpWithdraw:
		st.plan = planRemove
		if g != nil {
			g.leaving = true
		}
	case cache.OpRenew:
		if st.plan = planEval; g != nil && g.held {
			st.plan, st.mode = planRenew, g.mode
		}
	case cache.OpDowngrade:
		if st.plan = planEval; g != nil && g.held {
			st.plan = planDowngrade
		}
	}
}
