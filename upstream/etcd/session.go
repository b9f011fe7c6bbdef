package etcd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// session is one lease at etcd, under which all of the daemon's keys stand.
type session struct {
	no      uint64
	lease   int64
	key     string // stands as long as the lease does; see fence
	cluster uint64 // the cluster's identity
	until   atomic.Int64
	// fence is the revision at which key was last written. Whoever takes a lock
	// compares it, so that writing key anew keeps out every request to take one
	// that is still on its way: one without an answer can be settled for good.
	fence atomic.Int64
	lost  atomic.Bool // its deadline has passed, or the store has ended it
	gone  atomic.Bool // the store has confirmed that it is no more, and none of its keys
}

// oldest is the oldest etcd whose nested transactions and keep-alives do what is
// relied on here.
var oldest = [3]int{3, 4, 0}

// revokesLiveLeases reports whether version v has etcd issue 15247: a member that has lost the
// leadership without noticing can still have live leases revoked, or confirm a keep-alive.
func revokesLiveLeases(v [3]int) bool {
	return older(v, [3]int{3, 4, 29}) || !older(v, [3]int{3, 5, 0}) && older(v, [3]int{3, 5, 13})
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

// live makes sessions, keeps each as long as it goes, ends it, and makes the next,
// until ctx ends. Each has ended before the next begins.
func (s *Store) live(ctx context.Context, n *session) {
	for ctx.Err() == nil {
		if n == nil {
			if n = s.makeSession(ctx); n == nil {
				return
			}
			s.enter(n)
		}
		err := s.keep(ctx, n)
		if ctx.Err() != nil {
			return
		}
		s.lose(n, err)
		s.end(ctx, n)
		n = nil
	}
}

// enter makes n the present session.
func (s *Store) enter(n *session) {
	s.last.Store(n.no)
	s.lockKeys.enter()
	s.cur.Store(n)
	s.publish(upstream.Session{No: n.no, Until: n.until.Load()})
	s.log.Info("session at etcd", zap.String("event", "store_session"), zap.String("addr", s.cfg.addr()),
		zap.Uint64("no", n.no), zap.String("lease", strconv.FormatInt(n.lease, 16)))
}

// lose says that n is no more.
func (s *Store) lose(n *session, why error) {
	s.setWhy(fmt.Errorf("the last one was lost: %w", why))
	n.lost.Store(true)
	s.publish(upstream.Session{No: n.no, Lost: true})
	s.lockKeys.drop(n)
	s.log.Error("session at etcd lost", zap.String("event", "store_session_lost"), zap.String("addr", s.cfg.addr()),
		zap.Uint64("no", n.no), zap.Error(why))
}

// publish leaves the newest news in the stream. Only the session's goroutine
// calls it, or start.
func (s *Store) publish(x upstream.Session) {
	select {
	case <-s.sessions:
	default:
	}
	s.sessions <- x
}

// makeSession tries until it has a session, or ctx ends: then it is nil. The lease
// keeps its id from try to try, so that one whose grant was not answered is not
// left behind.
func (s *Store) makeSession(ctx context.Context) *session {
	id, pause, said := newLeaseID(), pauseMin, ""
	for {
		try, cancel := context.WithTimeout(ctx, 2*s.cfg.Timeout)
		n, err := s.begin(try, id)
		cancel()
		if err == nil {
			return n
		}
		if ctx.Err() != nil {
			return nil
		}
		s.setWhy(err)
		if errors.Is(err, errLeaseEnded) {
			id = newLeaseID()
		}
		if msg := err.Error(); msg != said {
			s.log.Warn("no session at etcd", zap.String("event", "store_no_session"), zap.Error(err))
			said = msg
		}
		if !s.sleep(ctx, pause) {
			return nil
		}
		pause = min(2*pause, pauseMax)
	}
}

// sleep waits for d, more or less; no when ctx ends.
func (s *Store) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d/2 + mrand.N(d)):
		return true
	}
}

var errLeaseEnded = errors.New("the lease has ended")

// begin makes a session with the lease id, or takes over what an earlier try has
// made of it.
func (s *Store) begin(ctx context.Context, id int64) (*session, error) {
	if err := s.judge(ctx); err != nil {
		return nil, err
	}
	n := &session{no: s.last.Load() + 1, lease: id, key: s.names.session(id)}
	high := s.high.Load() // before the request: others may raise it meanwhile
	sent, ttl, h, err := s.grant(ctx, id)
	if err != nil {
		return nil, s.cfg.explain(ErrNoAnswer, fmt.Errorf("grant lease: %w", err))
	}
	if h.Revision < high {
		return nil, fmt.Errorf("%w: %s is at revision %d and was at %d: it has lost data, and fences would fall "+
			"(raise fence_epoch on every host by that much, for semaphores by 256 times that much, then restart the daemons)", ErrServer, s.cfg.addr(), h.Revision, high)
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
		return nil, fmt.Errorf("make session at %s: %w before it began", s.cfg.addr(), errLeaseEnded)
	}
	return n, nil
}

// grant asks for the lease. sent is the time before what granted it was sent.
func (s *Store) grant(ctx context.Context, id int64) (sent int64, ttl time.Duration, h *pb.ResponseHeader, err error) {
	var r *pb.LeaseGrantResponse
	sent = s.clock()
	_, err = s.client.call(ctx, func(ctx context.Context) (err error) {
		sent = s.clock()
		r, err = s.client.lease.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: id, TTL: int64(s.cfg.TTL / time.Second)})
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

// writeKey writes the session's key, and with it a new fence.
func (s *Store) writeKey(ctx context.Context, n *session) error {
	req := &pb.TxnRequest{Success: []*pb.RequestOp{putOp(n.key, "", n.lease), countOp(s.root, s.behind())}}
	var r *pb.TxnResponse
	_, err := s.client.call(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.kv.Txn(ctx, req)
		return err
	})
	if err != nil {
		return err
	}
	s.saw(r.Header.Revision)
	raise(&n.fence, r.Header.Revision)
	return nil
}

