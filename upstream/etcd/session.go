package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// session is one etcd lease. All keys of the daemon are under it.
type session struct {
	no      uint64
	lease   int64
	key     string // exists as long as the lease does; see fence
	cluster uint64 // the cluster's identity
	until   atomic.Int64
	// fence is the revision at which key was last written. Requests that take a lock compare it.
	// Writing key again therefore invalidates all such requests in flight, so that the outcome of a
	// request without an answer becomes certain.
	fence atomic.Int64
	lost  atomic.Bool           // its deadline has passed, or the store has ended it
	fault atomic.Pointer[error] // why an answer has ended it; nil unless one has
	gone  atomic.Bool           // the store has confirmed that the lease and all its keys are gone
}

// oldest is the oldest etcd whose nested transactions and keep-alives behave as this driver needs.
var oldest = driverkit.Version{3, 4}

// revokesLiveLeases reports whether version v has etcd issue 15247: a member that has lost the
// leadership without noticing can still have live leases revoked, or confirm a keep-alive.
func revokesLiveLeases(v driverkit.Version) bool {
	return v.Before(driverkit.Version{3, 4, 29}) ||
		!v.Before(driverkit.Version{3, 5}) && v.Before(driverkit.Version{3, 5, 13})
}

const (
	pauseMin = 50 * time.Millisecond
	pauseMax = time.Second
)

func newLeaseID() int64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return int64(binary.LittleEndian.Uint64(b[:])>>1 | 1<<56)
}

// runSessions makes a session, keeps it alive until it is lost, ends it, and makes the next one,
// until ctx ends. Each session has ended before the next one begins.
func (s *Store) runSessions(ctx context.Context, n *session) {
	for ctx.Err() == nil {
		if n == nil {
			if n = s.makeSession(ctx); n == nil {
				return
			}
			s.useSession(n)
		}
		err := s.keepAlive(ctx, n)
		if ctx.Err() != nil {
			return
		}
		select {
		case s.turn <- struct{}{}: // not while another process continues the session
		case <-ctx.Done():
			return
		}
		s.loseSession(n, err)
		<-s.turn
		s.endSession(ctx, n)
		n = nil
	}
}

// useSession makes n the present session.
func (s *Store) useSession(n *session) {
	s.last.Store(n.no)
	s.lockKeys.forgetSems()
	s.cur.Store(n)
	s.sessions.Send(upstream.Session{No: n.no, Until: n.until.Load()})
	s.log.Info("session at etcd", zap.String("event", "store_session"),
		zap.String("addr", s.cfg.addr()), zap.Uint64("no", n.no),
		zap.String("lease", strconv.FormatInt(n.lease, 16)))
}

// loseSession declares n lost.
func (s *Store) loseSession(n *session, why error) {
	s.setReason(fmt.Errorf("the last one was lost: %w", why))
	n.lost.Store(true)
	s.sessions.Send(upstream.Session{No: n.no, Lost: true})
	s.lockKeys.drop(n)
	s.log.Error("session at etcd lost", zap.String("event", "store_session_lost"),
		zap.String("addr", s.cfg.addr()), zap.Uint64("no", n.no), zap.Error(why))
}

// makeSession tries until it has a session. It returns nil if ctx ends first. The lease keeps its
// id from attempt to attempt, so that a lease whose grant was not answered is not left behind.
func (s *Store) makeSession(ctx context.Context) *session {
	id, pause, said := newLeaseID(), driverkit.Backoff{Min: pauseMin, Max: pauseMax}, ""
	for {
		try, cancel := context.WithTimeout(ctx, 2*s.cfg.Timeout)
		n, err := s.beginSession(try, id)
		cancel()
		if err == nil {
			return n
		}
		if ctx.Err() != nil {
			return nil
		}
		s.setReason(err)
		if errors.Is(err, errLeaseEnded) {
			id = newLeaseID()
		}
		if msg := err.Error(); msg != said {
			s.log.Warn("no session at etcd",
				zap.String("event", "store_no_session"), zap.Error(err))
			said = msg
		}
		if !pause.Wait(ctx) {
			return nil
		}
	}
}

var errLeaseEnded = errors.New("the lease has ended")

// beginSession makes a session with the lease id. It continues from an earlier attempt that has
// granted the lease already.
func (s *Store) beginSession(ctx context.Context, id int64) (*session, error) {
	if err := s.checkServer(ctx); err != nil {
		return nil, err
	}
	n := &session{no: s.last.Load() + 1, lease: id, key: s.names.session(id)}
	high := s.high.Load() // before the request: others may raise it meanwhile
	sent, ttl, h, err := s.grant(ctx, id)
	if err != nil {
		return nil, s.cfg.explain(ErrNoAnswer, fmt.Errorf("grant lease: %w", err))
	}
	if h.Revision < high {
		return nil, s.lostData(h.Revision, high)
	}
	n.cluster = h.ClusterId
	n.until.Store(cache.LeaseDeadline(sent, int64(ttl)))
	s.granted.Store(int64(ttl))
	if err := s.writeKey(ctx, n); err != nil {
		if is(err, rpctypes.ErrGRPCLeaseNotFound) {
			err = errLeaseEnded
		}
		return nil, s.cfg.explain(ErrNoAnswer, fmt.Errorf("write %s: %w", n.key, err))
	}
	if s.clock() >= n.until.Load() {
		return nil, fmt.Errorf("make session at %s: %w before it began",
			s.cfg.addr(), errLeaseEnded)
	}
	return n, nil
}

