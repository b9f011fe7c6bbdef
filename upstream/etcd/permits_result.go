package etcd

import (
	"cmp"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
)

// tally has the effect of one transaction on a semaphore, and the counts after it.
type tally struct {
	puts         int64 // holders' keys that the transaction created
	at           int64 // how many of puts have been answered
	held, queued int64 // of all hosts, without those that joined in this transaction
	joined       []*step
}

// tallyLocked adds up what a transaction did. The functions in this file whose names end in Locked
// are called with lockKeys.mu held.
func (b *batch) tallyLocked(p *part) map[*sem]*tally {
	r, tallies := p.resp.Responses, map[*sem]*tally{}
	for i := range p.steps {
		st := &p.steps[i]
		t := tallies[st.g.permit.sem]
		if t == nil {
			t = &tally{}
			tallies[st.g.permit.sem] = t
		}
		switch did := nested(r[i]).Succeeded; {
		case did && st.action == actTakePermit:
			t.puts++
		case did && st.action == actQueuePermit:
			t.joined = append(t.joined, st)
		}
	}
	for m, at := range p.about.counts {
		t := tallies[m]
		t.held, t.queued = count(r[at]), count(r[at+1])
		m.seen = t.held + t.queued
		t.queued -= int64(len(t.joined))
	}
	return tallies
}

// wrotePermitsLocked reads the answer to a transaction that writes.
//
// A holder's key holds a permit if, when it was created, fewer holders' keys than the limit were
// before it. Keys are ordered by revision and, within a transaction, by its steps. So the number of
// permits that are held never exceeds the limit: of the keys that hold a permit and still exist,
// the newest had all others before it.
func (b *batch) wrotePermitsLocked(p *part) {
	rev, tallies := p.resp.Header.Revision, b.tallyLocked(p)
	for _, t := range tallies {
		b.queuedTogetherLocked(t.joined, rev)
	}
	for i := range p.steps {
		st, did := &p.steps[i], nested(p.resp.Responses[i])
		t := tallies[st.g.permit.sem]
		switch st.action {
		case actTakePermit:
			if did.Succeeded {
				t.at++
			}
			b.permitTakenLocked(st, did.Succeeded, t.held-t.puts+t.at, t.queued, rev)
		case actQueuePermit:
			if !did.Succeeded {
				st.g.permit.uncertain = true // the key existed already
				b.next(st, actResolvePermit)
			}
		case actRequeuePermit:
			if !did.Succeeded {
				b.next(st, actResolvePermit)
				continue
			}
			b.s.lockKeys.setQueuedLocked(st.g, true, rev)
			b.next(st, actReadSemaphore)
		case actRemovePermit:
			b.permitRemovedLocked(st, did.Succeeded || nested(did.Responses[0]).Succeeded)
		case actResolvePermit:
			b.resolvedLocked(st, kvs(did.Responses[0]), kvs(did.Responses[1]))
		}
	}
}

// permitTakenLocked answers a request for a permit. at is the position among the holders, and
// queued is how many queue.
func (b *batch) permitTakenLocked(st *step, did bool, at, queued, rev int64) {
	g := st.g
	switch {
	case !did: // the key existed already
		g.permit.uncertain = true
		b.next(st, actResolvePermit)
		return
	case at <= st.g.permit.limit && (st.queued || at+queued <= st.g.permit.limit):
		b.grantPermitLocked(st, rev, true)
		return
	}
	// Other hosts were faster.
	g.permit.queued, g.permit.uncertain = false, true
	if st.join {
		b.next(st, actRequeuePermit)
	} else {
		b.next(st, actRemovePermit)
	}
}

// grantPermitLocked answers that the token has a permit. fresh says that this op has made the key.
func (b *batch) grantPermitLocked(st *step, rev int64, fresh bool) {
	g, op := st.g, &b.ops[st.i]
	base := permitBase(rev, g.permit.slot)
	g.permit.uncertain = true
	if uint64(rev) > cache.MaxBase>>slotBits || fresh && base <= op.Floor {
		st.err = fmt.Errorf("%w: its revision %d makes no fence above %d at %s (raise fence_epoch)",
			ErrRefused, rev, op.Floor, b.s.cfg.addr())
		b.next(st, actRemovePermit)
		return
	}
	if b.stamp(st, cache.Granted) {
		b.results[st.i].Base = base
		b.s.lockKeys.setHeldLocked(g, rev, b.s.clock())
	}
}

