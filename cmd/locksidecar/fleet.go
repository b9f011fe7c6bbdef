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

// fleet has the stores that a daemon has open, across its reloads.
type fleet struct {
	log      *zap.Logger
	takeover *takeover.State // nil if nothing is taken over
	seen     places

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

func newFleet(log *zap.Logger) *fleet {
	return &fleet{log: log, open: make(map[string]upstream.Store), needs: make(map[string]*need),
		keys: make(map[string][]both.Keys)}
}

// use opens the stores that p needs, and calls take with what the daemon is to serve. If either
// fails, nothing changes.
func (f *fleet) use(ctx context.Context, p *proposal, take func(daemon.Serving) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, fresh, err := f.serving(ctx, p)
	before := maps.Clone(f.keys)
	var covered map[string]coverage
	if err == nil {
		covered, err = f.covered(ctx, p, fresh)
	}
	if err == nil {
		s.Commit = func() error { return f.cover(ctx, covered) }
		err = take(s)
	}
	if err != nil {
		for key, keys := range before {
			f.open[key].(*both.Store).CoverLater(keys)
		}
		f.keys = before
		for key := range fresh {
			f.closeLocked(key)
		}
		return err
	}
	f.used = make(map[string]bool)
	for _, d := range p.needs {
		f.used[d.key] = true
	}
	return nil
}

// coverage describes which keys a pair of stores has.
type coverage struct {
	keys []both.Keys
	lazy bool // the daemon may start although one of the two stores cannot be reached
	// later is true if the daemon does start without one of the stores. The pair then tells other
	// hosts of its keys as soon as the new store can be reached.
	later bool
}

// covered returns which keys each pair of stores has. It checks the epoch of keys that have moved.
// It also checks that the rules on which the hosts have agreed can be read, unless the daemon may
// start without the pair. It changes nothing.
func (f *fleet) covered(
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
		// For a missing store, another attempt would take as long to find that the store does not answer.
		if !read && !fresh[key].missing {
			short, cancel := context.WithTimeout(ctx, openBound)
			// While a store is down, the daemon may start without it.
			r, _ = both.ReadRules(short, f.open[key])
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
			err := f.withPair(ctx, key, func(ctx context.Context, s *both.Store) error {
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
func (f *fleet) cover(ctx context.Context, covered map[string]coverage) error {
	for _, key := range slices.Sorted(maps.Keys(covered)) {
		c := covered[key]
		err := f.withPair(ctx, key, func(ctx context.Context, s *both.Store) error {
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
		f.keys[key] = c.keys
	}
	return nil
}

// withPair calls do with an open pair of stores.
func (f *fleet) withPair(
	ctx context.Context, key string, do func(context.Context, *both.Store) error,
) error {
	short, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	if err := do(short, f.open[key].(*both.Store)); err != nil {
		return exit(exitUnavailable, "%s: %w", f.needs[key].name, err)
	}
	return nil
}

// left is called when the daemon no longer uses a store. The daemon may have begun to use the store
// again meanwhile.
func (f *fleet) left(key string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// After several reloads, left may be called twice for the same store. The first call closes it.
	if !f.used[key] && f.open[key] != nil {
		f.closeLocked(key)
	}
}

// end closes all stores when the daemon has ended.
func (f *fleet) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.passed {
		return
	}
	for key := range f.open {
		f.closeLocked(key)
	}
}

// need is one store that a namespace needs: one store of the configuration, or a pair of them.
type need struct {
	name  string // for the daemon
	key   string // the same for the same store, however often the configuration is read
	plans []*plan
	epoch uint64 // fence_epoch of a pair, which raises its fences itself
	lazy  bool   // a namespace can do without the store for a while
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

// serving opens the stores that p needs and that are not open yet. It returns what the daemon is to
// serve. fresh has the stores that it has opened, by their keys.
func (f *fleet) serving(
	ctx context.Context, p *proposal,
) (s daemon.Serving, fresh map[string]opened, err error) {
	c := p.conf
	fresh = make(map[string]opened)
	s = daemon.Serving{Drain: max(c.Drain, 1), Limits: limits(c), // 0 would be the daemon's default
		Operators: operators(c)}
	for _, d := range p.needs {
		if f.open[d.key] == nil {
			if fresh[d.key], err = f.openStore(ctx, d, len(p.needs) > 1); err != nil {
				delete(fresh, d.key)
				return s, fresh, err
			}
		}
		var parts []engine.Part
		for _, p := range d.plans {
			parts = append(parts, engine.Part{Name: storeName(p.name), Place: p.place})
		}
		s.Stores = append(s.Stores, daemon.StoreConfig{Name: d.name, Key: d.publicKey(),
			Store: f.open[d.key],
			Parts: parts, Lock: lockOf(f.open[d.key]), Close: func() { f.left(d.key) }})
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
func (f *fleet) openStore(ctx context.Context, d *need, others bool) (is opened, err error) {
	for key := range f.open {
		if name := d.sharesEmbedded(f.needs[key]); name != "" {
			return is, exit(exitUsage, "the embedded store %s is in use: to keep its keys in two "+
				"stores, or in one again, needs a restart", name)
		}
	}
	// While there is a parked state, no other daemon serves.
	is.lazy = d.lazy || others || f.takeover != nil && f.takeover.Parked()
	if f.used != nil && len(d.plans) > 1 {
		is.lazy = false // a reload does not begin a move to a store that cannot be reached
	}
	st, err := d.open(ctx, opening{
		log:       f.log,
		lazy:      is.lazy,
		missing:   &is.missing,
		successor: f.takeover.Successor(d.name),
		seen:      &f.seen,
	})
	if err != nil {
		return is, err
	}
	f.open[d.key], f.needs[d.key] = st, d
	return is, nil
}

// publicKey returns a hash of the key, which may contain a password.
func (d *need) publicKey() string {
	sum := sha256.Sum256([]byte(d.key))
	return hex.EncodeToString(sum[:])
}

func (d *need) open(ctx context.Context, o opening) (upstream.Store, error) {
	if len(d.plans) == 1 {
		return d.plans[0].opened(ctx, o)
	}
	successors, missing := both.Successors(o.successor), o.missing
	// The new store can be told of the keys without the old store.
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

func (f *fleet) closeLocked(key string) {
	if err := f.open[key].Close(); err != nil {
		f.log.Warn("close store", zap.Error(err))
	}
	delete(f.open, key)
	delete(f.needs, key)
	delete(f.keys, key)
}

func namespace(n *config.Namespace, store string) engine.Namespace {
	uids, _ := config.UIDs(n.Users) // check has found no fault in them
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
	a.Users, _ = config.UIDs(c.Operators.Users) // check has found no fault in them
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