// grant requests the lease. sent is the time before the request that granted it was sent.
func (s *Store) grant(ctx context.Context, id int64) (
	sent int64, ttl time.Duration, h *pb.ResponseHeader, err error,
) {
	var r *pb.LeaseGrantResponse
	sent = s.clock()
	_, err = s.client.call(ctx, func(ctx context.Context) (err error) {
		sent = s.clock()
		req := &pb.LeaseGrantRequest{ID: id, TTL: int64(s.cfg.TTL / time.Second)}
		r, err = s.client.lease.LeaseGrant(ctx, req)
		return err
	})
	if err == nil {
		return sent, time.Duration(r.TTL) * time.Second, r.Header, nil
	}
	if !is(err, rpctypes.ErrGRPCLeaseExist) {
		return 0, 0, nil, err
	}
	k := keeper{s: s}
	defer k.close()
	sent = s.clock()
	a, err := k.renew(ctx, id, s.cfg.Timeout)
	if err == nil && a.TTL <= 0 {
		err = errLeaseEnded
	}
	if err != nil {
		return 0, 0, nil, err
	}
	return sent, time.Duration(a.TTL) * time.Second, a.Header, nil
}

// writeKey writes the session's key, and thereby makes a new fence.
func (s *Store) writeKey(ctx context.Context, n *session) error {
	req := &pb.TxnRequest{Success: ops(putOp(n.key, "", n.lease), countOp(s.root, s.behind()))}
	high := s.high.Load()
	r, _, err := request(ctx, s.client, s.client.kv.Txn, req)
	if err == nil {
		err = s.checkHistory(n, r, high)
	}
	if err != nil {
		return err
	}
	raise(&n.fence, r.Header.Revision)
	return nil
}

// checkServer asks a member whether it is an etcd that may be used.
func (s *Store) checkServer(ctx context.Context) error {
	r, _, err := request(ctx, s.client, s.client.maint.Status, &pb.StatusRequest{})
	if err != nil {
		return s.cfg.explain(ErrNoAnswer, err)
	}
	v, ok := driverkit.ParseVersion(r.Version)
	switch {
	case !ok:
		return fmt.Errorf("%w: %s says that its version is %q", ErrServer, s.cfg.addr(), r.Version)
	case v.Before(oldest):
		return fmt.Errorf("%w: the version of %s is %s, at least %d.%d is needed",
			ErrServer, s.cfg.addr(), r.Version, oldest[0], oldest[1])
	case r.IsLearner:
		return fmt.Errorf("%w: %s is a learner, which takes no writes: take it out of the store "+
			"URL until it is promoted", ErrServer, s.cfg.addr())
	}
	if revokesLiveLeases(v) {
		s.log.Warn("this etcd can end live leases when its leader changes, so that two hosts "+
			"hold a lock at once; upgrade it to 3.4.29, 3.5.13 or later",
			zap.String("version", r.Version), zap.String("addr", s.cfg.addr()))
	}
	return nil
}

// keepAlive renews n until it is lost, and returns the reason.
func (s *Store) keepAlive(ctx context.Context, n *session) error {
	k := keeper{s: s}
	defer k.close()
	sent, pause := s.clock(), time.Duration(0)
	var last error
	for ctx.Err() == nil {
		ttl := time.Duration(s.granted.Load())
		due := sent + int64(ttl/3) - int64(mrand.N(ttl/30))
		if pause > 0 {
			due = s.clock() + int64(pause)
		}
		woken := s.wait(ctx, min(due, n.until.Load()))
		if err := n.fault.Load(); err != nil {
			return *err
		}
		now := s.clock()
		if now >= n.until.Load() {
			return errors.Join(errors.New("its deadline has passed"), last)
		}
		if ctx.Err() != nil || now < due && !woken {
			continue
		}
		a, err := k.renew(ctx, n.lease, max(pauseMin, min(s.cfg.Timeout, ttl/3)))
		switch {
		case err != nil:
			last = s.cfg.explain(ErrNoAnswer, fmt.Errorf("keep lease alive: %w", err))
			pause = min(max(pauseMin, 2*pause), ttl/10)
			continue
		case a.TTL <= 0:
			if last = s.leaseExists(ctx, n); last == nil {
				n.gone.Store(true)
				return errors.New("etcd knows its lease no more")
			}
			pause = min(max(pauseMin, 2*pause), ttl/10)
			continue
		case a.Header.ClusterId != n.cluster:
			return s.otherCluster()
		}
		raise(s.high, a.Header.Revision) // the member has it, though it may lag behind others
		sent, pause, last = now, 0, nil
		if until := cache.LeaseDeadline(sent, a.TTL*int64(time.Second)); until > n.until.Load() {
			n.until.Store(until)
			s.sessions.Send(upstream.Session{No: n.no, Until: until})
		}
		if woken && !s.rewriteKey(ctx, n) {
			pause = pauseMin
		}
	}
	return ctx.Err()
}