// queuedTogetherLocked answers the steps whose keys one transaction put into a queue. These keys
// have the same create revision, and their names decide the order.
func (b *batch) queuedTogetherLocked(steps []*step, rev int64) {
	slices.SortFunc(steps, func(x, y *step) int {
		return cmp.Compare(x.g.permit.queueKey, y.g.permit.queueKey)
	})
	for i, st := range steps {
		b.s.lockKeys.setQueuedLocked(st.g, true, rev)
		pred, predRev := st.pred, st.predRev
		if i > 0 {
			pred, predRev = steps[i-1].g.permit.queueKey, rev
		}
		if b.stamp(st, cache.Queued) {
			b.s.lockKeys.setWaitingLocked(st.g, pred, predRev)
		}
	}
}

// permitRemovedLocked answers a step whose key has been removed. was says whether the key existed.
func (b *batch) permitRemovedLocked(st *step, was bool) {
	if m := st.g.permit.sem; st.g.held && m.seen < unseen {
		m.seen = max(0, m.seen-1)
	}
	b.s.lockKeys.setQueuedLocked(st.g, false, 0)
	b.removed(st, was)
}

// resolvedLocked continues with a token whose keys are now known.
func (b *batch) resolvedLocked(st *step, held, queued []*mvccpb.KeyValue) {
	g, t := st.g, &b.s.lockKeys
	st.unresolved = false // requests in flight have been invalidated
	ours := func(k []*mvccpb.KeyValue) bool {
		return len(k) > 0 && string(k[0].Value) == g.permit.value
	}
	switch {
	case ours(held):
		b.next(st, actRankPermit)
		return
	case ours(queued):
		t.setQueuedLocked(g, true, queued[0].CreateRevision)
	default:
		t.setQueuedLocked(g, false, 0)
	}
	switch {
	case st.kind != cache.OpRenew:
		b.next(st, actReadSemaphore)
	default:
		b.finish(st, cache.NotHeld)
	}
}

// readPermitsLocked reads the answer to a transaction that only reads.
func (b *batch) readPermitsLocked(p *part) {
	seen := map[*sem]*snapshot{}
	for i := range p.steps {
		st := &p.steps[i]
		if st.action != actReadSemaphore {
			b.readPermitStepLocked(p, st, p.resp.Responses[p.at[i]:])
			continue
		}
		m := st.g.permit.sem
		if seen[m] == nil {
			seen[m] = newSnapshotLocked(m, p.shared(m, readCounts))
		}
		b.placePermitLocked(st, seen[m])
	}
	for m, x := range seen {
		b.hintOthersLocked(m, x)
	}
}

// shared returns the answers to the shared reads of a semaphore.
func (p *part) shared(m *sem, set readSet) []*pb.ResponseOp {
	return p.resp.Responses[p.about.shared[semRead{m, set}]:]
}

// readPermitStepLocked reads the answer to a step that only reads; r begins with its own.
func (b *batch) readPermitStepLocked(p *part, st *step, r []*pb.ResponseOp) {
	switch st.action {
	case actPeekPermit:
		if len(kvs(r[0])) == 0 {
			b.finish(st, cache.Done)
			return
		}
		b.finish(st, cache.Busy)
		b.results[st.i].Mode = cache.Permit
	case actConfirmPermit:
		if isThat(kvs(r[0]), st.rev) {
			b.grantPermitLocked(st, st.rev, false)
			return
		}
		st.g.permit.uncertain = true
		b.next(st, actResolvePermit)
	case actRenewPermit:
		b.keptLocked(st, kvs(r[0]), p.shared(st.g.permit.sem, readOthers))
	case actCheckPermit:
		full := count(p.shared(st.g.permit.sem, readHolders)[0]) >= st.g.permit.limit
		if full && isThat(kvs(r[0]), st.rev) && isThat(kvs(r[1]), st.predRev) {
			b.stamp(st, cache.Queued)
			return
		}
		b.next(st, actReadSemaphore)
	case actRankPermit:
		b.rankedLocked(st, kvs(r[0]))
	}
}

// keptLocked answers the renewal of a permit. about answers readOthers.
func (b *batch) keptLocked(st *step, own []*mvccpb.KeyValue, about []*pb.ResponseOp) {
	if !isThat(own, st.rev) {
		b.s.lockKeys.forgetPermitLocked(st.g)
		b.finish(st, cache.NotHeld)
		return
	}
	b.done(st, permitContended(st.g.permit.limit, about))
}

