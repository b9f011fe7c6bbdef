package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const hintBuffer = 1024

// Store is a ZooKeeper used for locks. It is safe for concurrent use.
type Store struct {
	cfg   Config
	log   *zap.Logger
	clock upstream.Clock
	host  string
	acl   []zk.ACL

	hints   driverkit.Hints
	toCheck chan struct{} // has an element when a lock or semaphore has to be checked
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
	news   driverkit.Sessions // guarded by newsMu for writing

	mu      sync.Mutex
	cur     *session // the current session, or nil; guarded by mu, as are the fields below
	no      uint64   // the number of the last session
	why     error    // why there is no session
	tries   int      // failed attempts to make a session since the last one
	logged  string   // the last logged error of these attempts
	changed chan struct{}
}

var _ upstream.Store = (*Store)(nil)

// Open connects and makes a session. It blocks until then, or until the servers have been tried
// once.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s, err := OpenLazy(cfg)
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
			return nil, errors.Join(fmt.Errorf("open store: %s: %w",
				cfg.where(), ctx.Err()), s.Close())
		}
	}
}

// OpenLazy is Open without waiting for the servers. Until there is a session, every op is refused
// with the reason. OpenLazy fails if a file that cfg names cannot be read.
func OpenLazy(cfg Config) (*Store, error) {
	if cfg.url == nil {
		return nil, errors.New("open store: the configuration is not one of Parse")
	}
	if cfg.Clock == nil {
		return nil, errors.New("open store: no clock")
	}
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := newStore(cfg)
	if !cfg.Open {
		s.acl = zk.AuthACL(zk.PermAll)
	}
	if _, err := cfg.url.ReadFiles(cfg.Servers[0]); err != nil {
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
	return &Store{cfg: cfg, log: cfg.Log, clock: cfg.Clock, high: cfg.Highest,
		host: hostName(), acl: zk.WorldACL(zk.PermAll),
		hints: driverkit.NewHints(hintBuffer), news: driverkit.NewSessions(),
		toCheck: make(chan struct{}, 1), questions: make(chan struct{}, 1),
		asks:    asks{dir: cfg.Chroot + "/" + internalDir + "/" + askPrefix},
		changed: make(chan struct{}), idle: newIdleParents(cmp.Or(cfg.idle, defaultIdle))}
}

// Info returns the properties of the store.
func (s *Store) Info() upstream.Info {
	ttl := s.cfg.Session
	if se := s.current(); se != nil {
		ttl = se.ttl
	}
	return upstream.Info{Name: "zookeeper", Safety: "linearizable", MinTTL: 100 * time.Millisecond,
		Session: ttl, Permits: true, Queue: true, Notice: checkInterval, Timeout: s.cfg.Timeout}
}

// Connections returns the number of connections to servers, which is usually one.
func (s *Store) Connections() int { return int(s.open.Load()) }

// Capabilities returns the optional parts of the contract that the store implements.
func (s *Store) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{
		Lister: s, Registrar: s, Asker: s, Answerer: s,
		Sweeper: s, Noter: s, Connections: s.Connections,
	}
}

// Hints returns the stream of hints that the watches give.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions returns the stream of the session's deadlines. It keeps only the newest.
func (s *Store) Sessions() <-chan upstream.Session { return s.news }

// Ping asks the quorum in one round trip.
func (s *Store) Ping(ctx context.Context) error {
	se, err := s.session()
	if err != nil {
		return err
	}
	if err := se.confirm(ctx); err != nil {
		return driverkit.Down(s.cfg.explain(err))
	}
	return nil
}

// Close closes the connection and ends the store's goroutines. It closes the session at the server
// if the session has no nodes. Otherwise it leaves the session to expire, so that locks stay held
// until their deadline. Close must not run concurrently with Apply, or be called twice.
func (s *Store) Close() error {
	s.cancel()
	s.wg.Wait()
	s.listed.drop()
	if se := s.current(); se != nil {
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
