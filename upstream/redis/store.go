package redis

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Names beside the locks' own begin with siblingPrefix, then the tag that puts
// them into the locks' slot: nothing, without a cluster.
const (
	siblingPrefix = "locksidecar:"
	siblings      = siblingPrefix + "{}:"
	fenceName     = siblings + "fence"
	queuedName    = siblings + "queued"
	hintChannel   = siblingPrefix + "hint:"
)

// perCall is the most keys of one script call: above it a call gets no cheaper
// a key, but keeps others waiting.
const perCall = 128

const hintBuffer = 1024

// Option changes how a Store is opened.
type Option func(*Store)

// WithLogger makes the store log to l.
func WithLogger(l *zap.Logger) Option { return func(s *Store) { s.log = l } }

// WithInstance gives the store the instance id of an earlier one, whose leases it
// goes on with. The numbers of its tokens must go on rising too.
func WithInstance(id string) Option { return func(s *Store) { s.instance = id } }

// Store is a Redis used for locks. It is safe for concurrent use.
type Store struct {
	cfg      Config
	log      *zap.Logger
	client   *goredis.Client
	instance string // the part of our tokens that nobody else's have
	me       any    // instance and a dot, boxed
	batches  sync.Pool

	hints  chan upstream.Hint
	cancel context.CancelFunc
	ended  chan struct{} // closed when listen has ended

	seen struct {
		sync.Mutex
		server *server // what was last logged; guarded by Mutex
	}
}

var _ upstream.Store = (*Store)(nil)

// Open connects to the server and checks that it can be used. The error says
// what to change.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	s, err := OpenLazy(cfg, opts...)
	if err != nil {
		return nil, err
	}
	if err := s.reach(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.Close())
	}
	return s, nil
}

// OpenLazy is Open without waiting for the server: each connection is checked
// when it is made, and until one passes every op is refused with the reason. It
// fails when a file that cfg names cannot be read.
func OpenLazy(cfg Config, opts ...Option) (*Store, error) {
	s := &Store{cfg: cfg, log: zap.NewNop(), hints: make(chan upstream.Hint, hintBuffer), ended: make(chan struct{})}
	for _, o := range opts {
		o(s)
	}
	if s.instance == "" {
		s.instance = newInstance()
	} else if !validInstance(s.instance) {
		return nil, fmt.Errorf("open store: %q is not an instance id", s.instance)
	}
	s.me = s.instance + "."
	s.batches.New = func() any { return newBatch(s) }
	o, err := s.cfg.options(s.check)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	if _, _, err := s.cfg.credentials(context.Background()); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.client = goredis.NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go s.listen(ctx)
	return s, nil
}

// newInstance is 16 random bytes in 22 characters.
func newInstance() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

func validInstance(id string) bool {
	b, err := base64.RawURLEncoding.DecodeString(id)
	return err == nil && len(b) == 16
}

// Instance is the id in this store's tokens.
func (s *Store) Instance() string { return s.instance }

// Info says what kind of store this is.
func (s *Store) Info() upstream.Info {
	return upstream.Info{Name: "redis", Safety: "best-effort", MinTTL: 100 * time.Millisecond,
		Rebase: true, Queue: true, Timeout: s.cfg.Timeout}
}

// Hints is the stream of what other hosts' daemons told this one.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is nil: leases live by their own TTL.
func (s *Store) Sessions() <-chan upstream.Session { return nil }

// Close gives the connections back and ends the goroutine that listens for
// hints. It must not run at the same time as Apply, nor be called twice.
func (s *Store) Close() error {
	s.cancel()
	<-s.ended
	close(s.hints)
	return s.client.Close()
}

// Apply carries out one batch in one round trip: each kind of op is a script
// call over at most 128 keys, all in one pipeline, what frees keys first. When
// the server has lost the scripts it takes another.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	b := s.batches.Get().(*batch)
	defer s.batches.Put(b)
	b.begin(ops, results)
	for i := range ops {
		results[i] = upstream.Result{Left: -1}
		if err := s.valid(&ops[i]); err != nil {
			b.fail(i, cache.Refused, err)
			continue
		}
		k := scriptFor(&ops[i])
		b.groups[k] = append(b.groups[k], int32(i))
	}
	b.build()
	b.run(ctx)
	return b.err
}

func scriptFor(op *upstream.Op) int {
	switch op.Kind {
	case cache.OpRelease, cache.OpWithdraw:
		return scriptRelease
	case cache.OpDowngrade:
		return scriptDowngrade
	case cache.OpRenew:
		return scriptRenew
	case cache.OpPeek:
		return scriptPeek
	}
	if op.Mode == cache.Shared {
		return scriptShare
	}
	return scriptAcquire
}

func (s *Store) valid(op *upstream.Op) error {
	switch {
	case op.Kind < cache.OpTry || op.Kind > cache.OpPeek:
		return fmt.Errorf("%w: operation %d is unknown", ErrRefused, op.Kind)
	case op.Floor > cache.MaxBase-upstream.MaxBatch:
		return fmt.Errorf("%w: fence floor %d is out of range", ErrRefused, op.Floor)
	case s.reserved(op.Key):
		return fmt.Errorf("%w: the key's name is reserved", ErrRefused)
	}
	return nil
}

// reserved says whether a lock of that name would be one of the siblings.
func (s *Store) reserved(key string) bool {
	if len(s.cfg.Prefix) >= len(siblingPrefix) {
		return false // and Parse does not let a prefix begin so
	}
	return strings.HasPrefix(s.cfg.Prefix+key[:min(len(key), len(siblingPrefix))], siblingPrefix)
}
