package etcd

import (
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
)

// permitWatch completes the request of a watch. A token that queues watches the key before its own,
// or the end of any permit if there is none. A daemon that holds permits watches for new keys in
// the queue and for the removal of its own keys.
func (g *lockKey) permitWatch(r *pb.WatchCreateRequest) {
	m := g.permit.sem
	dir, end := m.held, dirEnd(m.held)
	without := pb.WatchCreateRequest_NOPUT
	switch {
	case g.permit.role == roleContended:
		dir, end, without = m.queue, dirEnd(m.queue), pb.WatchCreateRequest_NODELETE
	case g.permit.role == roleRemoved:
		dir, end = m.held+m.own, m.ownEnd(m.held)
	case g.pred != "":
		dir, end = g.pred, ""
	}
	r.Key, r.Filters = []byte(dir), []pb.WatchCreateRequest_FilterType{without}
	if end != "" {
		r.RangeEnd = []byte(end)
	}
}

// permitEventLocked turns an event into a hint. The functions in this file whose names end in
// Locked are called with lockKeys.mu held.
func (s *Store) permitEventLocked(g *lockKey, e *mvccpb.Event) {
	m := g.permit.sem
	switch g.permit.role {
	case roleContended:
		if !strings.HasPrefix(string(e.Kv.Key), m.queue+m.own) {
			s.hint(cache.HintContended, g)
		}
	case roleRemoved:
		x := m.slotLocked(string(e.Kv.Key), m.held)
		// An older event was about the key of an earlier token.
		if x != nil && x.held && !x.leaving && e.Kv.ModRevision > x.rev {
			s.hint(cache.HintGone, x)
		}
	default:
		if g.permit.queued && !g.leaving {
			s.hint(cache.HintAvailable, g)
		}
	}
}

// permitReads returns the reads of a check of g.
func (g *lockKey) permitReads() []*pb.RequestOp {
	p, m := g.permit, g.permit.sem
	switch {
	case p.role == roleContended:
		return m.reads(readOthers)
	case p.role == roleRemoved:
		return ops(namesOp(m.held+m.own, m.ownEnd(m.held), 0))
	case g.pred == "":
		return ops(getOp(p.queueKey), countDir(m.held))
	}
	return ops(getOp(p.queueKey), getOp(g.pred))
}

// turn reports whether a semaphore is due for a check. A check may read all our names there, so it
// runs once in a third of the TTL, however few keys there are to check.
func (p *permit) turn(now int64, ttl time.Duration) bool {
	if now-p.checked < int64(ttl/3) {
		return false
	}
	p.checked = now
	return true
}

// checkOps returns how many reads a check of g takes at most.
func (g *lockKey) checkOps() int {
	if g.permit != nil && g.permit.role == roleContended {
		return 3
	}
	return 2
}

// checkedPermitLocked gives hints about the result of a check of g, which was made at revision rev.
func (s *Store) checkedPermitLocked(g *lockKey, st *step, r []*pb.ResponseOp, rev int64) {
	p, m := g.permit, g.permit.sem
	switch p.role {
	case roleContended:
		if permitContended(m.limit, r) {
			s.hint(cache.HintContended, g)
		}
		return
	case roleRemoved:
		s.findGoneLocked(m, kvs(r[0]), rev)
		return
	}
	if !p.queued || g.pred != st.pred || g.predRev != st.predRev {
		return // it waits for another event by now
	}
	same := isThat(kvs(r[0]), g.rev)
	if g.pred == "" {
		same = same && count(r[1]) >= p.limit
	} else {
		same = same && isThat(kvs(r[1]), g.predRev)
	}
	if !same {
		s.hint(cache.HintAvailable, g)
	}
}

// findGoneLocked gives hints about our permits whose keys did not exist at revision rev.
func (s *Store) findGoneLocked(m *sem, keys []*mvccpb.KeyValue, rev int64) {
	created := make(map[string]int64, len(keys))
	for _, kv := range keys {
		created[string(kv.Key)] = kv.CreateRevision
	}
	for _, g := range m.tokens {
		if g.held && !g.leaving && g.rev <= rev && created[g.key] != g.rev {
			s.hint(cache.HintGone, g)
		}
	}
}
