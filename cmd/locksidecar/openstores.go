package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/audit"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/takeover"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/both"
)

// openStores has the stores that a daemon has open, across its reloads.
type openStores struct {
	log      *zap.Logger
	takeover *takeover.State // nil if nothing is taken over
	seen     places          // what this process has seen of the stores' servers

	mu    sync.Mutex                // held during a reload
	open  map[string]upstream.Store // by need.key; guarded by mu
	needs map[string]*need          // of the open stores, by need.key; guarded by mu
	// passed is set once another process continues with all stores, so that none may be closed.
	// Guarded by mu.
	passed bool
	// used has, by need.key, the open stores that the configuration uses. Guarded by mu.
	used map[string]bool
	keys map[string][]both.Keys // the keys that each pair covers, by need.key; guarded by mu
}

func newOpenStores(log *zap.Logger) *openStores {
	return &openStores{log: log, open: make(map[string]upstream.Store), needs: make(map[string]*need),
		keys: make(map[string][]both.Keys)}
}

// use opens the stores that p needs, and calls take with the configuration for the daemon. If
// either fails, nothing changes.
func (all *openStores) use(
	ctx context.Context, p *proposal, take func(daemon.Serving) error,
) error {
	all.mu.Lock()
	defer all.mu.Unlock()
	s, fresh, err := all.serving(ctx, p)
	before := maps.Clone(all.keys)
	var covered map[string]coverage
	if err == nil {
		covered, err = all.covered(ctx, p, fresh)
	}
	if err == nil {
		s.Commit = func() error { return all.cover(ctx, covered) }
		err = take(s)
	}
	if err != nil {
		for key, keys := range before {
			all.open[key].(*both.Store).CoverLater(keys)
		}
		all.keys = before
		for key := range fresh {
			all.closeLocked(key)
		}
		return err
	}
	all.used = make(map[string]bool)
	for _, d := range p.needs {
		all.used[d.key] = true
	}
	return nil
}

// coverage describes which keys are in both stores of a pair.
type coverage struct {
	keys []both.Keys
	lazy bool // the daemon may start although one of the two stores cannot be reached
	// later is true if the daemon does start without one of the stores. The pair then writes its keys
	// into the new store, for other hosts, as soon as that store can be reached.
	later bool
}

// covered returns which keys each pair of stores has, by need.key. It checks the fence_epoch of
// keys that have moved. It also checks that the rules on which the hosts have agreed can be read,
// unless the daemon may start without the pair. It changes nothing.
func (all *openStores) covered(
	ctx context.Context, p *proposal, fresh map[string]opened,
) (covered map[string]coverage, err error) {
	namespaces := p.conf.AllNamespaces()
	covered = make(map[string]coverage)
	rules := make(map[string]both.Rules)
	for _, n := range namespaces {
		keys := both.Keys{Prefix: n.Prefix}
		for _, o := range namespaces {
			if o.Prefix != n.Prefix && strings.HasPrefix(o.Prefix, n.Prefix) {
				keys.Except = append(keys.Except, o.Prefix)
			}
		}
		slices.Sort(keys.Except)
		_, key, _ := storeOf(p.conf, n, p.plans)
		if n.Both != "" {
			covered[key] = coverage{keys: append(covered[key].keys, keys)}
			continue
		}
		r, read := rules[key]
		// A missing store has just failed to answer, and another attempt would take as long.
		if !read && !fresh[key].missing {
			short, cancel := context.WithTimeout(ctx, openBound)
			// While a store is down, the daemon may start without it.
			r, _ = both.ReadRules(short, all.open[key])
			cancel()
			rules[key] = r
		}
		if err := r.CheckEpoch(keys, n.FenceEpoch); err != nil {
			return nil, exit(exitUsage, "namespace %q: %w", n.Prefix, err)
		}
	}
	for key, c := range covered {
		c.lazy, c.later = fresh[key].lazy, fresh[key].missing
		if !c.later {
			err := all.withPair(ctx, key, func(ctx context.Context, s *both.Store) error {
				return s.CheckNote(ctx, c.keys)
			})
			if c.later = c.lazy && unreachable(err); err != nil && !c.later {
				return nil, err
			}
		}
		covered[key] = c
	}
	return covered, nil
}

// cover tells each pair of stores which keys it has. The rules that it writes into a store stay
// there, so no later step should be able to fail.
func (all *openStores) cover(ctx context.Context, covered map[string]coverage) error {
	for _, key := range slices.Sorted(maps.Keys(covered)) {
		c := covered[key]
		err := all.withPair(ctx, key, func(ctx context.Context, s *both.Store) error {
			if !c.later {
				if err := s.Cover(ctx, c.keys); err == nil || !c.lazy || !unreachable(err) {
					return err
				}
			}
			s.CoverLater(c.keys)
			return nil
		})
		if err != nil {
			return err
		}
		all.keys[key] = c.keys
	}
	return nil
}

