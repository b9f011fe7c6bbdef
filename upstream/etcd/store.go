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

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Every watch may have something to say at once.
const hintBuffer = maxWatches

// Option changes how a Store is opened.
type Option func(*Store)

// WithLogger makes the store log to l.
func WithLogger(l *zap.Logger) Option { return func(s *Store) { s.log = l } }

// WithClock gives the boot clock. Without it the process's own monotonic clock is
// taken, which does not count the time that a machine sleeps: for tests.
func WithClock(c upstream.Clock) Option { return func(s *Store) { s.clock = c } }

// WithHighest gives the store the highest revision that has been seen at these servers. The store raises it, and
// refuses a server that is at a lower one. Several Stores may share it.
func WithHighest(rev *atomic.Int64) Option { return func(s *Store) { s.high = rev } }

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
	most     atomic.Int64            // operations in a transaction that the server takes
	bytes    atomic.Int64            // … and bytes, by our own estimate
	why      atomic.Pointer[error]   // why there is no session
	kick     chan struct{}           // the session has to be looked at
	lockKeys lockKeys

	heldFor   atomic.Pointer[upstream.HeldFor] // answers other daemons; nil before Answer
	asks      asks
	questions chan *mvccpb.KeyValue // of other daemons; nil to read those that are there

	hints    chan upstream.Hint
	sessions chan upstream.Session
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

var (
	_ upstream.Store     = (*Store)(nil)
	_ upstream.Lister    = (*Store)(nil)
	_ upstream.Sweeper   = (*Store)(nil)
	_ upstream.Connected = (*Store)(nil)
)

// Open connects, checks that the store can be used, and makes the session. The
// error says what to change.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	s, err := newStore(cfg, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*cfg.Timeout)
	defer cancel()
	n, err := s.begin(ctx, newLeaseID())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.client.close())
	}
	s.start(n)
	return s, nil
}

// OpenLazy is Open without waiting for the server: until it has been reached,
// judged good and given a session, every op is refused with the reason. It fails
// when a file that cfg names cannot be read.
func OpenLazy(cfg Config, opts ...Option) (*Store, error) {
	s, err := newStore(cfg, opts)
	if err != nil {
		return nil, err
	}
	s.start(nil)
	return s, nil
}

func newStore(cfg Config, opts []Option) (*Store, error) {
	if cfg.url == nil {
		return nil, fmt.Errorf("open store: %w: it does not come from Parse", ErrConfig)
	}
	s := &Store{names: names{root: cfg.Prefix + "/"}, cfg: cfg, log: zap.NewNop(), high: new(atomic.Int64), kick: make(chan struct{}, 1),
		asks: newAsks(), questions: make(chan *mvccpb.KeyValue, questionsMost),
		hints: make(chan upstream.Hint, hintBuffer), sessions: make(chan upstream.Session, 1)}
	s.granted.Store(int64(cfg.TTL))
	s.most.Store(maxTxnOps)
	s.bytes.Store(maxBytes)
	s.lockKeys.init()
	for _, o := range opts {
		o(s)
	}
	if s.clock == nil {
		start := time.Now()
		s.clock = func() int64 { return int64(time.Since(start)) + 1 }
	}
	s.setWhy(errors.New("the server has not been reached yet"))
	var err error
	if s.client, err = newClient(&s.cfg); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	return s, nil
}

// start starts the goroutines; n is the session if there is one already.
func (s *Store) start(n *session) {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if n != nil {
		s.enter(n)
	}
	s.run(ctx, n)
}

func (s *Store) run(ctx context.Context, n *session) {
	s.wg.Go(func() { s.live(ctx, n) })
	s.wg.Go(func() { s.follow(ctx) })
	s.wg.Go(func() { s.look(ctx) })
	s.wg.Go(func() { s.answer(ctx) })
	s.wg.Go(func() { s.removeQuestions(ctx) })
}

// Info says what kind of store this is. Session is what the server grants, once
// it has.
func (s *Store) Info() upstream.Info {
	return upstream.Info{Name: "etcd", Safety: "linearizable", MinTTL: 100 * time.Millisecond,
		Session: time.Duration(s.granted.Load()), Queue: true, Permits: true, Notice: ripe, Gather: true, Timeout: s.cfg.Timeout}
}

// Connections is how many there are to all members.
func (s *Store) Connections() int { return int(s.client.open.Load()) }

// Hints is the stream of what was noticed about keys.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is the stream of the session's deadlines.
func (s *Store) Sessions() <-chan upstream.Session { return s.sessions }

// Close ends the goroutines and the connections. A session under which nothing
// stands is given back; any other ends at its deadline. It must not run at the same
// time as Apply, nor be called twice.
func (s *Store) Close() error {
	if s.cancel == nil { // it has never been more than a successor
		return s.client.close()
	}
	s.cancel()
	s.wg.Wait()
	if n := s.cur.Load(); n != nil && !n.gone.Load() && s.lockKeys.empty() {
		ctx, cancel := context.WithTimeout(context.Background(), min(s.cfg.Timeout, time.Second))
		_ = s.revoke(ctx, n.lease) // else it ends by itself
		cancel()
	}
	close(s.hints)
	close(s.sessions)
	return s.client.close()
}

// Ping has the members commit something, and looks at their alarms; it takes
// Timeout at most. It fails while there is no session, too.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var r *pb.AlarmResponse
	_, err := s.client.call(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.maint.Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
		return err
	})
	if err == nil {
		err = alarmed(r.Alarms)
	}
	if err == nil {
		_, err = s.liveSession()
	}
	if err == nil {
		return nil
	}
	err = s.cfg.explain(ErrNoAnswer, err)
	if !errors.Is(err, upstream.ErrDown) {
		err = fmt.Errorf("%w: %w", upstream.ErrDown, err)
	}
	return err
}

// alarmed says what alarms mean: no space, or data that differs between members.
func alarmed(alarms []*pb.AlarmMember) error {
	for _, a := range alarms {
		switch a.Alarm {
		case pb.AlarmType_NOSPACE:
			return fmt.Errorf("%w: it has raised the alarm NOSPACE: its database is full (compact, defragment, then etcdctl alarm disarm)", ErrServer)
		case pb.AlarmType_CORRUPT:
			return fmt.Errorf("%w: it has raised the alarm CORRUPT: its members' data differ", ErrServer)
		}
	}
	return nil
}

// liveSession is the session if something may be granted under it now.
func (s *Store) liveSession() (*session, error) {
	n := s.cur.Load()
	if n == nil || n.lost.Load() {
		return nil, s.noSession()
	}
	if s.clock() >= n.until.Load() {
		s.wake() // it is lost, and has to be ended
		return nil, s.noSession()
	}
	return n, nil
}

func (s *Store) noSession() error {
	return fmt.Errorf("%w: %w", ErrSession, *s.why.Load())
}

func (s *Store) setWhy(err error) { s.why.Store(&err) }

// wake has the session's goroutine look at once.
func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// saw takes note of a revision.
func (s *Store) saw(rev int64) { raise(s.high, rev) }

func raise(x *atomic.Int64, v int64) {
	for old := x.Load(); v > old && !x.CompareAndSwap(old, v); old = x.Load() {
	}
}

// hint passes a hint on, unless nobody keeps up with them.
func (s *Store) hint(k cache.HintKind, lock string) {
	s.sendHint(upstream.Hint{Kind: k, Key: lock})
}

func (s *Store) sendHint(h upstream.Hint) {
	select {
	case s.hints <- h:
	default:
	}
}
