package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Names beside the locks' own begin with siblingPrefix, then the tag that puts
// them into the locks' slot: nothing, without a cluster.
const (
	siblingPrefix = "locksidecar:"
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

// WithClock sets the boot clock, by which fence bases follow the clock of a master that has failed.
// Without it the store uses the process's monotonic clock, which stops while the machine is suspended.
// Only tests may leave it out.
func WithClock(c upstream.Clock) Option {
	return func(s *Store) { s.fences = upstream.NewFenceClock(c) }
}

// WithFences gives the store a FenceClock that other Stores of the same servers share. It replaces WithClock.
func WithFences(f *upstream.FenceClock) Option { return func(s *Store) { s.fences = f } }

// Store is a Redis used for locks. It is safe for concurrent use.
type Store struct {
	open     atomic.Int64 // connections
	cfg      Config
	log      *zap.Logger
	one      *node       // nil with a cluster
	cluster  *cluster    // nil without
	sentinel *sentinel   // nil without
	names    []slotNames // by slot; of one without a cluster
	instance string      // the part of our tokens that nobody else's have
	batches  sync.Pool
	age      age
	fences   *upstream.FenceClock

	hints  chan upstream.Hint
	told   chan string // hints for other daemons, in a cluster
	talk   chan string // questions and answers for other daemons
	trips  chan trip   // for goroutines that have nothing to do
	cancel context.CancelFunc
	wg     sync.WaitGroup // of the goroutines that end with cancel

	heldFor atomic.Pointer[upstream.HeldFor] // answers other daemons; nil before Answer
	asks    asks
	hearing atomic.Bool // the channel for hints, on which answers come, is subscribed to

	seen struct {
		sync.Mutex
		servers map[string]server // what was last logged of each; guarded by Mutex
	}
}

var (
	_ upstream.Store     = (*Store)(nil)
	_ upstream.Connected = (*Store)(nil)
)

// Connections is how many there are to all nodes; those to sentinels do not count.
func (s *Store) Connections() int { return int(s.open.Load()) }

// Open connects to the server and checks that it can be used; in a cluster, it checks every
// master that can be reached. The error says what to change. It is upstream.ErrDown if no
// server answered, or only one that cannot serve yet: then the configuration may be right.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	s, err := OpenLazy(cfg, opts...)
	if err != nil {
		return nil, err
	}
	if err := s.inspect(ctx); err != nil {
		if unavailable(err) {
			err = fmt.Errorf("%w: %w", upstream.ErrDown, err)
		}
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.Close())
	}
	return s, nil
}

// OpenLazy is Open without waiting for the server: each connection is checked
// when it is made, and until one passes every op is refused with the reason. It
// fails when a file that cfg names cannot be read.
func OpenLazy(cfg Config, opts ...Option) (*Store, error) {
	s := &Store{cfg: cfg, log: zap.NewNop(), names: standaloneNames[:], hints: make(chan upstream.Hint, hintBuffer), told: make(chan string, hintBuffer), talk: make(chan string, 2*answersMost), trips: make(chan trip)}
	s.seen.servers = map[string]server{}
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
	s.batches.New = func() any { return newBatch(s) }
	if err := s.cfg.files(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	switch cfg.Kind {
	case Cluster:
		s.names = clusterNames()
		s.cluster = newCluster(s)
		s.wg.Go(func() { s.cluster.follow(ctx) })
	case Sentinel:
		s.sentinel = newSentinel(s)
		s.one = s.newNode(s.cfg.Addr, s.sentinel.master)
		s.sentinel.follow(ctx)
	default:
		s.one = s.newNode(s.cfg.Addr, nil)
	}
	s.wg.Go(func() { s.listen(ctx) })
	s.wg.Go(func() { s.publish(ctx) })
	return s, nil
}

// files reads the files that c names, to find out whether that can be done.
func (c *Config) files() error {
	if _, _, err := c.Credentials(); err != nil {
		return err
	}
	if _, _, err := c.sentinelCredentials(); err != nil {
		return err
	}
	_, err := c.tlsTo(c.Network, "host:0")
	return err
}

// inspect reaches the servers there are and looks at what one connection alone does
// not show.
func (s *Store) inspect(ctx context.Context) error {
	nodes := []*node{s.one}
	if s.cluster != nil {
		var err error
		if nodes, err = s.cluster.inspect(ctx); err != nil {
			return err
		}
	} else if err := s.one.reach(ctx); err != nil {
		return err
	}
	for _, n := range nodes {
		if has := int(n.online.Load()); has >= 0 && has < s.replicas() {
			return fmt.Errorf("redis at %v: %w: %d replicas follow it, and wait_replicas or wait_aof in the store URL asks for %d",
				n, ErrServer, has, s.replicas())
		}
	}
	return nil
}

// serves is the node that serves a slot now; nil when none is known.
func (s *Store) serves(slot uint16) *node {
	if s.cluster != nil {
		return s.cluster.serves(slot)
	}
	return s.one
}

// Ping asks for an answer on a connection that has passed its checks. A cluster
// is there as long as one of its masters is and says that the cluster works.
func (s *Store) Ping(ctx context.Context) error {
	var err error
	if s.cluster != nil {
		err = s.cluster.ping(ctx)
	} else if err = s.one.reach(ctx); err == nil {
		s.one.bad.Store(false)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", upstream.ErrDown, err)
	}
	return nil
}

// Instance is the id in this store's tokens.
func (s *Store) Instance() string { return s.instance }

// Info says what kind of store this is.
func (s *Store) Info() upstream.Info {
	return upstream.Info{Name: "redis", Safety: "best-effort", MinTTL: 100 * time.Millisecond,
		Rebase: true, Permits: true, Queue: true, Timeout: s.cfg.Timeout}
}

// Hints is the stream of what other hosts' daemons told this one.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is nil: leases live by their own TTL.
func (s *Store) Sessions() <-chan upstream.Session { return nil }

// Close gives the connections back and ends the goroutines. It must not run at
// the same time as Apply, nor be called twice.
func (s *Store) Close() error {
	s.cancel()
	close(s.trips)
	s.wg.Wait()
	close(s.hints)
	if s.cluster != nil {
		return s.cluster.close()
	}
	if s.sentinel != nil {
		return errors.Join(s.one.client.Close(), s.sentinel.close())
	}
	return s.one.client.Close()
}

// Apply carries out one batch in one round trip: each kind of op is a script
// call over at most 128 keys of one slot, all in one pipeline a node, what frees
// keys first. When a server has lost the scripts or a slot has moved it takes
// another.
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
		b.take(i)
	}
	if s.cluster != nil {
		_ = s.cluster.known(ctx)
	}
	b.build()
	b.run(ctx)
	s.tell(b.hints...)
	if b.err != nil && s.down(b) {
		return fmt.Errorf("%w: %w", upstream.ErrDown, b.err)
	}
	return b.err
}

// down says whether the store as a whole is: nobody whom the batch went to
// answered and can write, nor does any other node.
func (s *Store) down(b *batch) bool {
	if len(b.calls) == 0 {
		return false
	}
	for _, l := range b.legs {
		if !l.bad {
			return false
		}
	}
	return s.cluster == nil || s.cluster.down()
}

func scriptFor(op *upstream.Op) int {
	if op.Mode == cache.Permit {
		return scriptForPermit(op.Kind)
	}
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
	case op.Mode == cache.Permit:
		return validPermit(op)
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