// permitContended reports whether all permits are taken and other hosts queue. r answers
// readOthers.
func permitContended(limit int64, r []*pb.ResponseOp) bool {
	return count(r[0]) >= limit && len(kvs(r[1]))+len(kvs(r[2])) > 0
}

// rankedLocked decides whether a key among the holders holds a permit if that is not known. Keys
// that were created together with it count as before it.
func (b *batch) rankedLocked(st *step, holders []*mvccpb.KeyValue) {
	at := slices.IndexFunc(holders, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == st.key })
	if at < 0 {
		b.next(st, actResolvePermit)
		return
	}
	rev, rank := holders[at].CreateRevision, int64(0)
	for _, kv := range holders {
		if kv.CreateRevision <= rev {
			rank++
		}
	}
	switch counts := rank <= st.g.permit.limit; {
	case st.kind == cache.OpRenew && !counts:
		b.finish(st, cache.NotHeld)
	case st.kind == cache.OpRenew:
		if b.stamp(st, cache.Done) {
			b.s.lockKeys.setHeldLocked(st.g, rev, b.s.clock())
		}
	case counts:
		b.grantPermitLocked(st, rev, false)
	case st.join && st.err == nil:
		b.next(st, actRequeuePermit)
	default:
		b.next(st, actRemovePermit)
	}
}

// snapshot is a semaphore as one transaction saw it.
type snapshot struct {
	held, queued int64
	order        []*mvccpb.KeyValue // the keys in the queue, if they were read
	index        map[string]int     // the position of a key in order
	fresh        int64              // tokens of this batch that come after them
	done         map[*lockKey]bool  // tokens that this batch answers
}

// newSnapshotLocked reads the answer to readCounts.
func newSnapshotLocked(m *sem, r []*pb.ResponseOp) *snapshot {
	x := &snapshot{held: count(r[0]), queued: count(r[1]), order: kvs(r[1]), done: map[*lockKey]bool{}}
	slices.SortFunc(x.order, byAge)
	x.index = make(map[string]int, len(x.order))
	for i, kv := range x.order {
		x.index[string(kv.Key)] = i
	}
	m.seen = x.held + x.queued
	return x
}

// placePermitLocked decides whether a token may have a permit: the holders and those that queue
// before it must be fewer than the limit.
func (b *batch) placePermitLocked(st *step, x *snapshot) {
	g, p, t := st.g, st.g.permit, &b.s.lockKeys
	x.done[g] = true
	before := x.queued
	at, ok := x.index[p.queueKey]
	if ok {
		before = int64(at)
		if x.order[at].CreateRevision != g.rev || !p.queued {
			t.setQueuedLocked(g, true, x.order[at].CreateRevision)
		}
	} else {
		t.setQueuedLocked(g, false, 0)
		before += x.fresh
	}
	switch free := x.held+before < st.g.permit.limit; {
	case free && st.err == nil:
		if !ok {
			x.fresh++
		}
		b.next(st, actTakePermit)
	case !st.join && ok:
		b.next(st, actRemovePermit) // a try leaves nothing behind
	case free && ok, st.err == nil && ok: // it keeps its place
		b.stayQueuedLocked(st, x, at)
	case st.err != nil:
		b.fail(st, cache.Refused, st.err)
	case !st.join:
		b.finish(st, cache.Busy)
	default:
		if x.fresh++; len(x.order) > 0 {
			last := x.order[len(x.order)-1]
			st.pred, st.predRev = string(last.Key), last.CreateRevision
		} else {
			st.pred, st.predRev = "", 0
		}
		b.next(st, actQueuePermit)
	}
}

// stayQueuedLocked answers that a token keeps its place in the queue.
func (b *batch) stayQueuedLocked(st *step, x *snapshot, at int) {
	if !b.stamp(st, cache.Queued) {
		return
	}
	if at == 0 {
		b.s.lockKeys.setWaitingLocked(st.g, "", 0)
		return
	}
	b.s.lockKeys.setWaitingLocked(st.g, string(x.order[at-1].Key), x.order[at-1].CreateRevision)
}

// hintOthersLocked gives hints to the other queued tokens of ours that can have a permit. When
// several permits become free at once, the watch wakes only one of them.
func (b *batch) hintOthersLocked(m *sem, x *snapshot) {
	for i := 0; i < len(x.order) && x.held+int64(i) < m.limit; i++ {
		g := m.slotLocked(string(x.order[i].Key), m.queue)
		if g != nil && g.permit.queued && !g.leaving && !x.done[g] {
			b.s.hint(cache.HintAvailable, g)
		}
	}
}
