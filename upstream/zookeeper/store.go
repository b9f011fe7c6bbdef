package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const hintBuffer = 1024

// Option changes how a Store is opened.
type Option func(*Store)

// WithLogger makes the store log to l.
func WithLogger(l *zap.Logger) Option { return func(s *Store) { s.log = l } }

// WithClock gives the store its boot clock. There is no other.
func WithClock(c upstream.Clock) Option { return func(s *Store) { s.clock = c } }

// WithHighest gives the store the highest transaction id that has been seen at these servers. The store raises it,
// and refuses a server that is at a lower one. Several Stores may share it.
func WithHighest(zxid *atomic.Int64) Option { return func(s *Store) { s.high = zxid } }

// Store is a ZooKeeper used for locks. It is safe for concurrent use.
type Store struct {
	cfg   Config
	log   *zap.Logger
	clock upstream.Clock
	host  string
	acl   []zk.ACL

	hints   chan upstream.Hint
	stirred chan struct{} // a lease's lock has to be looked at
	idle    *idleParents
	listed  listCache
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	open    atomic.Int64  // connections
	high    *atomic.Int64 // the highest transaction id in any reply

	heldFor   atomic.Pointer[upstream.HeldFor] // answers other daemons; nil before Answer
	asks      asks
	questions chan struct{} // has an element when there may be a question

	newsMu sync.Mutex
	news   chan upstream.Session // guarded by newsMu for writing

	mu      sync.Mutex
	cur     *session // the present session, or none; guarded by mu, as is all below
	no      uint64   // of the last session
	why     error    // why there is no session
	tries   int      // failed attempts to make one since the last
	logged  string   // the last of these failures that was logged
	changed chan struct{}
}

var (
	_ upstream.Store     = (*Store)(nil)
	_ upstream.Lister    = (*Store)(nil)
	_ upstream.Sweeper   = (*Store)(nil)
	_ upstream.Connected = (*Store)(nil)
)

// Open connects and makes a session. The error says what to change.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	s, err := OpenLazy(cfg, opts...)
	if err != nil {
		return nil, err
	}
	for {
		s.mu.Lock()
		cur, why, tries, changed := s.cur, s.why, s.tries, s.changed
		s.mu.Unlock()
		if cur != nil {
			return s, nil
		}
		if tries > 0 {
			return nil, errors.Join(fmt.Errorf("open store: %w", why), s.Close())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("open store: %s: %w", cfg.where(), ctx.Err()), s.Close())
		}
	}
}

