package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// This file has the routes, from which the namespace and the store of each key follow. A reload
// replaces all routes while locks are held.

// route is a namespace together with its store lane, for keys of one class.
type route struct {
	Namespace
	*StoreLane
	policy *cache.Namespace // the policy of the keys, as the lock tables see it
	class  *class
	part   bool // this is the part of a namespace that belongs to a class: see divide
}

// routeTable finds the namespace of a key.
type routeTable struct {
	routes  map[string]*route // by prefix
	lengths []int             // of prefixes, the longest first
}

func routeFor[K ~string | ~[]byte](r *routeTable, key K) *route {
	for _, n := range r.lengths {
		if n <= len(key) {
			if rt := r.routes[string(key[:n])]; rt != nil {
				return rt
			}
		}
	}
	return nil // unreachable: there is a route for the empty prefix
}

// StoreFor returns the store to which a key is routed.
func (e *Engine) StoreFor(key string) *StoreLane { return routeFor(e.routes.Load(), key).StoreLane }

// policy returns the policy of a key for the lock tables.
func (r *routeTable) policy(key string) *cache.Namespace { return routeFor(r, key).policy }

// uses reports whether keys are routed to sl.
func (r *routeTable) uses(sl *StoreLane) bool {
	for _, rt := range r.routes {
		if rt.StoreLane == sl {
			return true
		}
	}
	return false
}

// sorted returns every route, in the order of the prefixes.
func (r *routeTable) sorted() []*route {
	byPrefix := func(a, b *route) int { return cmp.Compare(a.Prefix, b.Prefix) }
	all := slices.SortedFunc(maps.Values(r.routes), byPrefix)
	return slices.DeleteFunc(all, func(rt *route) bool { return rt.part })
}

func (r *routeTable) add(prefix string, rt *route) {
	r.routes[prefix] = rt
	if !slices.Contains(r.lengths, len(prefix)) {
		r.lengths = append(r.lengths, len(prefix))
		slices.SortFunc(r.lengths, func(a, b int) int { return b - a })
	}
}

// keepPolicies reuses the policy of each namespace that has not changed. The leases of such a
// namespace then need no update.
func (r *routeTable) keepPolicies(old *routeTable) {
	if old == nil {
		return
	}
	for prefix, rt := range r.routes {
		if was := old.routes[prefix]; was != nil && *was.policy == *rt.policy {
			rt.policy = was.policy
		}
	}
}

// limitMore reports whether r moves keys into a namespace with limits: by the earlier routes was,
// they were not in it. If so, all tables have to count their holds and waiters there before any key
// is granted by r. That visits all leases, with every shard's mutex held; other changes of the
// routes do not need it.
func (r *routeTable) limitMore(was *routeTable) bool {
	return was != nil && slices.ContainsFunc(prefixes(was, r), func(p string) bool {
		use := routeFor(r, p).policy.Use
		return use != routeFor(was, p).policy.Use &&
			(use.MaxHolds.Load() > 0 || use.MaxWaiters.Load() > 0)
	})
}

// prefixes returns the prefixes of both a and b, each once, in order.
func prefixes(a, b *routeTable) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a.routes)), maps.Keys(b.routes))
	slices.Sort(all)
	return slices.Compact(all)
}

// divide adds routes to r for the prefixes of the classes, and sets the class of each route.
func (e *Engine) divide(r *routeTable, classes []Class) {
	longestFirst := func(a, b Class) int { return len(b.Prefix) - len(a.Prefix) }
	byLength := slices.SortedFunc(slices.Values(classes), longestFirst)
	classOf := func(prefix string) string {
		for _, c := range byLength {
			if strings.HasPrefix(prefix, c.Prefix) {
				return c.Name
			}
		}
		return ""
	}
	for _, c := range classes {
		if r.routes[c.Prefix] == nil {
			rt := *routeFor(r, c.Prefix)
			t := *rt.policy
			rt.policy, rt.part = &t, true
			r.add(c.Prefix, &rt)
		}
	}
	for prefix, rt := range r.routes {
		rt.policy.Class, rt.class = e.classes.of(rt.Prefix, classOf(prefix))
	}
}

