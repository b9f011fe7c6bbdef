package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Store combines several independent servers. It is safe for concurrent use.
type Store struct {
	cfg      Config
	log      *zap.Logger
	clock    upstream.Clock
	instance string
	grace    time.Duration // the shortest wait for the nodes outside the quorum
	nodes    []*node
	rand     *rand.Rand // guarded by mu

	ctx          context.Context
	cancel       context.CancelFunc
	wg           sync.WaitGroup // of jobs and pings
	wakeup       chan struct{}  // has an element if there may be pending releases to send
	releaserDone chan struct{}  // closed when sendPendingReleases has ended

	listing listing

	mu     sync.Mutex
	leases map[leaseID]*lease // guarded by mu
	closed bool               // guarded by mu: nothing more is sent
	idle   chan struct{}      // guarded by mu: made by Close, closed when nothing is in flight
}

var _ upstream.Store = (*Store)(nil)

// Open connects to the nodes and checks the nodes that can be reached. They must be a quorum. The
// error says what to change. member opens a node without waiting for it; the store closes it.
func Open(
	ctx context.Context, cfg Config, member func(Member) (upstream.Store, error),
) (*Store, error) {
	s, err := OpenLazy(cfg, member)
	if err != nil {
		return nil, err
	}
	if err := s.reach(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store: %w", err), s.Close())
	}
	return s, nil
}

// OpenLazy is Open without waiting for the nodes. While fewer than a quorum of them can be used,
// every op is refused with the reasons.
func OpenLazy(
	cfg Config, member func(Member) (upstream.Store, error),
) (*Store, error) {
	if err := cfg.Complete(); err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{cfg: cfg, log: cfg.Log, clock: cfg.Clock, instance: cfg.Instance,
		grace:  cmp.Or(cfg.grace, graceMin),
		wakeup: make(chan struct{}, 1), releaserDone: make(chan struct{}), leases: map[leaseID]*lease{},
		rand: rand.New(rand.NewPCG(cmp.Or(cfg.seed, rand.Uint64()), 1))}
	for i, host := range cfg.URL.Hosts {
		m, err := member(cfg.member(host, s.instance))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open store: node %s: %w",
				host, err), s.closeNodes())
		}
		n := &node{i: i, host: host, store: m, runID: m.Capabilities().RunID}
		if n.runID == nil {
			n.runID = func() string { return "" }
		}
		s.nodes = append(s.nodes, n)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	go s.sendPendingReleases()
	return s, nil
}

// Instance returns the id in the tokens of this store.
func (s *Store) Instance() string { return s.instance }

// Info returns the properties of the store.
func (s *Store) Info() upstream.Info {
	return upstream.Info{Name: "redlock", Safety: "best-effort",
		MinTTL: max(time.Second, 2*s.cfg.Timeout),
		Rebase: true, Keeps: s.cfg.MaxTTL, Timeout: 3 * s.cfg.Timeout}
}

// Connections returns the number of connections to all nodes.
func (s *Store) Connections() (n int) {
	for _, node := range s.nodes {
		n += upstream.Connections(node.store)
	}
	return n
}

// Capabilities returns the optional parts of the contract that the store implements.
func (s *Store) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{
		Lister: s, Registrar: s, Asker: s, Answerer: s,
		Mover: s, Connections: s.Connections,
	}
}

// Hints returns nil, because there is no queue between hosts.
func (s *Store) Hints() <-chan upstream.Hint { return nil }

// Sessions returns nil, because leases end with their own TTLs.
func (s *Store) Sessions() <-chan upstream.Session { return nil }

// Ping asks all nodes and returns when a quorum has answered.
func (s *Store) Ping(ctx context.Context) error {
	errs, err := s.ping(ctx, false)
	if err != nil {
		return fmt.Errorf("%w: %w: %s", upstream.ErrDown, ErrNoQuorum, reasons(errs))
	}
	return nil
}

