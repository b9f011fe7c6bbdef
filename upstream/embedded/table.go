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
	sharedBit  = 1 << 63 // in a lease: the lease is shared; the rest is its token
)

// shard is a part of the table of what is held. One key has one lease: the
// daemon's own table has arranged that already; this one makes sure.
type shard struct {
	mu sync.Mutex
	// held is who holds what, 24 bytes a key beside the key's own; guarded by mu.
	held map[string]uint64
	// queued is the tokens to hint when their key comes free; guarded by mu.
	queued map[string]uint64
	// permits is who has permits of semaphores; guarded by mu.
	permits map[string]*permits
}

// apply carries out op, or returns false and has done nothing when the session
// or the limit has to be moved on first.
func (s *Store) apply(op *upstream.Op, res *upstream.Result) bool {
	done := s.applyNow(op, res)
	if res.Session == 0 {
		res.SessionNo = 0 // the answer says nothing of the session
	}
	return done
}

func (s *Store) applyNow(op *upstream.Op, res *upstream.Result) bool {
	*res = upstream.Result{Left: -1}
	if op.Token >= sharedBit || op.Floor > cache.MaxBase {
		res.Status, res.Err = cache.Refused, fmt.Errorf("token %d or floor %d is out of range", op.Token, op.Floor)
		return true
	}
	d := s.shard(op.Key)
	d.mu.Lock()
	defer d.mu.Unlock()
	// The clock is read under mu: what expire removes later is not used here. The number is read before until. So a
	// grant that expire removes has the number of the session that has ended, and nobody relies on it.
	res.SessionNo = s.session.no.Load()
	now, until := s.session.clock(), s.session.until.Load()
	grip, held := d.held[op.Key]
	mine := held && grip&^sharedBit == op.Token
	expired := until != 0 && now >= until
	if expired && op.Kind != cache.OpRelease && op.Kind != cache.OpWithdraw {
		return false
	}
	if op.Mode == cache.Permit {
		return s.permit(d, op, res, now, until, expired)
	}
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		return s.acquire(d, op, res, now, until, grip, held)
	case cache.OpRelease, cache.OpWithdraw:
		s.release(d, op, res, mine, expired)
	case cache.OpRenew:
		return s.renew(op, res, now, until, mine)
	case cache.OpDowngrade:
		return s.downgrade(d, op, res, now, until, mine)
	case cache.OpPeek:
		s.peek(res, now, until, grip, held)
	default:
		res.Status, res.Err = cache.Refused, fmt.Errorf("unknown operation %d", op.Kind)
	}
	return true
}

func (s *Store) acquire(d *shard, op *upstream.Op, res *upstream.Result, now, until int64, grip uint64, held bool) bool {
	n := &s.session
	if left := n.waiting(now); left > 0 {
		if op.Kind == cache.OpJoin {
			s.queue(d, op, res, int64(left))
			return true
		}
		res.Status, res.Err = cache.Refused, waitingError(left)
		return true
	}
	if held && grip&^sharedBit != op.Token {
		if op.Kind == cache.OpJoin {
			s.queue(d, op, res, until-now)
			return true
		}
		res.Status, res.Left = cache.Busy, until-now
		return true
	}
	if !n.fresh(until, now) {
		return false
	}
	base := n.nextBase(op.Floor)
	if base == 0 {
		return false
	}
	if !held {
		n.held.Add(1)
	}
	if n.until.Load() < until {
		// Taken back since it was read: the file may not have it any more.
		if !held {
			n.held.Add(-1)
		}
		return false
	}
	grip = op.Token
	if op.Mode == cache.Shared {
		grip |= sharedBit
	}
	d.held[op.Key] = grip
	delete(d.queued, op.Key)
	res.Status, res.Base, res.Session = cache.Granted, base, until
	return true
}

func (s *Store) queue(d *shard, op *upstream.Op, res *upstream.Result, left int64) {
	if d.queued == nil {
		d.queued = make(map[string]uint64)
	}
	d.queued[op.Key] = op.Token
	res.Status, res.Left = cache.Queued, left
}

func (s *Store) release(d *shard, op *upstream.Op, res *upstream.Result, mine, expired bool) {
	if q, ok := d.queued[op.Key]; ok && q == op.Token {
		delete(d.queued, op.Key)
	}
	if op.Kind == cache.OpWithdraw {
		res.Status = cache.Done
	} else {
		res.Status = cache.NotHeld
	}
	if !mine {
		return
	}
	if !expired { // else it had ended already
		res.Status = cache.Done
	}
	delete(d.held, op.Key)
	s.session.held.Add(-1)
	if _, ok := d.queued[op.Key]; ok {
		delete(d.queued, op.Key)
		s.hint(cache.Exclusive, op.Key)
	}
}

func (s *Store) renew(op *upstream.Op, res *upstream.Result, now, until int64, mine bool) bool {
	if !mine {
		res.Status = cache.NotHeld
		return true
	}
	if !s.session.fresh(until, now) {
		return false
	}
	if op.Rebase {
		if res.Base = s.session.nextBase(op.Floor); res.Base == 0 {
			return false
		}
	}
	res.Status, res.Session = cache.Done, until
	return true
}

func (s *Store) downgrade(d *shard, op *upstream.Op, res *upstream.Result, now, until int64, mine bool) bool {
	if !mine {
		res.Status = cache.NotHeld
		return true
	}
	if !s.session.fresh(until, now) {
		return false
	}
	d.held[op.Key] = op.Token | sharedBit
	res.Status, res.Session = cache.Done, until
	return true
}

func (s *Store) peek(res *upstream.Result, now, until int64, grip uint64, held bool) {
	left := s.session.waiting(now)
	switch {
	case left > 0:
		res.Status, res.Err = cache.Refused, waitingError(left)
	case held:
		res.Status, res.Left = cache.Busy, until-now
		if grip&sharedBit != 0 {
			res.Mode = cache.Shared
		}
	default:
		res.Status = cache.Done
	}
}

// hint tells the daemon that key, or a permit of it, may have come free; it is lost
// when nobody reads the hints.
func (s *Store) hint(mode cache.Mode, key string) {
	select {
	case s.hints <- upstream.Hint{Kind: cache.HintAvailable, Mode: mode, Key: key}:
	default:
	}
}

// hintAll hints every key that somebody queues for.
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
			s.wake(key, p)
		}
		d.mu.Unlock()
	}
}

// expire drops every lease: the session's deadline has passed, and nobody relies
// on it any more. The session's io is held.
func (s *Store) expire() {
	s.session.until.Store(0) // first, so that whoever takes a shard's mu next sees it
	s.session.no.Add(1)      // a grant whose answer is on its way is not one of the next session
	for i := range s.shards {
		d := &s.shards[i]
		d.mu.Lock()
		s.session.held.Add(-int64(len(d.held)))
		clear(d.held)
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
