package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// Store is a Redis used for locks. It is safe for concurrent use.
type Store struct {
	open     atomic.Int64 // connections
	cfg      Config
	log      *zap.Logger
	single   *node       // nil with a cluster
	cluster  *cluster    // nil without
	sentinel *sentinel   // nil without
	names    []slotNames // by slot; without a cluster there is one
	instance string      // the part of our tokens that no other Store's tokens have
	batches  sync.Pool
	uptime   uptime
	fences   *upstream.FenceClock

	hints        driverkit.Hints
	hintQueue    chan string // hints for other daemons, in a cluster
	messageQueue chan string // questions and answers for other daemons
	errands      chan errand // for idle goroutines
	cancel       context.CancelFunc
	wg           sync.WaitGroup // of the goroutines that end with cancel

	heldFor   atomic.Pointer[upstream.HeldFor] // answers other daemons; nil before Answer
	questions questions
	listening atomic.Bool // the channel for hints and answers is subscribed to

	logged struct {
		sync.Mutex
		servers map[string]serverInfo // as last logged; guarded by Mutex
	}
}

var _ upstream.Store = (*Store)(nil)

// Connections is the number of connections to all nodes, without those to sentinels.
func (s *Store) Connections() int { return int(s.open.Load()) }

// Open connects to the server and checks that it can be used. In a cluster, it checks every master
// that can be reached. The error says what to change. It is upstream.ErrDown if no server answered,
// or only one that cannot serve yet: then the configuration may be right.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	s, err := OpenLazy(cfg)
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

// OpenLazy is Open without waiting for the server. Each connection is checked when it is made, and
// until one passes, every op is refused with the reason. OpenLazy fails if a file that cfg names
// cannot be read.
func OpenLazy(cfg Config) (*Store, error) {
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	makeScripts()
	s := &Store{
		uptime: uptime{min: cfg.MinUptime},
		cfg:    cfg, log: cfg.Log, instance: cfg.Instance, fences: cfg.Fences,
		names: standaloneNames[:], hints: driverkit.NewHints(hintBuffer),
		hintQueue: make(chan string, hintBuffer), messageQueue: make(chan string, 2*maxAnswers),
		errands: make(chan errand),
	}
	s.logged.servers = map[string]serverInfo{}
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
		s.single = s.newNode(s.cfg.Addr, s.sentinel.master)
		s.sentinel.follow(ctx)
	default:
		s.single = s.newNode(s.cfg.Addr, nil)
	}
	s.wg.Go(func() { s.listen(ctx) })
	s.wg.Go(func() { s.publish(ctx) })
	return s, nil
}

// files checks that the files that c names can be read.
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

// inspect connects to the servers, and checks what the check of a single connection does not cover.
func (s *Store) inspect(ctx context.Context) error {
	nodes := []*node{s.single}
	if s.cluster != nil {
		var err error
		if nodes, err = s.cluster.inspect(ctx); err != nil {
			return err
		}
	} else if err := s.single.reach(ctx); err != nil {
		return err
	}
	for _, n := range nodes {
		if has := int(n.online.Load()); has >= 0 && has < s.replicas() {
			return fmt.Errorf("redis at %v: %w: %d replicas follow it, and wait_replicas or "+
				"wait_aof in the store URL asks for %d",
				n, ErrServer, has, s.replicas())
		}
	}
	return nil
}

// Ping sends a request on a connection that has passed its checks. A cluster is up as long as one
// of its masters answers and says that the cluster works.
func (s *Store) Ping(ctx context.Context) error {
	var err error
	if s.cluster != nil {
		err = s.cluster.ping(ctx)
	} else if err = s.single.reach(ctx); err == nil {
		s.single.bad.Store(false)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", upstream.ErrDown, err)
	}
	return nil
}

// Instance returns the id in the tokens of this store.
func (s *Store) Instance() string { return s.instance }

// maxKeep is longer than any TTL that a daemon allows.
const maxKeep = 48 * time.Hour

// Info describes the store.
func (s *Store) Info() upstream.Info {
	return upstream.Info{Name: "redis", Safety: "best-effort", MinTTL: 100 * time.Millisecond,
		Rebase: true, Permits: true, Queue: true, Keeps: maxKeep, Timeout: s.cfg.Timeout}
}

// Capabilities returns the optional parts of the contract that the store implements.
func (s *Store) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{
		Lister: s, Registrar: s, Asker: s, Answerer: s,
		Mover: s.cfg.Mover(), Connections: s.Connections, RunID: s.RunID,
	}
}

// Hints returns the hints from other hosts' daemons.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is nil, because leases live by their own TTL.
func (s *Store) Sessions() <-chan upstream.Session { return nil }

// Close closes the connections and ends the goroutines. It must not run at the same time as Apply,
// nor be called twice.
func (s *Store) Close() error {
	s.cancel()
	close(s.errands)
	s.wg.Wait()
	close(s.hints)
	if s.cluster != nil {
		return s.cluster.close()
	}
	if s.sentinel != nil {
		return errors.Join(s.single.client.Close(), s.sentinel.close())
	}
	return s.single.client.Close()
}

// Apply carries out one batch in one round trip. Each kind of op is a script call for at most 128
// keys of one slot. All calls for one node are in one pipeline, and those that free keys come
// first. If a server has lost the scripts or a slot has moved, Apply takes another round trip.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	b := s.batches.Get().(*batch)
	defer s.batches.Put(b)
	b.begin(ops, results)
	for i := range ops {
		results[i] = upstream.Result{Left: -1}
		if err := s.check(&ops[i]); err != nil {
			b.fail(i, cache.Refused, err)
			continue
		}
		b.sort(i)
	}
	if s.cluster != nil {
		_ = s.cluster.ensureMap(ctx)
	}
	b.build()
	b.run(ctx)
	s.sendHints(b.hints...)
	if b.err != nil && s.down(b) {
		return fmt.Errorf("%w: %w", upstream.ErrDown, b.err)
	}
	return b.err
}

// down reports whether the store as a whole is down: no server of the batch answered and can write,
// and no other node is known to work.
func (s *Store) down(b *batch) bool {
	if len(b.calls) == 0 {
		return false
	}
	for _, pl := range b.pipelines {
		if !pl.unusable {
			return false
		}
	}
	return s.cluster == nil || s.cluster.down()
}

func (s *Store) check(op *upstream.Op) error {
	err := cmp.Or(driverkit.CheckOp(op), driverkit.CheckFloor(op))
	if err == nil && s.reserved(op.Key) {
		err = errors.New("the key's name is reserved")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}