// withPair calls do with an open pair of stores.
func (all *openStores) withPair(
	ctx context.Context, key string, do func(context.Context, *both.Store) error,
) error {
	short, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	if err := do(short, all.open[key].(*both.Store)); err != nil {
		return exit(exitUnavailable, "%s: %w", all.needs[key].name, err)
	}
	return nil
}

// closeUnused closes a store that the daemon no longer uses, unless the daemon has begun to use it
// again meanwhile.
func (all *openStores) closeUnused(key string) {
	all.mu.Lock()
	defer all.mu.Unlock()
	// After several reloads, this may be called twice for the same store. The first call closes it.
	if !all.used[key] && all.open[key] != nil {
		all.closeLocked(key)
	}
}

// closeAll closes all stores when the daemon has ended, unless another process continues with them.
func (all *openStores) closeAll() {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.passed {
		return
	}
	for key := range all.open {
		all.closeLocked(key)
	}
}

// need is one store that a namespace needs: one store of the configuration, or a pair of them.
type need struct {
	name  string // for the daemon
	key   string // identifies the store: each reading of the configuration gives the same key
	plans []*plan
	epoch uint64 // fence_epoch of a pair, which raises its fences itself
	lazy  bool   // some namespace has outage: local, so the daemon may start without the store
}

// opened describes how a store was opened.
type opened struct {
	lazy    bool // the daemon may start without the store
	missing bool // the store, or the new one of a pair, cannot be reached
}

// proposal is a configuration that has been read and checked, but is not in use yet.
type proposal struct {
	conf  *config.Config
	plans map[string]*plan // plans of all stores, by name
	needs []*need          // the needs of the namespaces
}

// load reads the configuration and plans its stores. It connects to nothing. Its error names
// every fault, one on each line.
func (m *Main) load(file string, flags *pflag.FlagSet) (*proposal, error) {
	c, err := config.Load(file, m.Env, flags)
	p := &proposal{conf: c, plans: make(map[string]*plan)}
	faults := []error{err, config.Misspelt(m.Environ)}
	for _, s := range append([]*config.StoreSettings{&c.Main}, c.Stores...) {
		if _, err := config.ParseUpstream(s.Upstream); err != nil {
			continue // config.Load has reported it
		}
		one, err := planStore(c, s)
		if err != nil {
			path := "upstream"
			if s.Name != "" {
				path = "stores." + s.Name + ".upstream"
			}
			faults = append(faults, fmt.Errorf("%s (%s): %w", path, c.FromPath(path), err))
		}
		p.plans[s.Name] = one
	}
	if err := errors.Join(faults...); err != nil {
		return nil, &exitError{code: exitUsage, err: err}
	}
	if p.needs, err = needsOf(c, p.plans); err != nil {
		return nil, &exitError{code: exitUsage, err: err}
	}
	return p, nil
}

// needsOf returns the stores that the namespaces need. Its error names every fault, one on each
// line.
func needsOf(c *config.Config, plans map[string]*plan) ([]*need, error) {
	var needs []*need
	var faults []error
	for _, n := range c.AllNamespaces() {
		name, key, ps := storeOf(c, n, plans)
		if err := checkFit(c, n, ps); err != nil &&
			!slices.ContainsFunc(faults, func(e error) bool { return e.Error() == err.Error() }) {
			// A setting of the top level can cause the same fault in many namespaces.
			faults = append(faults, err)
		}
		i := slices.IndexFunc(needs, func(d *need) bool { return d.name == name })
		if i < 0 {
			i = len(needs)
			needs = append(needs, &need{name: name, key: key, plans: ps, epoch: n.FenceEpoch})
		}
		if needs[i].key != key {
			faults = append(faults, fmt.Errorf("%s: %s is the name of a store, and of two stores "+
				"that are used together: give that store another name",
				config.NamespacePath(n.Prefix), name))
		}
		needs[i].lazy = needs[i].lazy || n.Outage == "local"
	}
	for i, d := range needs {
		for _, o := range needs[:i] {
			if name := d.sharesEmbedded(o); name != "" {
				faults = append(faults, fmt.Errorf("the embedded store %s has some keys alone "+
					"and others with both: all of its keys have to move together", name))
			}
		}
	}
	return needs, errors.Join(faults...)
}

