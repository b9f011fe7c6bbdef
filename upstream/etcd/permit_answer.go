package etcd

import (
	"cmp"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
)

// tally is what one transaction did to a semaphore, and left of it.
type tally struct {
	puts         int64 // keys of holders that were created
	at           int64 // of those: gone through
	held, queued int64 // all hosts', without those that joined now
	joined       []*step
}

// tallyLocked adds up what a transaction did. Like all here it is called with lockKeys.mu
// held.
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
		case did && st.plan == planPut:
			t.puts++
		case did && st.plan == planQueue:
			t.joined = append(t.joined, st)
		}
	}
	for m, at := range p.about.counts {
		t := tallies[m]
		t.held, t.queued = r[at].GetResponseRange().Count, r[at+1].GetResponseRange().Count
		m.seen = t.held + t.queued
		t.queued -= int64(len(t.joined))
	}
	return tallies
}

// wrotePermitsLocked reads the answer to a transaction that writes.
//
// A key of a holder counts when, at one moment, fewer than the limit were created
// before it, in the order of revisions and within a transaction of its steps: of
// those that ever counted and still stand, the newest had all others before it.
func (b *batch) wrotePermitsLocked(p *part) {
	rev, tallies := p.resp.Header.Revision, b.tallyLocked(p)
	for _, t := range tallies {
		b.queuedTogetherLocked(t.joined, rev)
	}
	for i := range p.steps {
		st, did := &p.steps[i], nested(p.resp.Responses[i])
		t := tallies[st.g.permit.sem]
		switch st.plan {
		case planPut:
			if did.Succeeded {
				t.at++
			}
			b.putLocked(st, did.Succeeded, t.held-t.puts+t.at, t.queued, rev)
		case planQueue:
			if !did.Succeeded {
				st.g.permit.unsure = true // it stood already
				b.next(st, planSettle)
			}
		case planBack:
			if !did.Succeeded {
				b.next(st, planSettle)
				continue
			}
			b.s.lockKeys.standsLocked(st.g, true, rev)
			b.next(st, planPlace)
		case planEnd:
			b.endedLocked(st, did.Succeeded || nested(did.Responses[0]).Succeeded)
		case planSettle:
			b.settledLocked(st, kvs(did.Responses[0]), kvs(did.Responses[1]))
		}
	}
}

// putLocked answers a taking of a permit: at is which holder it is, queued how many
// queue.
func (b *batch) putLocked(st *step, did bool, at, queued, rev int64) {
	g := st.g
	switch {
	case !did: // it stood already
		g.permit.unsure = true
		b.next(st, planSettle)
		return
	case at <= st.g.permit.limit && (st.queued || at+queued <= st.g.permit.limit):
		b.grantPermitLocked(st, rev, true)
		return
	}
	// Others were quicker.
	g.permit.queued, g.permit.unsure = false, true
	if st.join {
		b.next(st, planBack)
	} else {
		b.next(st, planEnd)
	}
}

func (b *batch) grantPermitLocked(st *step, rev int64, fresh bool) {
	g, op := st.g, &b.ops[st.i]
	base := permitBase(rev, g.permit.slot)
	g.permit.unsure = true
	if uint64(rev) > cache.MaxBase>>slotBits || fresh && base <= op.Floor {
		st.err = fmt.Errorf("%w: its revision %d makes no fence above %d at %s (raise fence_epoch)", ErrRefused, rev, op.Floor, b.s.cfg.addr())
		b.next(st, planEnd)
		return
	}
	if b.stamp(st, cache.Granted) {
		b.results[st.i].Base = base
		b.s.lockKeys.heldLocked(g, rev, b.s.clock())
	}
}

// queuedTogetherLocked answers those that were put into a queue by one transaction.
// They have one create revision, and are told apart by their names.
func (b *batch) queuedTogetherLocked(steps []*step, rev int64) {
	slices.SortFunc(steps, func(x, y *step) int { return cmp.Compare(x.g.permit.place, y.g.permit.place) })
	for i, st := range steps {
		b.s.lockKeys.standsLocked(st.g, true, rev)
		pred, predRev := st.pred, st.predRev
		if i > 0 {
			pred, predRev = steps[i-1].g.permit.place, rev
		}
		if b.stamp(st, cache.Queued) {
			b.s.lockKeys.waitsLocked(st.g, pred, predRev)
		}
	}
}

func (b *batch) endedLocked(st *step, was bool) {
	if m := st.g.permit.sem; st.g.held && m.seen < unseen {
		m.seen = max(0, m.seen-1)
	}
	b.s.lockKeys.standsLocked(st.g, false, 0)
	switch {
	case st.err != nil:
		b.fail(st, cache.Refused, st.err)
	case st.kind == cache.OpTry:
		b.answer(st, cache.Busy)
	case st.kind == cache.OpRelease && !was && !st.again:
		b.answer(st, cache.NotHeld)
	default:
		b.answer(st, cache.Done)
	}
}

