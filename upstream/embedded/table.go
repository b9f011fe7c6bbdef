package embedded

import (
	"fmt"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	shardCount = 64
	hintBuffer = 256
	sharedBit  = 1 << 63 // of a lease: it is shared; the other bits are its token
)

// shard is a part of the table of leases. A key has at most one lease. The daemon's lock table
// ensures this already, and the shard checks it.
type shard struct {
	mu sync.Mutex
	// held has the lease of each key, in 24 bytes besides the key; guarded by mu.
	held map[string]uint64
	// queued has the token that waits for each key; guarded by mu.
	queued map[string]uint64
	// permits has the semaphores; guarded by mu.
	permits map[string]*permits
	// kept has the ends of the leases that are in the state file; guarded by mu.
	kept map[keptID]int64
	// left has the leases that an earlier process has left in the state file; guarded by mu.
	left map[string][]leftLease
}

// request is an op in progress. Its methods are called with the shard's mu held. Those that return
// a bool return false, and have changed nothing, if the session or the limit must be extended
// first.
type request struct {
	*Store
	shard *shard
	now   int64
	until int64 // the session's deadline
	// written means that Store.keep has just written the lease to the state file, if the op asks for
	// that. The op alone would ask for slightly longer now, because time has passed since.
	written bool
}

// apply carries out op. It returns false, and has changed nothing, if the session or the limit must
// be extended first, or the lease must be written to the file. written is as in request.
func (s *Store) apply(op *upstream.Op, res *upstream.Result, written bool) bool {
	done := s.applyNow(op, res, written)
	if res.Session == 0 {
		res.SessionNo = 0 // the result does not depend on the session
	}
	return done
}

func (s *Store) applyNow(op *upstream.Op, res *upstream.Result, written bool) bool {
	*res = upstream.Result{Left: -1}
	if op.Token >= sharedBit || op.Floor > cache.MaxBase {
		res.Status = cache.Refused
		res.Err = fmt.Errorf("token %d or floor %d is out of range", op.Token, op.Floor)
		return true
	}
	r := request{Store: s, shard: s.shard(op.Key), written: written}
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	// The clock is read under mu, so that no lease counts that expire removes later. The number is
	// read before until. So a grant that expire removes has the number of the session that has
	// ended, and nobody relies on it.
	res.SessionNo = s.session.no.Load()
	r.now, r.until = s.session.clock(), s.session.until.Load()
	if r.expired() && op.Kind != cache.OpRelease && op.Kind != cache.OpWithdraw {
		return false
	}
	if op.Mode == cache.Permit {
		return r.permit(op, res)
	}
	return r.lock(op, res)
}

// expired reports whether the session has ended, and its leases with it.
func (r *request) expired() bool { return r.until != 0 && r.now >= r.until }

// lock carries out an op on a lock.
func (r *request) lock(op *upstream.Op, res *upstream.Result) bool {
	lease, held := r.shard.held[op.Key]
	mine := held && lease&^sharedBit == op.Token
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		return r.acquire(op, res, lease, held)
	case cache.OpRelease, cache.OpWithdraw:
		r.release(op, res, mine)
	case cache.OpRenew:
		return r.renew(op, res, mine)
	case cache.OpDowngrade:
		return r.downgrade(op, res, mine)
	case cache.OpPeek:
		mode := cache.Exclusive
		if lease&sharedBit != 0 {
			mode = cache.Shared
		}
		left, until := r.leftBy(op.Key, cache.Exclusive)
		r.peek(res, held || left > 0, mode)
		r.leftUntil(res, until)
	default:
		res.Status, res.Err = cache.Refused, fmt.Errorf("unknown operation %d", op.Kind)
	}
	return true
}

func (r *request) acquire(op *upstream.Op, res *upstream.Result, lease uint64, held bool) bool {
	wanted := op.Token
	if op.Mode == cache.Shared {
		wanted |= sharedBit
	}
	taken := held && lease != wanted // by another token, or by this one in the other mode
	left, until := r.leftBy(op.Key, op.Mode)
	taken = taken || left > 0
	if op.Kind == cache.OpJoin && (r.waiting() || taken) {
		if r.shard.queued == nil {
			r.shard.queued = make(map[string]uint64)
		}
		r.shard.queued[op.Key] = op.Token
		r.queued(res)
		r.leftUntil(res, until)
		return true
	}
	if r.waiting() || taken {
		r.refuse(res)
		r.leftUntil(res, until)
		return true
	}
	if !r.grant(op, res, held) {
		return false
	}
	r.shard.held[op.Key] = wanted
	delete(r.shard.queued, op.Key)
	return true
}

// waiting reports whether the store still waits for the validity stated before the restart to pass.
func (r *request) waiting() bool { return r.session.waiting(r.now) > 0 }

// queued answers an acquire that waits.
func (r *request) queued(res *upstream.Result) {
	res.Status, res.Left = cache.Queued, r.until-r.now
	if left := r.session.waiting(r.now); left > 0 {
		res.Left = int64(left)
	}
}