// reach pings all nodes, waits for all of them, and checks the answers.
func (s *Store) reach(ctx context.Context) error {
	errs, err := s.ping(ctx, true)
	for i, n := range s.nodes {
		if errors.Is(errs[i], ErrSameServer) {
			return errs[i]
		}
		if errs[i] != nil && err == nil {
			s.log.Warn("node does not vote", zap.String("node", n.host), zap.Error(errs[i]))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, reasons(errs))
	}
	return nil
}

// ping returns the error of each node that has answered, and an error if no quorum works.
func (s *Store) ping(ctx context.Context, all bool) (errs []error, err error) {
	type pong struct {
		n   *node
		err error
	}
	pongs := make(chan pong, len(s.nodes))
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return make([]error, len(s.nodes)), errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	for _, n := range s.nodes {
		s.wg.Go(func() { pongs <- pong{n, n.store.Ping(ctx)} })
	}
	s.mu.Unlock()
	defer cancel()
	errs = make([]error, len(s.nodes))
	well, asked := set(0), allNodes(len(s.nodes))
	for asked != 0 {
		p := <-pongs
		asked.drop(p.n.i)
		if p.err == nil {
			p.err = s.answered(p.n)
		}
		if errs[p.n.i] = p.err; p.err == nil {
			well.add(p.n.i)
		}
		if !all && (well.quorum(len(s.nodes)) || !(well | asked).quorum(len(s.nodes))) {
			break
		}
	}
	if !well.quorum(len(s.nodes)) {
		return errs, ErrNoQuorum
	}
	return errs, nil
}

// answered lets a node that answers vote again, unless another node has its vote.
func (s *Store) answered(n *node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if twin := s.twinLocked(n); twin != nil {
		return fmt.Errorf("%w: %s and %s, as the store URL says", ErrSameServer, twin.host, n.host)
	}
	n.downUntil = 0
	return nil
}

// reasons joins the errors of the nodes that do not work.
func reasons(errs []error) string {
	var each []string
	for _, err := range errs {
		if err != nil {
			each = append(each, err.Error())
		}
	}
	return strings.Join(each, "; ")
}

// sendPendingReleases sends the pending releases to the nodes that are up, until the store is
// closed.
func (s *Store) sendPendingReleases() {
	defer close(s.releaserDone)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wakeup:
		case <-timer.C:
		}
		s.mu.Lock()
		now, next := s.clock(), cache.Forever
		for _, n := range s.nodes {
			next = min(next, s.releaseAtNodeLocked(n, now))
		}
		s.idleLocked()
		s.mu.Unlock()
		timer.Stop()
		if next != cache.Forever {
			timer.Reset(time.Duration(max(next-now, int64(time.Millisecond))))
		}
	}
}

// releaseAtNodeLocked sends pending releases to n, and returns when to check again.
func (s *Store) releaseAtNodeLocked(n *node, now int64) int64 {
	if len(n.pendingReleases) == 0 || n.backgroundLocked() {
		return cache.Forever
	}
	j, next := s.pendingLocked(n, now)
	if j == nil {
		return next
	}
	if now < n.downUntil {
		return n.downUntil
	}
	j.abandonLocked()
	s.submitLocked(j, now)
	return next
}

// Close waits for the calls in flight and for the pending releases at nodes that are up, at most
// for the time of one answer. Then it ends the goroutines. Held leases last until their deadlines.
// Close must not be called twice, or concurrently with Apply.
func (s *Store) Close() error {
	quiet := make(chan struct{})
	s.mu.Lock()
	s.idle = quiet
	s.mu.Unlock()
	s.wakeReleaser()
	t := time.NewTimer(s.cfg.Timeout)
	defer t.Stop()
	select {
	case <-quiet:
	case <-t.C:
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	<-s.releaserDone
	s.wg.Wait()
	return s.closeNodes()
}

func (s *Store) closeNodes() error {
	var errs []error
	for _, n := range s.nodes {
		errs = append(errs, n.store.Close())
	}
	return errors.Join(errs...)
}