// Route routes keys by the namespaces in list from now on, and counts them by classes. list needs a
// namespace with the empty prefix. A held lease stays at its store until it is released, even if
// its key is routed to another store now. Waiters move with their keys. Route refuses the waiters
// that may no longer use their keys. After an error nothing has changed.
func (e *Engine) Route(list []Namespace, classes []Class) error {
	return e.RouteAfter(nil, list, classes)
}

// RouteAfter is like Route, but calls commit, if it is not nil, when nothing else can fail any
// more. After an error of commit, too, nothing has changed.
func (e *Engine) RouteAfter(commit func() error, list []Namespace, classes []Class) error {
	e.routing.Lock()
	defer e.routing.Unlock()
	r := &routeTable{routes: make(map[string]*route)}
	for _, n := range list {
		rt, err := e.newRoute(n)
		if err != nil {
			return fmt.Errorf("namespace %q: %w", n.Prefix, err)
		}
		if r.routes[n.Prefix] != nil {
			return fmt.Errorf("duplicate namespace %q", n.Prefix)
		}
		r.add(n.Prefix, rt)
	}
	if r.routes[""] == nil {
		return errors.New("no namespace has the empty prefix")
	}
	if commit != nil {
		if err := commit(); err != nil {
			return err
		}
	}
	for _, rt := range r.routes { // nothing fails from here on
		rt.policy.Use.MaxHolds.Store(rt.MaxHolds)
		rt.policy.Use.MaxWaiters.Store(rt.MaxWaiters)
	}
	e.divide(r, classes)
	r.keepPolicies(e.routes.Load())
	e.follow(r)
	e.Reroute()
	return nil
}

// newRoute returns the route of namespace n.
func (e *Engine) newRoute(n Namespace) (*route, error) {
	n.defaults()
	sl := e.StoreNamed(n.Store)
	if sl == nil {
		return nil, fmt.Errorf("there is no store %q", n.Store)
	}
	if !sl.info.Queue && n.Tenure == 0 {
		n.Tenure, n.Pause = DefaultTenure, DefaultPause
	}
	if n.Linger > 0 && n.Tenure > 0 {
		return nil, errors.New("linger needs a store that reports contended locks")
	}
	use := new(cache.Use)
	if old := e.routes.Load(); old != nil {
		// A class has the counters of its namespace.
		if was := old.routes[n.Prefix]; was != nil && !was.part {
			use = was.policy.Use
		}
	}
	return &route{Namespace: n, StoreLane: sl, policy: &cache.Namespace{
		Store: sl.core, MaxHandoffs: n.MaxHandoffs, MaxHandoffTime: n.MaxHandoffTime,
		Linger: min(n.Linger, MaxLinger), LingerPause: n.LingerPause,
		MaxWait: n.MaxWait, MaxHold: n.MaxHold, Heartbeat: n.Heartbeat,
		Tenure: n.Tenure, Pause: n.Pause, Epoch: n.FenceEpoch, Local: n.Local,
		LocalAfter: n.LocalAfter, Use: use,
	}}, nil
}

// Reroute applies the present routes to every lease, and refuses the waiters that may no longer use
// their keys. Route calls it, and so does Abandon.
func (e *Engine) Reroute() {
	e.forEachTable(func(t *cache.Table, now int64, out *cache.Effects) {
		r := e.routes.Load()
		admit := func(s *cache.Session, key string, mode protocol.Mode, ttl int64) (
			protocol.Code, error,
		) {
			return routeFor(r, key).checkAcquire(&SessionOf(s).peer, mode, ttl)
		}
		t.Reroute(r.policy, admit, now, out)
	})
}