// refuse answers an acquire that is not granted and does not wait.
func (r *request) refuse(res *upstream.Result) {
	if left := r.session.waiting(r.now); left > 0 {
		res.Status, res.Err = cache.Refused, waitingError(left)
		return
	}
	res.Status, res.Left = cache.Busy, r.until-r.now
}

// leftUntil states in an answer that a lease which an earlier process has left lasts until then.
func (r *request) leftUntil(res *upstream.Result, until int64) {
	if until > r.now && res.Status != cache.Refused {
		res.Left = max(res.Left, until-r.now)
	}
}

// grant answers an acquire with a new base. It counts the lease unless the token has it already,
// which is mine.
func (r *request) grant(op *upstream.Op, res *upstream.Result, mine bool) bool {
	n := &r.session
	if !n.fresh(r.until, r.now) {
		return false
	}
	base := n.nextBase(op.Floor)
	if base == 0 {
		return false
	}
	var added int64
	if !mine {
		added = 1
	}
	n.held.Add(added)
	if n.until.Load() < r.until {
		n.held.Add(-added) // retire has removed the deadline, perhaps from the file too
		return false
	}
	res.Status, res.Base, res.Session = cache.Granted, base, r.until
	return true
}

func (r *request) release(op *upstream.Op, res *upstream.Result, mine bool) {
	d, key := r.shard, op.Key
	if q, ok := d.queued[key]; ok && q == op.Token {
		delete(d.queued, key)
	}
	r.released(op, res, mine)
	if !mine {
		return
	}
	delete(d.held, key)
	r.unkeep(op)
	if _, ok := d.queued[key]; ok {
		delete(d.queued, key)
		r.hint(cache.Exclusive, key)
	}
}

// released answers a release or withdrawal and stops counting the lease, if there is one.
func (r *request) released(op *upstream.Op, res *upstream.Result, mine bool) {
	if op.Kind == cache.OpWithdraw || mine && !r.expired() {
		res.Status = cache.Done
	} else {
		res.Status = cache.NotHeld
	}
	if mine {
		r.session.held.Add(-1)
	}
}

func (r *request) renew(op *upstream.Op, res *upstream.Result, mine bool) bool {
	if !mine {
		res.Status = cache.NotHeld
		return true
	}
	if !r.session.fresh(r.until, r.now) {
		return false
	}
	if asksToKeep(op) && !r.keeps(op) {
		return false
	}
	if op.Rebase {
		if res.Base = r.session.nextBase(op.Floor); res.Base == 0 {
			return false
		}
	}
	res.Status, res.Session = cache.Done, r.until
	return true
}

func (r *request) downgrade(op *upstream.Op, res *upstream.Result, mine bool) bool {
	if !mine {
		res.Status = cache.NotHeld
		return true
	}
	if !r.session.fresh(r.until, r.now) {
		return false
	}
	r.shard.held[op.Key] = op.Token | sharedBit
	if r.shard.kept[idOf(op)] != 0 {
		r.session.dirty.Store(true)
		r.session.wake()
	}
	res.Status, res.Session = cache.Done, r.until
	return true
}

func (r *request) peek(res *upstream.Result, held bool, mode cache.Mode) {
	left := r.session.waiting(r.now)
	switch {
	case left > 0:
		res.Status, res.Err = cache.Refused, waitingError(left)
	case held:
		res.Status, res.Left, res.Mode = cache.Busy, r.until-r.now, mode
	default:
		res.Status = cache.Done
	}
}

// hint tells the daemon that key, or a permit of it, may be available. The hint is lost if the
// stream is full.
func (s *Store) hint(mode cache.Mode, key string) {
	s.hints.Send(upstream.Hint{Kind: cache.HintAvailable, Mode: mode, Key: key})
}

// hintAll sends a hint for every key with a queued token.
func (s *Store) hintAll() {
	for i := range s.shards {
		d := &s.shards[i]
		d.mu.Lock()
		for key := range d.queued {
			if _, held := d.held[key]; !held {
				delete(d.queued, key)
				s.hint(cache.Exclusive, key)
			}
		}
		for key, p := range d.permits {
			s.hintQueued(key, p)
		}
		d.mu.Unlock()
	}
}

// expire drops every lease, because the session's deadline has passed and nobody relies on them any
// more. A kept lease closes its key until its end, although its token is not known any more. The
// caller holds the session's io.
func (s *Store) expire() {
	now := s.session.clock()
	s.session.until.Store(0) // first, so that the next holder of a shard's mu sees it
	s.session.no.Add(1)      // so that no grant of the old session counts in the next one
	for i := range s.shards {
		d := &s.shards[i]
		d.mu.Lock()
		for id, until := range d.kept {
			d.leave(id.key, leftLease{d.modeOf(id), until}, now)
		}
		s.session.held.Add(-int64(len(d.held)))
		clear(d.held)
		clear(d.kept)
		for key, p := range d.permits {
			s.session.held.Add(-int64(len(p.held)))
			clear(p.held)
			if len(p.queued) == 0 {
				delete(d.permits, key)
			}
		}
		d.mu.Unlock()
	}
	s.hintAll()
}
