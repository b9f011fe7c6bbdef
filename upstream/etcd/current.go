package etcd

import (
	"fmt"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
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

// checkHistory checks that the answer to a transaction comes from the cluster of n, and that the
// cluster has not lost data. high is the highest revision that was known before the transaction was
// sent, and each transaction is carried out after it. Otherwise n is lost: leases may be gone, and
// fences would fall. n is nil without a session.
func (s *Store) checkHistory(n *session, r *pb.TxnResponse, high int64) error {
	h, err := r.Header, error(nil)
	switch {
	case n != nil && h.ClusterId != n.cluster:
		err = s.otherCluster()
	case h.Revision < high || h.Revision == high && wrote(r.Responses):
		err = s.lostData(h.Revision, high)
	default:
		raise(s.high, h.Revision)
		return nil
	}
	err = driverkit.Down(err)
	if n != nil && n.fault.CompareAndSwap(nil, &err) {
		s.setReason(err)
		n.lost.Store(true)
		s.wake()
	}
	return err
}

func (s *Store) otherCluster() error {
	return fmt.Errorf("%w: another cluster answers at %s", ErrServer, s.cfg.addr())
}

// lostData is the error for a server at revision now that was at revision high before.
func (s *Store) lostData(now, high int64) error {
	return fmt.Errorf("%w: %s is at revision %d and was at %d: it has lost data, and "+
		"fences would fall (raise fence_epoch on every host by that much, for semaphores by "+
		"256 times that much, then restart the daemons, without keep_over_restart)",
		ErrServer, s.cfg.addr(), now, high)
}

func raise(x *atomic.Int64, v int64) {
	for old := x.Load(); v > old && !x.CompareAndSwap(old, v); old = x.Load() {
	}
}