// checkFit returns an error if the stores that a namespace names do not support its settings.
func checkFit(c *config.Config, n *config.Namespace, ps []*plan) error {
	can := ps[0].can
	for _, p := range ps[1:] {
		can.minTTL, can.queue = max(can.minTTL, p.can.minTTL), can.queue && p.can.queue
	}
	fault := func(field, format string, a ...any) error {
		path := config.NamespacePath(n.Prefix) + "." + field
		if !c.Set(path) { // the namespace has the setting of the top level
			path = field
		}
		return fmt.Errorf("%s (%s): %w", path, c.FromPath(path), fmt.Errorf(format, a...))
	}
	switch {
	case n.TTL < can.minTTL:
		return fault("ttl", "%v is too short for this store; the minimum is %v", n.TTL, can.minTTL)
	case n.Linger > 0 && !can.queue:
		return fault("linger",
			"Redlock does not support it: a host cannot tell the others there that it waits for a lock")
	case len(ps) > 1 && !can.rebase:
		return fault("both", "%w: %s decides its fences itself, and they cannot be raised to the other store's; "+
			"stop all holders, then change the store with a fence_epoch above the last fence base",
			both.ErrFences, ps[0].kind)
	}
	return nil
}

// sharesEmbedded returns the name of the embedded store that both d and o need, or "". Such a
// store can be open only once.
func (d *need) sharesEmbedded(o *need) string {
	if d.key == o.key {
		return ""
	}
	for _, p := range d.plans {
		same := func(q *plan) bool { return q.name == p.name && q.kind == p.kind }
		if p.kind == config.KindEmbedded && slices.ContainsFunc(o.plans, same) {
			return storeName(p.name)
		}
	}
	return ""
}

// storeOf returns the store of a namespace's keys: its name for the daemon, its key, and its plans.
func storeOf(
	c *config.Config, n *config.Namespace, plans map[string]*plan,
) (name, key string, ps []*plan) {
	ps = []*plan{plans[c.Store(n.Store).Name]}
	if n.Both != "" {
		ps = append(ps, plans[c.Store(n.Both).Name])
	}
	var names, keys []string
	for _, p := range ps {
		names = append(names, storeName(p.name))
		// planRedlock explains why the TTL is a part of the key.
		keys = append(keys, fmt.Sprint(p.name, "\x00", p.url, "\x00", int64(p.maxTTL)))
	}
	name = strings.Join(names, "+")
	if n.Both != "" && n.FenceEpoch != 0 { // see need.epoch
		name += fmt.Sprint("@", n.FenceEpoch)
	}
	return name, strings.Join(append(keys, name), "\x00"), ps
}

// serving opens the stores that p needs and that are not open yet. It returns the configuration for
// the daemon. fresh has the stores that it has opened, by need.key.
func (all *openStores) serving(
	ctx context.Context, p *proposal,
) (s daemon.Serving, fresh map[string]opened, err error) {
	c := p.conf
	fresh = make(map[string]opened)
	s = daemon.Serving{Drain: max(c.Drain, 1), Limits: limits(c), // 0 would be the daemon's default
		Operators: operators(c)}
	for _, d := range p.needs {
		if all.open[d.key] == nil {
			if fresh[d.key], err = all.openStore(ctx, d, len(p.needs) > 1); err != nil {
				delete(fresh, d.key)
				return s, fresh, err
			}
		}
		var parts []engine.Part
		for _, p := range d.plans {
			parts = append(parts, engine.Part{Name: storeName(p.name), Place: p.place})
		}
		s.Stores = append(s.Stores, daemon.StoreConfig{Name: d.name, Key: d.publicKey(),
			Store: all.open[d.key],
			Parts: parts, Lock: lockOf(all.open[d.key]), Close: func() { all.closeUnused(d.key) }})
	}
	for _, n := range c.AllNamespaces() {
		name, _, ps := storeOf(c, n, p.plans)
		d := namespace(n, name)
		for _, p := range ps {
			if p.maxTTL > 0 && (d.MaxTTL == 0 || p.maxTTL < d.MaxTTL) {
				d.MaxTTL = p.maxTTL
			}
		}
		s.Namespaces = append(s.Namespaces, d)
	}
	s.Logging = audit.Settings{Audit: c.Log.Audit, HashKeys: c.Log.Keys == "hashed"}
	for _, x := range c.Classes {
		s.Classes = append(s.Classes, engine.Class(x))
	}
	return s, fresh, nil
}

