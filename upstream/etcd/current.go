package etcd

import (
	"fmt"
	"sync/atomic"
)

// liveSession returns the session if the store may grant leases under it now.
func (s *Store) liveSession() (*session, error) {
	n := s.cur.Load()
	if n == nil || n.lost.Load() {
		return nil, s.noSession()
	}
	if s.clock() >= n.until.Load() {
		s.wake() // the session is lost and must be ended
		return nil, s.noSession()
	}
	return n, nil
}

func (s *Store) noSession() error {
	return fmt.Errorf("%w: %w", ErrSession, *s.reason.Load())
}

func (s *Store) setReason(err error) { s.reason.Store(&err) }

// wake makes the session's goroutine check the session at once.
func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// noteRevision remembers the revision of an answer.
func (s *Store) noteRevision(rev int64) { raise(s.high, rev) }

func raise(x *atomic.Int64, v int64) {
	for old := x.Load(); v > old && !x.CompareAndSwap(old, v); old = x.Load() {
	}
}
