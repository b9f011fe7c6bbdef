package etcd

import (
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
)

// permitWatch is for the key before ours in the queue, for any permit's end when
// there is none, or, once permits are held, for who comes to queue and for the
// removal of our keys.
func (g *lockKey) permitWatch(r *pb.WatchCreateRequest) {
	m := g.permit.sem
	dir, end := m.held, dirEnd(m.held)
	without := pb.WatchCreateRequest_NOPUT
	switch {
	case g.permit.role == roleWanted:
		dir, end, without = m.queue, dirEnd(m.queue), pb.WatchCreateRequest_NODELETE
	case g.permit.role == roleGone:
		dir, end = m.held+m.own, m.ownEnd(m.held)
	case g.pred != "":
		dir, end = g.pred, ""
	}
	r.Key, r.Filters = []byte(dir), []pb.WatchCreateRequest_FilterType{without}
	if end != "" {
		r.RangeEnd = []byte(end)
	}
}

// permitHappenedLocked turns an event into a hint. It is called with lockKeys.mu held,
// as all here.
func (s *Store) permitHappenedLocked(g *lockKey, e *mvccpb.Event) {
	m := g.permit.sem
	switch g.permit.role {
	case roleWanted:
		if !strings.HasPrefix(string(e.Kv.Key), m.queue+m.own) {
			s.hintPermit(cache.HintContended, g.lock, 0)
		}
	case roleGone:
		x := m.slotLocked(string(e.Kv.Key), m.held)
		if x != nil && x.held && !x.leaving && e.Kv.ModRevision > x.rev { // else it was an earlier one's
			s.hintPermit(cache.HintGone, g.lock, x.token)
		}
	default:
		if g.permit.queued && !g.leaving {
			s.hintPermit(cache.HintAvailable, g.lock, g.token)
		}
	}
}

// permitLook reads what is worth knowing about g.
func (g *lockKey) permitLook() []*pb.RequestOp {
	p, m := g.permit, g.permit.sem
	switch {
	case p.role == roleWanted:
		return append(ops(countDir(m.held)), m.strangers()...)
	case p.role == roleGone:
		return ops(namesOp(m.held+m.own, m.ownEnd(m.held), 0))
	case g.pred == "":
		return ops(getOp(p.place), countDir(m.held))
	}
	return ops(getOp(p.place), getOp(g.pred))
}

// turn says whether it is time to look at a semaphore, which may take reading all
// names of ours: once in a third of the TTL, however few there are to be looked at.
func (p *permit) turn(now int64, ttl time.Duration) bool {
	if now-p.looked < int64(ttl/3) {
		return false
	}
	p.looked = now
	return true
}

// lookOps is how many reads looking at g takes at most.
func (g *lockKey) lookOps() int {
	if g.permit != nil && g.permit.role == roleWanted {
		return 3
	}
	return 2
}

// sawPermitLocked says by hints what has been seen of g, at that revision.
func (s *Store) sawPermitLocked(g *lockKey, st *step, r []*pb.ResponseOp, rev int64) {
	p, m := g.permit, g.permit.sem
	switch p.role {
	case roleWanted:
		if wantedPermit(m.limit, r) {
			s.hintPermit(cache.HintContended, g.lock, 0)
		}
		return
	case roleGone:
		stand := make(map[string]int64, len(kvs(r[0])))
		for _, kv := range kvs(r[0]) {
			stand[string(kv.Key)] = kv.CreateRevision
		}
		for _, x := range m.tokens {
			if x.held && !x.leaving && x.rev <= rev && stand[x.key] != x.rev {
				s.hintPermit(cache.HintGone, g.lock, x.token)
			}
		}
		return
	}
	if !p.queued || g.pred != st.pred || g.predRev != st.predRev {
		return // something else by now
	}
	same := isThat(kvs(r[0]), g.rev)
	if g.pred == "" {
		same = same && r[1].GetResponseRange().Count >= p.limit
	} else {
		same = same && isThat(kvs(r[1]), g.predRev)
	}
	if !same {
		s.hintPermit(cache.HintAvailable, g.lock, g.token)
	}
}
