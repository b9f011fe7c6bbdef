package redlock

import (
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// leaseID is a token with its key.
type leaseID struct {
	key   string
	token uint64
}

// At the nodes, the number of a token consists of the table's number and a count of its new starts.
// These numbers must rise with the table's numbers, and Lua is exact only up to 2^53.
const (
	againBits = 8
	againMask = 1<<againBits - 1
)

// lease has what this store knows of one token at the nodes. Store.mu guards all fields.
type lease struct {
	leaseID
	number uint64 // at the nodes

	mode     cache.Mode
	obsolete bool // the nodes must remove it, because it grants no hold any more
	reusable bool // the caller may acquire with its token again, or will withdraw it

	mayHave     set // nodes that may have the token
	granted     set // nodes of mayHave that granted it
	lateAcquire set // nodes of mayHave that may still carry out an acquire without an answer
	exclusiveAt set // nodes where it may still be exclusive after a downgrade
	lateRelease set // nodes that may still carry out a release without an answer
	pendingAt   set // nodes whose pendingReleases contain it

	until     int64 // the deadline of the last grant or renewal by a quorum; 0 before
	endsAt    int64 // when it has expired at all nodes
	notBefore int64 // the next pending release is not sent before

	jobs  int // jobs that refer to it
	calls int // calls in flight about it: until they end, no release is pending
}

// leaseLocked returns the lease of op's token, or nil if it is not known.
func (s *Store) leaseLocked(op *upstream.Op) *lease { return s.leases[leaseID{op.Key, op.Token}] }

func (s *Store) newLeaseLocked(op *upstream.Op) *lease {
	l := &lease{leaseID: leaseID{op.Key, op.Token}, number: op.Token << againBits, mode: op.Mode}
	s.leases[l.leaseID] = l
	return l
}

// acquireLocked returns the lease for an acquire. If a late release may still end the existing
// lease at some node, that lease is left to its pending releases, and the token gets a new one.
func (s *Store) acquireLocked(op *upstream.Op) *lease {
	l := s.leaseLocked(op)
	if l == nil {
		return s.newLeaseLocked(op)
	}
	l.obsolete = false // The caller acquires with it again.
	if l.lateRelease != 0 && l.number&againMask < againMask {
		old := l
		l = s.newLeaseLocked(op)
		l.number, l.reusable = old.number+1, old.reusable
		old.obsolete, old.reusable = true, false
		s.trackLocked(old)
	}
	return l
}

// extendEndLocked records that an op with a TTL is sent, or may be carried out as late as now.
func (s *Store) extendEndLocked(l *lease, op *upstream.Op, now int64) {
	ttl := op.TTL
	if ttl <= 0 {
		ttl = s.cfg.MaxTTL
	}
	l.endsAt = max(l.endsAt, now+int64(s.nodeTTL(ttl)+s.cfg.Timeout))
}

// noteSendLocked records the changes that j can make at its node from now on.
func (s *Store) noteSendLocked(j *job, now int64) {
	for i := range j.ops {
		l := j.parts[i].lease
		if l == nil {
			continue
		}
		switch j.ops[i].Kind {
		case cache.OpTry, cache.OpJoin:
			l.mayHave.add(j.n.i)
			s.extendEndLocked(l, &j.ops[i], now)
		case cache.OpRenew, cache.OpDowngrade:
			s.extendEndLocked(l, &j.ops[i], now)
		}
	}
}

// noteAnswersLocked records the state of the tokens at a node from its answers.
func (s *Store) noteAnswersLocked(j *job, now int64) {
	n := j.n.i
	for i := range j.ops {
		l, st := j.parts[i].lease, j.results[i].Status
		if l == nil {
			continue
		}
		l.jobs--
		switch j.ops[i].Kind {
		case cache.OpTry, cache.OpJoin:
			s.noteAcquireLocked(l, &j.ops[i], st, n, now)
		case cache.OpRelease, cache.OpWithdraw:
			s.noteReleaseLocked(l, st, n, now, j.lane)
		case cache.OpDowngrade:
			if st == cache.Done || st == cache.NotHeld {
				l.exclusiveAt.drop(n)
			} else if j.lane == laneBackground {
				l.notBefore = now + int64(s.cfg.Timeout)
			}
		}
		if j.call == nil {
			s.trackLocked(l)
		}
	}
}

// noteAcquireLocked records the answer of node n to an acquire.
func (s *Store) noteAcquireLocked(l *lease, op *upstream.Op, st cache.Status, n int, now int64) {
	switch {
	case st == cache.Granted:
		l.mayHave.add(n)
		l.granted.add(n)
		if op.Mode == cache.Exclusive && l.mode == cache.Shared {
			l.exclusiveAt.add(n) // a healed node that missed the downgrade
		}
	case st == cache.Refused && l.granted.has(n):
	case st == cache.Busy || st == cache.Refused:
		if !l.lateAcquire.has(n) {
			l.gone(n)
		}
	default:
		l.mayHave.add(n)
		l.lateAcquire.add(n)
		s.extendEndLocked(l, op, now)
	}
}

// noteReleaseLocked records the answer of node n to a release or withdrawal.
func (s *Store) noteReleaseLocked(l *lease, st cache.Status, n int, now int64, from lane) {
	if st == cache.Unknown {
		l.lateRelease.add(n)
	}
	switch {
	case st == cache.NotHeld && l.lateAcquire.has(n):
		// The node may still carry out an acquire that it was sent earlier, so the release is sent
		// once more.
		l.lateAcquire.drop(n)
		l.notBefore = now + int64(s.cfg.Timeout)
	case st == cache.Done || st == cache.NotHeld:
		l.gone(n)
	case from == laneBackground:
		l.notBefore = now + int64(s.cfg.Timeout)
	}
}

// gone records that node n does not have the token.
func (l *lease) gone(n int) {
	l.mayHave.drop(n)
	l.granted.drop(n)
	l.lateAcquire.drop(n)
	l.exclusiveAt.drop(n)
}

// staleAt returns the nodes at which l has to be released or downgraded.
func (l *lease) staleAt() set {
	if l.obsolete {
		return l.mayHave
	}
	return l.exclusiveAt & l.mayHave
}

// trackLocked adds l to the pendingReleases of each node that may still have it, or forgets l if
// no node may.
func (s *Store) trackLocked(l *lease) {
	if l.calls > 0 {
		return
	}
	if l.obsolete && l.mayHave == 0 && !l.reusable && l.jobs == 0 {
		if s.leases[l.leaseID] == l {
			delete(s.leases, l.leaseID)
		}
		return
	}
	stale := l.staleAt()
	if stale == 0 {
		return
	}
	for _, n := range s.nodes {
		if stale.has(n.i) && !l.pendingAt.has(n.i) {
			l.pendingAt.add(n.i)
			n.pendingReleases = append(n.pendingReleases, l)
		}
	}
	s.wakeReleaser()
}

// pendingLocked returns a job for the pending releases that can be sent to node n now, or nil. next
// is when to check again.
func (s *Store) pendingLocked(n *node, now int64) (j *job, next int64) {
	next = cache.Forever
	used := n.busyKeysLocked()
	kept := n.pendingReleases[:0]
	for _, l := range n.pendingReleases {
		if l.obsolete && now >= l.endsAt {
			l.gone(n.i) // It has expired there.
		}
		if !l.staleAt().has(n.i) {
			l.pendingAt.drop(n.i)
			s.trackLocked(l)
			continue
		}
		kept = append(kept, l)
		switch {
		case used[l.key] || l.calls > 0 || j != nil && len(j.ops) == upstream.MaxBatch:
			// When that is done, the pending releases are checked again.
		case l.notBefore > now:
			next = min(next, l.notBefore)
		default:
			used[l.key] = true
			if j == nil {
				j = &job{n: n, lane: laneBackground}
			}
			j.put(l.releaseOp(n.i, now), part{lease: l})
		}
	}
	clear(n.pendingReleases[len(kept):])
	n.pendingReleases = kept
	return j, next
}

// releaseOp returns the op that releases or downgrades l at node n.
func (l *lease) releaseOp(n int, now int64) upstream.Op {
	op := upstream.Op{Kind: cache.OpRelease, Mode: l.mode, Key: l.key, Token: l.number}
	if !l.obsolete {
		op.Kind, op.Mode, op.TTL = cache.OpDowngrade, cache.Shared, time.Duration(max(l.until-now, 1))
	}
	return op
}

// nodeTTL returns the TTL for a node at which the lease lasts as long as ours, however fast the
// node's clock runs within the configured drift.
func (s *Store) nodeTTL(ttl time.Duration) time.Duration {
	if more := s.cfg.Drift - DefaultDrift; more > 0 {
		ttl += time.Duration(float64(ttl) * more)
	}
	return ttl
}

// wakeReleaser wakes sendPendingReleases.
func (s *Store) wakeReleaser() {
	select {
	case s.wakeup <- struct{}{}:
	default:
	}
}

// idleLocked tells Close when nothing is in flight any more.
func (s *Store) idleLocked() {
	if s.idle == nil {
		return
	}
	for _, n := range s.nodes {
		if len(n.running) > 0 || len(n.pendingReleases) > 0 && n.failures == 0 {
			return
		}
	}
	close(s.idle)
	s.idle = nil
}