// openStore opens the store of a need. others means that the configuration has more stores.
func (all *openStores) openStore(
	ctx context.Context, d *need, others bool,
) (how opened, err error) {
	for key := range all.open {
		if name := d.sharesEmbedded(all.needs[key]); name != "" {
			return how, exit(exitUsage, "the embedded store %s is in use: to keep its keys in two "+
				"stores, or in one again, needs a restart", name)
		}
	}
	// With a parked state the daemon also starts without the store, because no other daemon serves.
	how.lazy = d.lazy || others || all.takeover != nil && all.takeover.Parked()
	if all.used != nil && len(d.plans) > 1 {
		how.lazy = false // a reload does not begin a move to a store that cannot be reached
	}
	st, err := d.open(ctx, opening{
		log:       all.log,
		lazy:      how.lazy,
		missing:   &how.missing,
		successor: all.takeover.Successor(d.name),
		seen:      &all.seen,
	})
	if err != nil {
		return how, err
	}
	all.open[d.key], all.needs[d.key] = st, d
	return how, nil
}

// publicKey returns a hash of the key, which may contain a password.
func (d *need) publicKey() string {
	sum := sha256.Sum256([]byte(d.key))
	return hex.EncodeToString(sum[:])
}

// open opens the store, or both stores of a pair. The daemon may start without the new store of a
// pair, which is the second, but not without the old one.
func (d *need) open(ctx context.Context, o opening) (upstream.Store, error) {
	if len(d.plans) == 1 {
		return d.plans[0].opened(ctx, o)
	}
	successors, missing := both.Successors(o.successor), o.missing
	// coverage.later depends on the new store alone: the pair writes its keys only there.
	o.successor, o.missing = successors[0], nil
	first, err := d.plans[0].opened(ctx, o)
	if err != nil {
		return nil, err
	}
	o.successor, o.missing = successors[1], missing
	second, err := d.plans[1].opened(ctx, o)
	if err != nil {
		return nil, errors.Join(err, first.Close())
	}
	st, err := both.New(first, second, d.epoch)
	if err != nil {
		return nil, exit(exitUsage, "%s: %w",
			d.name, errors.Join(err, first.Close(), second.Close()))
	}
	return st, nil
}

// lockOf returns the file that is locked for a store; nil if there is none. At most one store of
// a pair is embedded.
func lockOf(s upstream.Store) *os.File {
	switch x := s.(type) {
	case *lockedStore:
		return x.lock
	case *both.Store:
		for _, one := range x.Capabilities().Pair {
			if f := lockOf(one); f != nil {
				return f
			}
		}
	}
	return nil
}

// closeLocked closes a store and forgets it. It is called with mu held.
func (all *openStores) closeLocked(key string) {
	if err := all.open[key].Close(); err != nil {
		all.log.Warn("close store", zap.Error(err))
	}
	delete(all.open, key)
	delete(all.needs, key)
	delete(all.keys, key)
}

// namespace converts a configured namespace, whose keys are in the daemon's store of that name.
func namespace(n *config.Namespace, store string) engine.Namespace {
	uids, _ := config.UIDs(n.Users) // load has checked them
	gids, _ := config.GIDs(n.Groups)
	d := engine.Namespace{
		Prefix: n.Prefix, Store: store, TTL: n.TTL, MaxWait: n.MaxWait, MaxHold: n.MaxHold,
		Heartbeat:   n.Heartbeat,
		MaxHandoffs: n.MaxHandoffs, MaxHandoffTime: n.MaxHandoffTime, Linger: n.Linger,
		LingerPause: max(n.LingerPause, 1), MaxHolds: int64(n.MaxHolds), MaxWaiters: int64(n.MaxWaiters),
		Users: uids, Groups: gids, FenceEpoch: n.FenceEpoch, Local: n.Outage == "local",
		LocalAfter: max(n.OutageAfter, 1),
	}
	if n.Interop {
		d.Tenure, d.Pause = engine.DefaultTenure, engine.DefaultPause
	}
	if n.Both != "" {
		d.FenceEpoch = 0 // a pair raises its fences itself
	}
	return d
}

func operators(c *config.Config) (a engine.Access) {
	a.Users, _ = config.UIDs(c.Operators.Users) // load has checked them
	a.Groups, _ = config.GIDs(c.Operators.Groups)
	return a
}

func limits(c *config.Config) daemon.ServingLimits {
	return daemon.ServingLimits{MaxConns: c.Limits.MaxConns, Limits: engine.Limits{
		Users: engine.UserLimits{Conns: c.Limits.UserConns, Holds: c.Limits.UserHolds,
			Waiters: c.Limits.UserWaiters,
			Rate:    c.Limits.UserRate},
		MaxHolds: c.Limits.MaxHolds, MaxWaiters: c.Limits.MaxWaiters,
		MaxFrame: c.Limits.MaxFrame, OutBuffer: c.Limits.OutBuffer,
	}}
}
