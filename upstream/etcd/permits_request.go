package etcd

import (
	"fmt"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// startPermitOpLocked chooses the first action of an op about a semaphore, or answers the op. It
// returns whether there is an action. The functions in this file whose names end in Locked are
// called with lockKeys.mu held.
func (b *batch) startPermitOpLocked(st *step, op *upstream.Op) (ask bool) {
	switch {
	case op.Kind == cache.OpPeek:
		st.action = actPeekPermit
		st.dir, _ = b.s.permits(op.Key)
		return true
	case op.Kind == cache.OpTry || op.Kind == cache.OpJoin:
		return b.startAcquirePermitLocked(st, op)
	case op.Kind == cache.OpDowngrade:
		b.fail(st, cache.Refused, fmt.Errorf("%w: a permit cannot be downgraded", ErrRefused))
		return false
	}
	// A token that is not in the table has no key, because no other process uses the session.
	var g *lockKey
	if m := b.s.lockKeys.sems[op.Key]; m != nil && m.sess == b.sess {
		g = m.tokens[op.Token]
	}
	switch {
	case g == nil && op.Kind == cache.OpWithdraw:
		b.finish(st, cache.Done)
		return false
	case g == nil:
		b.finish(st, cache.NotHeld)
		return false
	}
	b.setPermitLocked(st, g)
	switch {
	case op.Kind != cache.OpRenew:
		g.leaving = true
		st.action = actRemovePermit
	case g.held:
		st.action = actRenewPermit
	case g.permit.uncertain:
		st.action = actResolvePermit
	default:
		b.finish(st, cache.NotHeld)
		return false
	}
	return true
}

func (b *batch) startAcquirePermitLocked(st *step, op *upstream.Op) (ask bool) {
	if op.Limit == 0 {
		b.fail(st, cache.Refused, fmt.Errorf("%w: a semaphore of %q without permits",
			ErrRefused, op.Key))
		return false
	}
	m := b.s.semLocked(b.sess, op.Key)
	if m == nil {
		b.fail(st, cache.Refused, b.s.cfg.explain(ErrRefused, b.s.noSession()))
		return false
	}
	g := m.tokens[op.Token]
	if g == nil {
		g = m.addLocked(op.Token)
	}
	m.limit, g.permit.limit = int64(op.Limit), int64(op.Limit)
	b.setPermitLocked(st, g)
	st.join = op.Kind == cache.OpJoin
	switch {
	case g.permit.uncertain:
		st.action = actResolvePermit
	case g.held:
		st.action = actConfirmPermit
	case st.queued && st.join && g.pred != "":
		st.action = actCheckPermit
	case !st.queued && m.seen+1+m.limit/8 <= m.limit: // there was plenty of room
		m.seen++
		st.action = actTakePermit
	default:
		st.action = actReadSemaphore
	}
	return true
}

// setPermitLocked makes st a step about g.
func (b *batch) setPermitLocked(st *step, g *lockKey) {
	st.g, st.keyState, st.queued = g, g.keyState, g.permit.queued
	if st.kind != cache.OpRenew {
		g.permit.busy = true
		b.permits = append(b.permits, g)
	}
}

// forgetPermits forgets the tokens of this batch that have no key and no request in flight.
func (b *batch) forgetPermits() {
	t := &b.s.lockKeys
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range b.permits {
		g.permit.busy = false
		if !g.held && !g.permit.queued && !g.permit.uncertain {
			t.forgetPermitLocked(g)
		}
	}
}

// giveUp ends a step that has used up its rounds.
func (b *batch) giveUp(st *step, err error) {
	if st.g == nil {
		b.fail(st, cache.Unknown, err)
		return
	}
	b.s.lockKeys.mu.Lock()
	defer b.s.lockKeys.mu.Unlock()
	b.stepFailedLocked(st, cache.Unknown, err, b.sess.fence.Load())
}

// permitPart is the part of a transaction about semaphores that its steps share.
type permitPart struct {
	counts map[*sem]int    // actTakePermit: where the answers about a semaphore begin
	shared map[semRead]int // reads: likewise
	reads  []*pb.RequestOp // all of them
}

// semRead is a set of reads of one semaphore, which steps share.
type semRead struct {
	sem *sem
	set readSet
}

type readSet uint8

const (
	// readCounts reads how many tokens hold permits, and how many queue or, if needed, their keys.
	readCounts  readSet = iota
	readOthers          // how many hold permits, and whether other hosts queue
	readHolders         // how many hold permits
)

// reads returns the operations of a set.
func (m *sem) reads(set readSet) []*pb.RequestOp {
	all := ops(countDir(m.held))
	switch set {
	case readCounts:
		all = append(all, countDir(m.queue))
	case readOthers: // a key before all of ours, or behind
		before := namesOp(m.queue, m.queue+m.own, 1)
		all = append(all, before, namesOp(m.ownEnd(m.queue), dirEnd(m.queue), 1))
	}
	return all
}

// ownEnd is the first key after ours in dir.
func (m *sem) ownEnd(dir string) string { return clientv3.GetPrefixRangeEnd(dir + m.own) }

// permitRequest returns the part of a transaction that carries out st. It removes a key only if the
// key has the token's value, because another token's key may have the name by now.
func (st *step) permitRequest(lease int64) *pb.TxnRequest {
	p := st.g.permit
	switch st.action {
	case actTakePermit:
		put := putOp(st.key, p.value, lease)
		t := &pb.TxnRequest{Compare: one(ifCreated(st.key, 0)), Success: ops(put)}
		if st.queued {
			t.Success = append(t.Success, deleteOp(p.queueKey))
		}
		return t
	case actQueuePermit:
		return &pb.TxnRequest{Compare: []*pb.Compare{ifCreated(p.queueKey, 0), ifCreated(st.key, 0)},
			Success: ops(putOp(p.queueKey, p.value, lease))}
	case actRequeuePermit:
		return &pb.TxnRequest{Compare: one(ifValue(st.key, p.value)),
			Success: ops(deleteOp(st.key), putOp(p.queueKey, p.value, lease))}
	case actRemovePermit:
		queued := &pb.TxnRequest{Compare: one(ifValue(p.queueKey, p.value)),
			Success: ops(deleteOp(p.queueKey))}
		return &pb.TxnRequest{Compare: one(ifValue(st.key, p.value)), Success: ops(deleteOp(st.key)),
			Failure: ops(txnOp(queued))}
	default: // actResolvePermit
		return &pb.TxnRequest{Success: ops(valueOp(st.key), valueOp(p.queueKey))}
	}
}

// fillPermits moves steps into p as long as they fit, at least one, and returns the rest. Permits
// of one semaphore that are created together must differ in their bases.
func (p *part) fillPermits(w []step) (rest []step) {
	p.about = &permitPart{counts: map[*sem]int{}, shared: map[semRead]int{}}
	type birth struct {
		sem  *sem
		slot int
	}
	born := map[birth]bool{}
	room, bytes := int(p.maxOps)-depth-1, p.maxBytes
	for _, st := range w {
		use, m, size := 1, (*sem)(nil), int64(8*len(st.key)+6*len(st.dir)+400)
		if st.g != nil {
			m = st.g.permit.sem
		}
		birth := birth{m, 0}
		switch {
		case st.action == actTakePermit:
			birth.slot = st.g.permit.slot & (1<<slotBits - 1)
			if _, counted := p.about.counts[m]; !counted {
				use += 2
			}
		case st.action.reads():
			use = 5 // the most that one step needs
		}
		full := len(p.steps) > 0 && (room < use || bytes < size)
		if full || st.action == actTakePermit && born[birth] {
			rest = append(rest, st)
			continue
		}
		if st.action == actTakePermit {
			born[birth], p.about.counts[m] = true, 0
		}
		if st.action.reads() {
			use = p.addReads(&st)
		}
		room, bytes, p.steps = room-use, bytes-size, append(p.steps, st)
	}
	return rest
}

// addReads adds the reads of st: those that it shares with other steps, and its own. It returns
// their number.
func (p *part) addReads(st *step) int {
	a := p.about
	before := len(a.reads)
	var own []*pb.RequestOp
	switch st.action {
	case actReadSemaphore:
		if at := a.share(st, readCounts); st.join || st.queued {
			a.reads[at+1] = listDir(st.g.permit.sem.queue)
		}
	case actRenewPermit:
		a.share(st, readOthers)
		own = ops(getOp(st.key))
	case actCheckPermit:
		a.share(st, readHolders)
		own = ops(getOp(st.g.permit.queueKey), getOp(st.pred))
	case actConfirmPermit:
		own = ops(getOp(st.key))
	case actRankPermit:
		own = ops(listDir(st.dir))
	case actPeekPermit:
		own = ops(namesOp(st.dir, dirEnd(st.dir), 1))
	}
	p.at = append(p.at, len(a.reads))
	a.reads = append(a.reads, own...)
	return len(a.reads) - before
}

// share adds the reads of a set, unless another step has done so, and returns where they begin.
func (a *permitPart) share(st *step, set readSet) int {
	q := semRead{st.g.permit.sem, set}
	at, asked := a.shared[q]
	if !asked {
		at = len(a.reads)
		a.shared[q] = at
		a.reads = append(a.reads, q.sem.reads(set)...)
	}
	return at
}

// counts adds reads of how many hold permits and queue, after the writes of all steps. From them
// follows how many there were before each step.
func (p *part) counts(all []*pb.RequestOp) []*pb.RequestOp {
	for m := range p.about.counts {
		p.about.counts[m] = len(all)
		all = append(all, countDir(m.held), countDir(m.queue))
	}
	return all
}
