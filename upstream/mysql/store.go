package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// maxTTL is the longest TTL that is taken: its end has to be a number of 16
// digits.
const maxTTL = 10 * 365 * 24 * time.Hour

// Option changes how a Store is opened.
type Option func(*Store)

// WithLogger makes the store log to l.
func WithLogger(l *zap.Logger) Option { return func(s *Store) { s.log = l } }

// WithInstance gives the store the instance id of an earlier one, whose leases it
// goes on with. The numbers of its tokens must go on rising too.
func WithInstance(id string) Option { return func(s *Store) { s.instance = id } }

// WithClock sets the boot clock, by which fence bases follow the clock of a primary that has failed.
// Without it the store uses the process's monotonic clock, which stops while the machine is suspended.
// Only tests may leave it out.
func WithClock(c upstream.Clock) Option {
	return func(s *Store) { s.fences = upstream.NewFenceClock(c) }
}

// WithFences gives the store a FenceClock that other Stores of the same servers share. It replaces WithClock.
func WithFences(f *upstream.FenceClock) Option { return func(s *Store) { s.fences = f } }

// Store is a table of a MySQL or MariaDB server used for locks. It is safe for
// concurrent use.
type Store struct {
	cfg       Config
	log       *zap.Logger
	db        *sql.DB
	instance  string // the part of our tokens that nobody else's have
	requests  atomic.Uint64
	fences    *upstream.FenceClock
	batches   sync.Pool
	returning atomic.Bool // the server's writes can return the rows that they leave
	plain     bool        // … and are not to
	stuck     stuck
	semsStuck stuck
	watch     watch
	asides    chan struct{} // see aside

	permitsTexts [2]*permitsText // plain, and for returning
	// permitsBad is why semaphores cannot be used there; nil when they can.
	permitsBad atomic.Pointer[error]

	cancel context.CancelFunc
	wg     sync.WaitGroup

	seen struct {
		sync.Mutex
		server *server // what was last found; guarded by Mutex
	}
}

var (
	_ upstream.Store     = (*Store)(nil)
	_ upstream.Lister    = (*Store)(nil)
	_ upstream.Connected = (*Store)(nil)
)

// Connections is how many the pool has open.
func (s *Store) Connections() int { return s.db.Stats().OpenConnections }

// Open connects to the server, makes the table if it is not there, and checks that
// both can be used. The error says what to change.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	s, err := OpenLazy(cfg, opts...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout+s.patience())
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store: mysql at %s, as the store URL says: %w", cfg.Addr(), s.advice(err)), s.Close())
	}
	return s, nil
}

// OpenLazy is Open without waiting for the server: each connection is checked
// when it is made, and until one passes every op is refused with the reason. It
// fails when a file that cfg names cannot be read.
func OpenLazy(cfg Config, opts ...Option) (*Store, error) {
	s := &Store{cfg: cfg, log: zap.NewNop(), asides: make(chan struct{}, 1)}
	for _, o := range opts {
		o(s)
	}
	if s.fences == nil {
		s.fences = upstream.NewFenceClock(nil)
	}
	if s.instance == "" {
		s.instance = upstream.NewInstance()
	} else if !upstream.ValidInstance(s.instance) {
		return nil, fmt.Errorf("open store: %q is not an instance id", s.instance)
	}
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
	s.wg.Go(func() { s.watchAll(ctx) })
	s.wg.Go(func() { s.purgeAll(ctx) })
	return s, nil
}

func (s *Store) permitsText() *permitsText {
	if s.returning.Load() {
		return s.permitsTexts[1]
	}
	return s.permitsTexts[0]
}

// Instance is the id in this store's tokens.
func (s *Store) Instance() string { return s.instance }

// Info says what kind of store this is. It is called linearizable once a server
// has been seen that keeps what it has confirmed when it crashes.
func (s *Store) Info() upstream.Info {
	s.seen.Lock()
	defer s.seen.Unlock()
	safety := "best-effort"
	if s.seen.server != nil && s.seen.server.durable() {
		safety = "linearizable"
	}
	return upstream.Info{Name: "mysql", Safety: safety, MinTTL: 500 * time.Millisecond,
		Rebase: true, Permits: true, Queue: true, Notice: heldPause * 3 / 2, Timeout: s.cfg.Timeout}
}

// Hints is the stream of what this store has noticed by looking at the rows that
// it is about.
func (s *Store) Hints() <-chan upstream.Hint { return s.watch.hints }

// Sessions is nil: leases live by their own TTL.
func (s *Store) Sessions() <-chan upstream.Session { return nil }

// Close gives the connections back and ends the goroutines. It must not run at
// the same time as Apply, nor be called twice.
func (s *Store) Close() error {
	s.cancel()
	s.wg.Wait()
	close(s.watch.hints)
	return s.db.Close()
}

// Ping asks in one round trip whether locks can be written now, on a connection
// that has passed its checks.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return fmt.Errorf("%w: mysql at %s: %w", upstream.ErrDown, s.cfg.Addr(), s.advice(err))
	}
	return nil
}

// reach asks the server whether it may be written to. A connection found closed
// is replaced by a new one, which is checked.
func (s *Store) reach(ctx context.Context) error {
	for try := 0; ; try++ {
		conn, err := s.conn(ctx)
		if err != nil {
			return err
		}
		err = s.writable(ctx, conn)
		_ = conn.Close()
		if err == nil || try > 0 || !unsent(err) {
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
		dismiss(conn)
	}
	return err
}

func (s *Store) valid(op *upstream.Op) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
	}
	switch {
	case op.Kind < cache.OpTry || op.Kind > cache.OpPeek:
		return refuse("operation %d is unknown", op.Kind)
	case op.Floor > cache.MaxBase-upstream.MaxBatch:
		return refuse("fence floor %d is out of range", op.Floor)
	case len(op.Key) > maxKey || op.Key == "":
		return refuse("a key of %d bytes is not one of 1 to %d", len(op.Key), maxKey)
	case op.TTL < 0 || op.TTL > maxTTL:
		return refuse("a TTL of %v is longer than %v", op.TTL, maxTTL)
	case op.Mode == cache.Permit && op.Kind == cache.OpDowngrade:
		return refuse("a permit of a semaphore cannot be downgraded")
	case op.Mode == cache.Permit && op.Kind <= cache.OpJoin && op.Limit == 0:
		return refuse("a semaphore with no permits")
	}
	return nil
}
