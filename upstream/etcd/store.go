package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// hintBuffer is large enough for a hint of every watch at the same time.
const hintBuffer = maxWatches

// Store is an etcd used for locks. It is safe for concurrent use.
type Store struct {
	names
	cfg    Config
	log    *zap.Logger
	clock  upstream.Clock
	client *client

	cur      atomic.Pointer[session] // the present session, or the last one; nil before the first
	last     atomic.Uint64           // the last session's number
	granted  atomic.Int64            // the TTL that the server grants, in nanoseconds
	high     *atomic.Int64           // the highest revision that an answer had
	maxOps   atomic.Int64            // the largest number of operations of one transaction
	maxBytes atomic.Int64            // the largest transaction in bytes, by our own estimate
	reason   atomic.Pointer[error]   // why there is no session
	kick     chan struct{}           // has an element if the session has to be checked
	turn     chan struct{}           // has an element while a session is lost, or left to a successor
	lockKeys lockKeys

	heldFor  atomic.Pointer[upstream.HeldFor] // answers other daemons; nil before Answer
	outgoing outgoingQuestions
	incoming chan *mvccpb.KeyValue // questions of other daemons; nil to read those that are there

	hints    driverkit.Hints
	sessions driverkit.Sessions // written by the session's goroutine, or by start
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

var _ upstream.Store = (*Store)(nil)

// Open connects, checks that the store can be used, and makes the session. Its error says what to
// change.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s, err := newStore(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*cfg.Timeout)
	defer cancel()
	n, err := s.beginSession(ctx, newLeaseID())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.client.close())
	}
	s.start(n)
	return s, nil
}

// OpenLazy is Open without waiting for the server. Every op is refused with the reason until the
// server has been reached and checked and there is a session. OpenLazy fails if it cannot read a
// file that cfg names.
func OpenLazy(cfg Config) (*Store, error) {
	s, err := newStore(cfg)
	if err != nil {
		return nil, err
	}
	s.start(nil)
	return s, nil
}

func newStore(cfg Config) (*Store, error) {
	if cfg.url == nil {
		return nil, fmt.Errorf("open store: %w: it does not come from Parse", ErrConfig)
	}
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{
		names: names{root: cfg.Prefix + "/"}, cfg: cfg,
		log: cfg.Log, clock: cfg.Clock, high: cfg.Highest,
		kick: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		outgoing: newOutgoing(), incoming: make(chan *mvccpb.KeyValue, maxQuestions),
		hints: driverkit.NewHints(hintBuffer), sessions: driverkit.NewSessions(),
	}
	s.granted.Store(int64(cfg.TTL))
	s.maxOps.Store(defaultMaxOps)
	s.maxBytes.Store(defaultMaxBytes)
	s.lockKeys.init()
	s.setReason(errors.New("the server has not been reached yet"))
	var err error
	if s.client, err = newClient(&s.cfg); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

// start starts the goroutines. n is the session if there is one already.
func (s *Store) start(n *session) {
	if n != nil {
		s.useSession(n)
	}
	s.run(n)
}

func (s *Store) run(n *session) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(func() { s.runSessions(ctx, n) })
	s.wg.Go(func() { s.runWatches(ctx) })
	s.wg.Go(func() { s.checkKeys(ctx) })
	s.wg.Go(func() { s.answerQuestions(ctx) })
	s.wg.Go(func() { s.removeQuestions(ctx) })
}

// Info describes the store. Session is the TTL that the server grants, once it has.
func (s *Store) Info() upstream.Info {
	return upstream.Info{
		Name: "etcd", Safety: "linearizable", MinTTL: 100 * time.Millisecond,
		Session: time.Duration(s.granted.Load()), Queue: true, Permits: true,
		Notice: watchAfter, Gather: true, Timeout: s.cfg.Timeout,
	}
}

// Connections is the number of connections to all members.
func (s *Store) Connections() int { return int(s.client.open.Load()) }

// Capabilities returns the optional parts of the contract that the store implements.
func (s *Store) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{
		Lister: s, Registrar: s, Asker: s, Answerer: s, Sweeper: s,
		Mover: s, Noter: s, Connections: s.Connections,
	}
}

// Hints is the stream of hints about keys.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is the stream of the session's deadlines.
func (s *Store) Sessions() <-chan upstream.Session { return s.sessions }

// Close ends the goroutines and the connections. It revokes a session under which there is nothing;
// any other session ends at its deadline. It must not run at the same time as Apply, nor be called
// twice.
func (s *Store) Close() error {
	if s.cancel == nil { // a successor that has never begun
		return s.client.close()
	}
	s.cancel()
	s.wg.Wait()
	n := s.cur.Load()
	if n != nil && !n.gone.Load() && s.lockKeys.empty() &&
		!(n.lost.Load() && s.clock() < n.until.Load()) { // see endSession
		ctx, cancel := context.WithTimeout(context.Background(), min(s.cfg.Timeout, time.Second))
		_ = s.revoke(ctx, n.lease) // after an error the session ends by itself
		cancel()
	}
	close(s.hints)
	close(s.sessions)
	return s.client.close()
}

// Ping reads the members' alarms by a request that they must commit. It takes at most Timeout. It
// also fails while there is no session.
func (s *Store) Ping(ctx context.Context) error {
	r, err := bounded(ctx, s, s.client.maint.Alarm, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err == nil {
		err = alarmed(r.Alarms)
	}
	if err == nil {
		_, err = s.liveSession()
	}
	if err == nil {
		return nil
	}
	return driverkit.Down(s.cfg.explain(ErrNoAnswer, err))
}

// alarmed returns an error for alarms that matter: no space, or data that differs between members.
func alarmed(alarms []*pb.AlarmMember) error {
	for _, a := range alarms {
		switch a.Alarm {
		case pb.AlarmType_NOSPACE:
			return fmt.Errorf("%w: it has raised the alarm NOSPACE: its database is full "+
				"(compact, defragment, then etcdctl alarm disarm)", ErrServer)
		case pb.AlarmType_CORRUPT:
			return fmt.Errorf("%w: it has raised the alarm CORRUPT: its members' data differ",
				ErrServer)
		}
	}
	return nil
}
