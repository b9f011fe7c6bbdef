package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// Store is a table of a PostgreSQL server used for locks. It is safe for concurrent use.
type Store struct {
	cfg      Config
	names    names
	log      *zap.Logger
	base     *pgconn.Config
	pool     pool
	instance string // the part of our tokens that no other Store's tokens have
	fences   *upstream.FenceClock
	stuck    driverkit.Stuck
	hints    driverkit.Hints
	asides   chan struct{} // see aside

	cancel context.CancelFunc
	wg     sync.WaitGroup

	seen driverkit.Seen[server]
}

var _ upstream.Store = (*Store)(nil)

// Connections returns the number of open connections.
func (s *Store) Connections() int { return s.pool.connections() }

// Open connects to the server, makes the tables if they do not exist, and checks that both can be
// used. Its errors name the setting to change.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s, err := OpenLazy(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout+s.patience())
	defer cancel()
	if err := s.reach(ctx); err != nil {
		err = fmt.Errorf("open store: postgres at %s, as the store URL says: %w",
			cfg.Addr(), s.advice(err))
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenLazy is Open without waiting for the server: each connection is checked when it is made, and
// until one passes, every op is refused with the reason. It fails if a file that cfg names cannot
// be read.
func OpenLazy(cfg Config) (*Store, error) {
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{cfg: cfg, names: newNames(&cfg), log: cfg.Log, instance: cfg.Instance,
		fences: cfg.Fences, asides: make(chan struct{}, 1), hints: driverkit.NewHints(hintBuffer)}
	var err error
	if s.base, err = s.baseOptions(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.pool.init()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(func() { s.listenAll(ctx) })
	s.wg.Go(func() { driverkit.Purge(ctx, s.log, s.names.locks, s.advice, s.purge) })
	return s, nil
}

// Instance returns the instance id in this store's tokens.
func (s *Store) Instance() string { return s.instance }

// Info describes this store. Its safety is linearizable once a server has been seen that keeps its
// confirmed commits in a crash, and in a failover to one of its present standbys.
func (s *Store) Info() upstream.Info {
	safety := "best-effort"
	if s.seen.Is(func(v *server) bool { return v.durable() && v.replicated() }) {
		safety = "linearizable"
	}
	return upstream.Info{Name: "postgres", Safety: safety, MinTTL: 500 * time.Millisecond,
		Rebase: true, Queue: true, Keeps: maxTTL, Timeout: s.cfg.Timeout}
}

// Capabilities returns the optional parts of the contract that the store implements. The Mover does
// not pass on the places in queues, because joins renew them.
func (s *Store) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{Lister: s, Registrar: s, Mover: s.cfg.Mover(), Connections: s.Connections}
}

// Hints returns the stream of notifications.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions returns nil, because leases end with their own TTLs.
func (s *Store) Sessions() <-chan upstream.Session { return nil }

// Close closes the connections and ends the goroutines. It must not be called twice, or
// concurrently with Apply.
func (s *Store) Close() error {
	s.cancel()
	s.pool.close()
	s.wg.Wait()
	close(s.hints)
	return nil
}

// Ping checks in one round trip whether locks can be written now, on a connection that has passed
// its checks.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return driverkit.Down(fmt.Errorf("postgres at %s: %w", s.cfg.Addr(), s.advice(err)))
	}
	return nil
}

// reach checks that the server is not read-only.
func (s *Store) reach(ctx context.Context) error {
	c, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer s.give(c)
	rows, err := c.query(ctx,
		"SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on', "+clock)
	switch {
	case err != nil && !rolledBack(err):
		s.pool.dropIdle()
		return err
	case err != nil:
		return err
	case len(rows) != 1:
		return errAnswer
	case string(rows[0][0]) != "f":
		c.close()
		return errReadOnly
	}
	s.fences.SawClock(parseInt(rows[0][1]))
	return nil
}