// OpenLazy is Open without waiting for the servers: until there is a session every
// op is refused with the reason. It fails when a file that cfg names cannot be read.
func OpenLazy(cfg Config, opts ...Option) (*Store, error) {
	s := newStore(cfg)
	for _, o := range opts {
		o(s)
	}
	if cfg.url == nil {
		return nil, errors.New("open store: the configuration is not one of Parse")
	}
	if s.clock == nil {
		return nil, errors.New("open store: no clock")
	}
	if !cfg.Open {
		s.acl = zk.AuthACL(zk.PermAll)
	}
	if _, err := cfg.login(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if _, err := cfg.url.TLS.Config(cfg.Servers[0]); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.why = s.noSession(errNoConnection)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(func() { s.run(s.ctx) })
	s.wg.Go(func() { s.watch(s.ctx) })
	s.wg.Go(func() { s.answer(s.ctx) })
	s.wg.Go(func() { s.keepRemovingIdle(s.ctx) })
	return s, nil
}

// newStore returns a Store without goroutines.
func newStore(cfg Config) *Store {
	return &Store{cfg: cfg, log: zap.NewNop(), host: hostName(), acl: zk.WorldACL(zk.PermAll),
		hints: make(chan upstream.Hint, hintBuffer), news: make(chan upstream.Session, 1), stirred: make(chan struct{}, 1),
		asks: asks{dir: cfg.Chroot + "/" + own + "/" + askPrefix}, questions: make(chan struct{}, 1),
		changed: make(chan struct{}), idle: newIdleParents(), high: new(atomic.Int64)}
}

// Info says what kind of store this is.
func (s *Store) Info() upstream.Info {
	ttl := s.cfg.Session
	if se := s.present(); se != nil {
		ttl = se.ttl
	}
	return upstream.Info{Name: "zookeeper", Safety: "linearizable", MinTTL: 100 * time.Millisecond,
		Session: ttl, Permits: true, Queue: true, Notice: lookEvery, Timeout: s.cfg.Timeout}
}

// Connections is how many there are: one, mostly.
func (s *Store) Connections() int { return int(s.open.Load()) }

// Hints is the stream of what the watches told.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is the stream of the session's deadlines; one that nobody has read yet
// gives way to the next.
func (s *Store) Sessions() <-chan upstream.Session { return s.news }

// Ping asks the quorum in one round trip.
func (s *Store) Ping(ctx context.Context) error {
	se, err := s.session()
	if err != nil {
		return err
	}
	if err := se.confirm(ctx); err != nil {
		err = s.cfg.explain(err)
		if !errors.Is(err, upstream.ErrDown) {
			err = fmt.Errorf("%w: %w", upstream.ErrDown, err)
		}
		return err
	}
	return nil
}

// Close gives the connection back and ends the store's goroutines. The session is
// closed at the server when nothing hangs on it; otherwise it is left to expire
// there, so that what is held stays held to its deadline. It must not run at the
// same time as Apply, nor be called twice.
func (s *Store) Close() error {
	s.cancel()
	s.wg.Wait()
	s.listed.drop()
	if se := s.present(); se != nil {
		se.mu.Lock()
		polite := len(se.lockNodes) == 0
		se.mu.Unlock()
		se.shut(polite)
	}
	close(s.hints)
	s.newsMu.Lock()
	close(s.news)
	s.newsMu.Unlock()
	return nil
}

// present is the session that stands; nil when there is none.
func (s *Store) present() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// session is the one that ops go out under.
func (s *Store) session() (*session, error) {
	s.mu.Lock()
	se, why := s.cur, s.why
	s.mu.Unlock()
	if se == nil {
		if !errors.Is(why, upstream.ErrDown) {
			why = fmt.Errorf("%w: %w", upstream.ErrDown, why)
		}
		return nil, why
	}
	return se, se.line()
}

func (s *Store) install(se *session) {
	s.mu.Lock()
	s.cur, s.why, s.tries, s.logged = se, nil, 0, ""
	s.signalLocked()
	s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.stir()
	}
}

func (s *Store) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A server can first be unreachable and then be found unusable. The log must show the second, too.
	if s.tries++; s.tries == 1 || errors.Is(err, ErrServer) && err.Error() != s.logged {
		s.logged = err.Error()
		s.log.Warn("no session at zookeeper", zap.Error(err))
	}
	s.why = err
	s.signalLocked()
}

func (s *Store) signalLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// noSession says why nothing can be asked.
func (s *Store) noSession(why error) error {
	if why == zk.ErrSessionExpired {
		why = errors.New("the last one is over")
	}
	return fmt.Errorf("%w: %w, %s: %w", upstream.ErrDown, ErrNothingSent, s.cfg.where(), why)
}

// publish leaves the newest word of the session in the stream.
func (s *Store) publish(n upstream.Session) {
	s.newsMu.Lock()
	defer s.newsMu.Unlock()
	select {
	case <-s.news:
	default:
	}
	s.news <- n
}

// valid says whether an op can be asked for at all.
func valid(op *upstream.Op) error {
	switch {
	case op.Kind < cache.OpTry || op.Kind > cache.OpPeek:
		return fmt.Errorf("%w: operation %d is unknown", ErrRefused, op.Kind)
	case op.Token > maxToken:
		return fmt.Errorf("%w: token %d is out of range", ErrRefused, op.Token)
	case op.Key == "":
		return fmt.Errorf("%w: the key is empty", ErrRefused)
	case op.Mode == cache.Permit:
		return validPermit(op)
	}
	return nil
}