// judge looks at a member: whether it is an etcd that may be used.
func (s *Store) judge(ctx context.Context) error {
	var r *pb.StatusResponse
	_, err := s.client.call(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.maint.Status(ctx, &pb.StatusRequest{})
		return err
	})
	if err != nil {
		return s.cfg.explain(ErrNoAnswer, err)
	}
	v, ok := version(r.Version)
	switch {
	case !ok:
		return fmt.Errorf("%w: %s says that its version is %q", ErrServer, s.cfg.addr(), r.Version)
	case older(v, oldest):
		return fmt.Errorf("%w: the version of %s is %s, at least %d.%d is needed", ErrServer, s.cfg.addr(), r.Version, oldest[0], oldest[1])
	case r.IsLearner:
		return fmt.Errorf("%w: %s is a learner, which takes no writes: take it out of the store URL until it is promoted", ErrServer, s.cfg.addr())
	}
	if revokesLiveLeases(v) {
		s.log.Warn("this etcd can end live leases when its leader changes, so that two hosts hold a lock at once; "+
			"upgrade it to 3.4.29, 3.5.13 or later",
			zap.String("version", r.Version), zap.String("addr", s.cfg.addr()))
	}
	return nil
}

func version(s string) (v [3]int, ok bool) {
	s, _, _ = strings.Cut(s, "-")
	parts := strings.SplitN(s, ".", 3)
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, len(parts) >= 2
}

func older(a, b [3]int) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// keep renews n until it is lost, and says why it is.
func (s *Store) keep(ctx context.Context, n *session) error {
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
		looked := s.wait(ctx, min(due, n.until.Load()))
		now := s.clock()
		if now >= n.until.Load() {
			return errors.Join(errors.New("its deadline has passed"), last)
		}
		if ctx.Err() != nil || now < due && !looked {
			continue
		}
		a, err := k.renew(ctx, n.lease, max(pauseMin, min(s.cfg.Timeout, ttl/3)))
		switch {
		case err != nil:
			last = s.cfg.explain(ErrNoAnswer, fmt.Errorf("keep lease alive: %w", err))
			pause = min(max(pauseMin, 2*pause), ttl/10)
			continue
		case a.TTL <= 0 && s.keyStands(ctx, n):
			last = errors.New("a member does not know its lease, whose key stands")
			pause = min(max(pauseMin, 2*pause), ttl/10)
			continue
		case a.TTL <= 0:
			n.gone.Store(true)
			return errors.New("etcd knows its lease no more")
		case a.Header.ClusterId != n.cluster:
			return fmt.Errorf("another cluster answers at %s", s.cfg.addr())
		}
		sent, pause, last = now, 0, nil
		if until := cache.LeaseDeadline(sent, a.TTL*int64(time.Second)); until > n.until.Load() {
			n.until.Store(until)
			s.publish(upstream.Session{No: n.no, Until: until})
		}
		if looked && !s.stands(ctx, n) {
			pause = pauseMin
		}
	}
	return ctx.Err()
}

// stands makes sure that the session's key is there, once somebody has missed it.
func (s *Store) stands(ctx context.Context, n *session) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.writeKey(ctx, n) == nil
}

// keyStands says whether the session's key is there, by a read that all members agree on, and so the
// lease: a member that has just become the leader may not have come to it yet.
func (s *Store) keyStands(ctx context.Context, n *session) bool {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var r *pb.RangeResponse
	_, err := s.client.call(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.kv.Range(ctx, &pb.RangeRequest{Key: []byte(n.key)})
		return err
	})
	return err == nil && len(r.Kvs) == 1 && r.Kvs[0].Lease == n.lease
}

// wait waits until the boot clock is at t, or somebody wants the session looked
// at: then it is yes.
func (s *Store) wait(ctx context.Context, t int64) (looked bool) {
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

// end makes sure that nothing stands under n any more.
func (s *Store) end(ctx context.Context, n *session) {
	for pause := pauseMin; !n.gone.Load() && ctx.Err() == nil; pause = min(2*pause, pauseMax) {
		try, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		err := s.revoke(try, n.lease)
		cancel()
		if err == nil {
			n.gone.Store(true)
			return
		}
		s.setWhy(fmt.Errorf("the last one was lost, and cannot be ended: %w", s.cfg.explain(ErrNoAnswer, err)))
		if !s.sleep(ctx, pause) {
			return
		}
	}
}

// revoke ends a lease; it is no error that there is none.
func (s *Store) revoke(ctx context.Context, lease int64) error {
	_, err := s.client.call(ctx, func(ctx context.Context) error {
		_, err := s.client.lease.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: lease})
		return err
	})
	if is(err, rpctypes.ErrGRPCLeaseNotFound) {
		return nil
	}
	return err
}

// keeper sends keep-alives on a stream that it keeps as long as that works, one at
// a time, so that each answer belongs to the one that was asked for.
type keeper struct {
	s      *Store
	stream pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

// renew renews the lease once. TTL is 0 in the answer when there is no such lease.
func (k *keeper) renew(ctx context.Context, lease int64, timeout time.Duration) (*pb.LeaseKeepAliveResponse, error) {
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
	// A member that has lost its leader ends the stream, and another one is asked.
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