// settledLocked goes on from what stands of a token.
func (b *batch) settledLocked(st *step, held, queued []*mvccpb.KeyValue) {
	g, t := st.g, &b.s.lockKeys
	st.doubt = false // that has been ended
	ours := func(k []*mvccpb.KeyValue) bool { return len(k) > 0 && string(k[0].Value) == g.permit.value }
	switch {
	case ours(held):
		b.next(st, planRank)
		return
	case ours(queued):
		t.standsLocked(g, true, queued[0].CreateRevision)
	default:
		t.standsLocked(g, false, 0)
	}
	switch {
	case st.kind != cache.OpRenew:
		b.next(st, planPlace)
	default:
		b.answer(st, cache.NotHeld)
	}
}

// sawPermitsLocked reads the answer to a transaction that only reads.
func (b *batch) sawPermitsLocked(p *part) {
	seen := map[*sem]*places{}
	for i := range p.steps {
		st := &p.steps[i]
		if st.plan != planPlace {
			b.sawPermitLocked(p, st, p.resp.Responses[p.at[i]:])
			continue
		}
		m := st.g.permit.sem
		if seen[m] == nil {
			seen[m] = newPlacesLocked(m, p.shared(m, howMany))
		}
		b.placedPermitLocked(st, seen[m])
	}
	for m, x := range seen {
		b.othersLocked(m, x)
	}
}

// shared are the answers to a question about a semaphore.
func (p *part) shared(m *sem, what question) []*pb.ResponseOp {
	return p.resp.Responses[p.about.shared[ask{m, what}]:]
}

// sawPermitLocked reads the answer of a step that reads; r begins with its own.
func (b *batch) sawPermitLocked(p *part, st *step, r []*pb.ResponseOp) {
	switch st.plan {
	case planAny:
		if len(kvs(r[0])) == 0 {
			b.answer(st, cache.Done)
			return
		}
		b.answer(st, cache.Busy)
		b.results[st.i].Mode = cache.Permit
	case planHeld:
		if isThat(kvs(r[0]), st.rev) {
			b.grantPermitLocked(st, st.rev, false)
			return
		}
		st.g.permit.unsure = true
		b.next(st, planSettle)
	case planKeep:
		b.keptLocked(st, kvs(r[0]), p.shared(st.g.permit.sem, stranger))
	case planStill:
		full := p.shared(st.g.permit.sem, holders)[0].GetResponseRange().Count >= st.g.permit.limit
		if full && isThat(kvs(r[0]), st.rev) && isThat(kvs(r[1]), st.predRev) {
			b.stamp(st, cache.Queued)
			return
		}
		b.next(st, planPlace)
	case planRank:
		b.rankedLocked(st, kvs(r[0]))
	}
}

// isThat says whether a key stands that was created then.
func isThat(k []*mvccpb.KeyValue, rev int64) bool { return len(k) == 1 && k[0].CreateRevision == rev }

func (b *batch) keptLocked(st *step, own []*mvccpb.KeyValue, about []*pb.ResponseOp) {
	if !isThat(own, st.rev) {
		b.s.lockKeys.endLocked(st.g)
		b.answer(st, cache.NotHeld)
		return
	}
	if b.stamp(st, cache.Done) {
		b.results[st.i].Contended = wantedPermit(st.g.permit.limit, about)
	}
}

// wantedPermit reads the answer to stranger.
func wantedPermit(limit int64, r []*pb.ResponseOp) bool {
	return r[0].GetResponseRange().Count >= limit && len(kvs(r[1]))+len(kvs(r[2])) > 0
}

// rankedLocked is about a key that stands among the holders while nobody knows
// whether it counts. What was created together with it is taken as before it.
func (b *batch) rankedLocked(st *step, holders []*mvccpb.KeyValue) {
	at := slices.IndexFunc(holders, func(kv *mvccpb.KeyValue) bool { return string(kv.Key) == st.key })
	if at < 0 {
		b.next(st, planSettle)
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
		b.answer(st, cache.NotHeld)
	case st.kind == cache.OpRenew:
		if b.stamp(st, cache.Done) {
			b.s.lockKeys.heldLocked(st.g, rev, b.s.clock())
		}
	case counts:
		b.grantPermitLocked(st, rev, false)
	case st.join && st.err == nil:
		b.next(st, planBack)
	default:
		b.next(st, planEnd)
	}
}