// rewriteKey writes the session's key again after a request has found it missing.
func (s *Store) rewriteKey(ctx context.Context, n *session) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.writeKey(ctx, n) == nil
}

// leaseExists returns nil if the lease of n, which a member does not know, has ended: the session's
// key does not exist. All members agree on this read, but a member that has just become the leader
// may not know the lease yet. After an error of the read, the lease may exist.
func (s *Store) leaseExists(ctx context.Context, n *session) error {
	r, err := bounded(ctx, s, s.client.kv.Range, &pb.RangeRequest{Key: []byte(n.key)})
	switch {
	case err != nil:
		return s.cfg.explain(ErrNoAnswer, fmt.Errorf("read %s: %w", n.key, err))
	case len(r.Kvs) == 1 && r.Kvs[0].Lease == n.lease:
		return errors.New("a member does not know its lease, whose key exists")
	}
	return nil
}

// wait waits until the boot clock is at t. woken is true if wake was called before.
func (s *Store) wait(ctx context.Context, t int64) (woken bool) {
	timer := time.NewTimer(time.Duration(max(0, t-s.clock())))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-s.kick:
		return true
	}
	return false
}

// endSession makes sure that no key remains under n. If n was lost before its deadline, endSession
// waits for the deadline: until then, programs may rely on the keys that are left of it.
func (s *Store) endSession(ctx context.Context, n *session) {
	for !n.gone.Load() && ctx.Err() == nil && s.clock() < n.until.Load() {
		s.wait(ctx, n.until.Load())
	}
	pause := driverkit.Backoff{Min: pauseMin, Max: pauseMax}
	for !n.gone.Load() && ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		err := s.revoke(try, n.lease)
		cancel()
		if err == nil {
			n.gone.Store(true)
			return
		}
		err = s.cfg.explain(ErrNoAnswer, err)
		s.setReason(fmt.Errorf("the last one was lost, and cannot be ended: %w", err))
		if !pause.Wait(ctx) {
			return
		}
	}
}

// revoke ends a lease. It is no error if there is none.
func (s *Store) revoke(ctx context.Context, lease int64) error {
	_, _, err := request(ctx, s.client, s.client.lease.LeaseRevoke, &pb.LeaseRevokeRequest{ID: lease})
	if is(err, rpctypes.ErrGRPCLeaseNotFound) {
		return nil
	}
	return err
}

// keeper sends keep-alives on one stream as long as that works. It sends one at a time, so that
// each answer belongs to the last request.
type keeper struct {
	s      *Store
	stream pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

// renew renews the lease once. TTL is 0 in the answer if there is no such lease.
func (k *keeper) renew(ctx context.Context, lease int64, timeout time.Duration) (
	*pb.LeaseKeepAliveResponse, error,
) {
	if k.stream == nil {
		if err := k.open(ctx, timeout); err != nil {
			return nil, plain(err)
		}
	}
	stop := time.AfterFunc(timeout, k.cancel)
	defer stop.Stop()
	_ = k.stream.Send(&pb.LeaseKeepAliveRequest{ID: lease}) // Recv has the reason, too
	r, err := k.stream.Recv()
	if err == nil {
		return r, nil
	}
	if k.s.client.tokenIsOld(err) {
		used, _ := k.s.client.current()
		login, cancel := context.WithTimeout(ctx, timeout)
		err = errors.Join(err, k.s.client.relogin(login, used))
		cancel()
	}
	k.close()
	return nil, plain(err)
}

func (k *keeper) open(ctx context.Context, timeout time.Duration) error {
	login, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := k.s.client.ensureToken(login); err != nil {
		return err
	}
	// A member that has lost its leader ends the stream. The next stream goes to another member.
	ctx, k.cancel = context.WithCancel(clientv3.WithRequireLeader(ctx))
	stop := time.AfterFunc(timeout, k.cancel)
	defer stop.Stop()
	var err error
	if k.stream, err = k.s.client.lease.LeaseKeepAlive(ctx); err != nil {
		k.close()
	}
	return err
}

func (k *keeper) close() {
	if k.cancel != nil {
		k.cancel()
	}
	k.stream, k.cancel = nil, nil
}
