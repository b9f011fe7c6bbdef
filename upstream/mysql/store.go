package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// maxTTL is the longest TTL: the end of a lease must be a number of 16 digits.
const maxTTL = 10 * 365 * 24 * time.Hour

// Store is a table of a MySQL or MariaDB server used for locks. It is safe for
// concurrent use.
type Store struct {
	cfg       Config
	log       *zap.Logger
	db        *sql.DB
	instance  string        // the part of our tokens that no other Store's tokens have
	requests  atomic.Uint64 // the number of the last request about a lock
	fences    *upstream.FenceClock
	batches   sync.Pool
	returning atomic.Bool // the server's writes can return the rows that they leave
	stuck     driverkit.Stuck
	semsStuck driverkit.Stuck
	watch     watch
	otherWork chan struct{} // see onOneConn

	permitsTexts [2]*permitsText // without and with returning
	// permitsBad is the reason why semaphores cannot be used, or nil.
	permitsBad atomic.Pointer[error]

	cancel context.CancelFunc
	wg     sync.WaitGroup

	seen driverkit.Seen[server]
}

var _ upstream.Store = (*Store)(nil)

// Connections returns the number of open connections.
func (s *Store) Connections() int { return s.db.Stats().OpenConnections }

// Open connects to the server, makes the table if it does not exist, and checks that both can be
// used. Its errors name the setting to change.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s, err := OpenLazy(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout+s.checkTimeout())
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store: mysql at %s, as the store URL says: %w",
			cfg.Addr(), s.advice(err)), s.Close())
	}
	return s, nil
}

// OpenLazy is like Open but does not wait for the server. Each connection is checked when it is
// made. Until one passes, every op is refused with the reason. OpenLazy returns an error if a file
// that cfg names cannot be read.
func OpenLazy(cfg Config) (*Store, error) {
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{cfg: cfg, log: cfg.Log, instance: cfg.Instance, fences: cfg.Fences,
		otherWork: make(chan struct{}, 1)}
	// A random beginning: the rows also have the numbers of the process that this one takes over from.
	s.requests.Store(rand.Uint64N(1 << 62))
	for i := range s.permitsTexts {
		s.permitsTexts[i] = newPermitsText(cfg.permitsTable(), s.instance, i == 1)
	}
	s.batches.New = func() any { return newBatch(s) }
	c, err := s.connector()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.db = sql.OpenDB(c)
	s.db.SetMaxOpenConns(maxConns)
	s.db.SetMaxIdleConns(maxConns)
	s.db.SetConnMaxLifetime(connLife)
	s.watch.init()
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.wg.Go(func() { s.pollAll(ctx) })
	s.wg.Go(func() { driverkit.Purge(ctx, s.log, s.cfg.Table, s.advice, s.purge, s.purgePermits) })
	return s, nil
}

// Instance returns the instance id in this store's tokens.
func (s *Store) Instance() string { return s.instance }

// Info returns the properties of the store. Its safety is linearizable once a server has been seen
// that keeps confirmed writes when it crashes.
func (s *Store) Info() upstream.Info {
	safety := "best-effort"
	if s.seen.Is((*server).durable) {
		safety = "linearizable"
	}
	return upstream.Info{Name: "mysql", Safety: safety, MinTTL: 500 * time.Millisecond,
		Rebase: true, Permits: true, Queue: true, Keeps: maxTTL, Notice: heldPause * 3 / 2,
		Timeout: s.cfg.Timeout}
}

// Capabilities returns the optional parts of the contract that the store implements. The Mover does
// not pass on the keys that this store polls, because each renewal and each request names them
// again.
func (s *Store) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{Lister: s, Registrar: s, Mover: s.cfg.Mover(), Connections: s.Connections}
}

// Hints returns the stream of hints that result from polls.
func (s *Store) Hints() <-chan upstream.Hint { return s.watch.hints }

// Sessions returns nil, because leases end with their own TTLs.
func (s *Store) Sessions() <-chan upstream.Session { return nil }

// Close closes the connections and ends the goroutines. It must not be called twice, or
// concurrently with Apply.
func (s *Store) Close() error {
	s.cancel()
	s.wg.Wait()
	close(s.watch.hints)
	return s.db.Close()
}

// Ping checks in one round trip whether locks can be written now, on a connection that has passed
// its checks.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return fmt.Errorf("%w: mysql at %s: %w", upstream.ErrDown, s.cfg.Addr(), s.advice(err))
	}
	return nil
}

// reach checks that the server is not read-only. It replaces a closed connection by a new one,
// which is checked.
func (s *Store) reach(ctx context.Context) error {
	for try := 0; ; try++ {
		conn, err := s.conn(ctx)
		if err != nil {
			return err
		}
		err = s.writable(ctx, conn)
		_ = conn.Close()
		if err != nil {
			s.dropIdle(err)
		}
		if err == nil || try > 0 || !nothingSent(err) {
			return err
		}
	}
}

func (s *Store) writable(ctx context.Context, conn *sql.Conn) error {
	var flags [2]string
	err := conn.QueryRowContext(ctx, "SELECT "+readOnlyFlags).Scan(&flags[0], &flags[1])
	if err == nil && (isOn(flags[0]) || isOn(flags[1])) {
		err = errReadOnly
	}
	if err != nil && isReadOnly(err) {
		discard(conn)
	}
	return err
}

func (s *Store) valid(op *upstream.Op) error {
	err := cmp.Or(driverkit.CheckOp(op), driverkit.CheckFloor(op))
	switch {
	case err != nil:
	case len(op.Key) > maxKey || op.Key == "":
		err = fmt.Errorf("a key of %d bytes is not one of 1 to %d", len(op.Key), maxKey)
	case op.TTL < 0 || op.TTL > maxTTL:
		err = fmt.Errorf("a TTL of %v is longer than %v", op.TTL, maxTTL)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}
