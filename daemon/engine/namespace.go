package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Namespace is the policy for the keys that begin with Prefix, except those that begin with a longer prefix of another
// namespace. The zero value of a field is its default.
type Namespace struct {
	Prefix string
	Store  string // the name of one of the stores

	TTL       time.Duration // of an acquire that states none: 30 s
	MaxTTL    time.Duration // 24 h
	MaxWait   time.Duration // the longest wait of an acquire; 0 for no bound
	MaxHold   time.Duration // the longest hold; 0 for no bound
	Heartbeat time.Duration // a client silent for so long loses its holds; 0 to not ask

	MaxHandoffs    int           // local handoffs of a key while another host waits for it: 8
	MaxHandoffTime time.Duration // the time for them: 50 ms, but at least 5 round trips to the store
	Linger         time.Duration // how long a lease with no hold may stay here, up to MaxLinger; 0 for not
	LingerPause    time.Duration // how long linger is off for a key after another host has acquired or waited for it: 30 s
	MaxHolds       int64         // of all clients together; 0 for no bound
	MaxWaiters     int64         // of all clients together; 0 for no bound

	// Tenure bounds how long a lease stays on this host while a local waiter waits for it. After that
	// this host leaves the key alone for Pause. They are for keys that plain lockers use, too. 0 means
	// neither, except at stores without a queue between hosts, which use the defaults.
	Tenure, Pause time.Duration

	Users, Groups []int  // the users and groups that may use the keys, by uid and gid; both empty for everybody
	FenceEpoch    uint64 // raises fence bases: see cache.Namespace

	// Local allows this host to grant alone, without fences, after the store has been
	// down for LocalAfter (1 s).
	Local      bool
	LocalAfter time.Duration
}

// MaxLinger bounds how long a lease may linger. Half the lease's TTL is another bound.
const MaxLinger = 2 * time.Second

// DefaultTenure and DefaultPause suit lockers that poll about ten times a second.
const (
	DefaultTenure = 500 * time.Millisecond
	DefaultPause  = 250 * time.Millisecond
)

func (n *Namespace) defaults() {
	n.TTL = cmp.Or(n.TTL, 30*time.Second)
	n.MaxTTL = cmp.Or(n.MaxTTL, protocol.MaxTTL*time.Millisecond)
	n.MaxHandoffs = cmp.Or(n.MaxHandoffs, 8)
	n.MaxHandoffTime = cmp.Or(n.MaxHandoffTime, 50*time.Millisecond)
	n.LingerPause = cmp.Or(n.LingerPause, 30*time.Second)
	n.LocalAfter = cmp.Or(n.LocalAfter, time.Second)
	for _, d := range []*time.Duration{&n.MaxWait, &n.MaxHold, &n.Heartbeat, &n.MaxHandoffTime, &n.LingerPause, &n.Tenure, &n.Pause, &n.LocalAfter} {
		*d = min(*d, longest)
	}
}

// longest stands for any time that is longer. A time of the boot clock plus longest does not overflow.
const longest = 100 * 365 * 24 * time.Hour

// Class is a name under which the keys with a prefix are counted separately within their namespace.
type Class struct{ Name, Prefix string }

// route is a namespace together with its store lane, for keys of one class.
type route struct {
	Namespace
	*StoreLane
	table *cache.Namespace
	class *class
	part  bool // this is the part of a namespace that belongs to a class
}

func (sp *route) minTTL() time.Duration { return sp.info.MinTTL }

// Refusals that do not depend on a table.
var (
	errDenied       = errors.New("this user may not use keys of this namespace")
	errNoSemaphores = errors.New("the store of this key has no semaphores")
)

// admits reports whether a peer may acquire a key in a mode for ttl nanoseconds: CodeOK, or the code and the
// reason of the refusal.
func (sp *route) admits(p *Peer, mode cache.Mode, ttl int64) (cache.Code, error) {
	switch d := time.Duration(ttl); {
	case !sp.allows(p):
		return cache.CodeDenied, errDenied
	case mode == cache.Permit && !sp.info.Permits:
		return cache.CodeUnsupported, errNoSemaphores
	case d < sp.minTTL():
		return cache.CodeInvalid, fmt.Errorf("ttl of %v is shorter than the store's minimum of %v", d, sp.minTTL())
	case d > sp.MaxTTL:
		return cache.CodeInvalid, fmt.Errorf("ttl of %v is longer than the limit of %v", d, sp.MaxTTL)
	}
	return cache.CodeOK, nil
}

// allows reports whether a peer may use the keys.
func (sp *route) allows(p *Peer) bool {
	if len(sp.Users) == 0 && len(sp.Groups) == 0 {
		return true
	}
	if slices.Contains(sp.Users, p.UID) || slices.Contains(sp.Groups, p.GID) {
		return true
	}
	return slices.ContainsFunc(p.Groups, func(g int) bool { return slices.Contains(sp.Groups, g) })
}

// routeTable finds the namespace of a key.
type routeTable struct {
	routes  map[string]*route // by prefix
	lengths []int             // of prefixes, the longest first
}

func routeFor[K ~string | ~[]byte](r *routeTable, key K) *route {
	for _, n := range r.lengths {
		if n <= len(key) {
			if sp := r.routes[string(key[:n])]; sp != nil {
				return sp
			}
		}
	}
	return nil // unreachable: there is a route for the empty prefix
}

// keepPolicies reuses the policy of each namespace that has not changed. The leases of such a namespace then
// need no update.
func (r *routeTable) keepPolicies(old *routeTable) {
	if old == nil {
		return
	}
	for prefix, sp := range r.routes {
		if was := old.routes[prefix]; was != nil && *was.table == *sp.table {
			sp.table = was.table
		}
	}
}

// policy returns the policy of a key for the lock tables.
func (r *routeTable) policy(key string) *cache.Namespace { return routeFor(r, key).table }

// limitMore reports whether some keys are in a namespace with limits, and were not in it by the routes was. If so, all
// tables have to count their holds and waiters there before any key is granted by r. That visits all leases, with
// every shard's mutex held; other changes of the routes do not need it.
func (r *routeTable) limitMore(was *routeTable) bool {
	return was != nil && slices.ContainsFunc(prefixes(was, r), func(p string) bool {
		use := routeFor(r, p).table.Use
		return use != routeFor(was, p).table.Use && (use.MaxHolds.Load() > 0 || use.MaxWaiters.Load() > 0)
	})
}

// prefixes returns the prefixes of both a and b, each once, in order.
func prefixes(a, b *routeTable) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a.routes)), maps.Keys(b.routes))
	slices.Sort(all)
	return slices.Compact(all)
}

// StoreFor returns the store to which a key is routed.
func (e *Engine) StoreFor(key string) *StoreLane { return routeFor(e.routes.Load(), key).StoreLane }

// uses reports whether keys are routed to u.
func (r *routeTable) uses(u *StoreLane) bool {
	for _, sp := range r.routes {
		if sp.StoreLane == u {
			return true
		}
	}
	return false
}

// sorted returns every route, in the order of the prefixes.
func (r *routeTable) sorted() []*route {
	all := slices.SortedFunc(maps.Values(r.routes), func(a, b *route) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return slices.DeleteFunc(all, func(sp *route) bool { return sp.part })
}

func (r *routeTable) add(prefix string, sp *route) {
	r.routes[prefix] = sp
	if !slices.Contains(r.lengths, len(prefix)) {
		r.lengths = append(r.lengths, len(prefix))
		slices.SortFunc(r.lengths, func(a, b int) int { return b - a })
	}
}

// divide adds routes to r for the prefixes of the classes, and sets the class of each route.
func (e *Engine) divide(r *routeTable, classes []Class) {
	byLength := slices.SortedFunc(slices.Values(classes), func(a, b Class) int { return len(b.Prefix) - len(a.Prefix) })
	of := func(prefix string) string {
		for _, c := range byLength {
			if strings.HasPrefix(prefix, c.Prefix) {
				return c.Name
			}
		}
		return ""
	}
	for _, c := range classes {
		if r.routes[c.Prefix] == nil {
			sp := *routeFor(r, c.Prefix)
			t := *sp.table
			sp.table, sp.part = &t, true
			r.add(c.Prefix, &sp)
		}
	}
	for prefix, sp := range r.routes {
		sp.table.Class, sp.class = e.classes.of(sp.Prefix, of(prefix))
	}
}

// Route routes keys by list from now on, and counts them by classes. list needs a namespace with the empty prefix. A
// lease that is held stays at its store until it is released, even if its key is routed to another store now. Waiters
// move with their keys; those that may no longer use them are refused. After an error nothing has changed.
func (e *Engine) Route(list []Namespace, classes []Class) error {
	return e.RouteAfter(nil, list, classes)
}

// RouteAfter is Route that calls commit, if it is not nil, when nothing else can fail. An error of commit changes
// nothing, like any other.
func (e *Engine) RouteAfter(commit func() error, list []Namespace, classes []Class) error {
	e.routing.Lock()
	defer e.routing.Unlock()
	r := &routeTable{routes: make(map[string]*route)}
	for _, n := range list {
		sp, err := e.newRoute(n)
		if err != nil {
			return fmt.Errorf("namespace %q: %w", n.Prefix, err)
		}
		if r.routes[n.Prefix] != nil {
			return fmt.Errorf("duplicate namespace %q", n.Prefix)
		}
		r.add(n.Prefix, sp)
	}
	if r.routes[""] == nil {
		return errors.New("no namespace has the empty prefix")
	}
	if commit != nil {
		if err := commit(); err != nil {
			return err
		}
	}
	for _, sp := range r.routes { // nothing fails from here on
		sp.table.Use.MaxHolds.Store(sp.MaxHolds)
		sp.table.Use.MaxWaiters.Store(sp.MaxWaiters)
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
	u := e.StoreNamed(n.Store)
	if u == nil {
		return nil, fmt.Errorf("there is no store %q", n.Store)
	}
	if !u.info.Queue && n.Tenure == 0 {
		n.Tenure, n.Pause = DefaultTenure, DefaultPause
	}
	if n.Linger > 0 && n.Tenure > 0 {
		return nil, errors.New("linger needs a store that reports contended locks")
	}
	use := new(cache.Use)
	if old := e.routes.Load(); old != nil {
		if was := old.routes[n.Prefix]; was != nil && !was.part { // a class has the counters of its namespace
			use = was.table.Use
		}
	}
	return &route{Namespace: n, StoreLane: u, table: &cache.Namespace{
		Store: u.core, MaxHandoffs: n.MaxHandoffs, MaxHandoffTime: n.MaxHandoffTime,
		Linger: min(n.Linger, MaxLinger), LingerPause: n.LingerPause, MaxWait: n.MaxWait, MaxHold: n.MaxHold, Heartbeat: n.Heartbeat,
		Tenure: n.Tenure, Pause: n.Pause, Epoch: n.FenceEpoch, Local: n.Local, LocalAfter: n.LocalAfter, Use: use,
	}}, nil
}

// Reroute applies the present routes to every lease, and refuses the waiters that may no longer use their
// keys. Route calls it, and so does Abandon.
func (e *Engine) Reroute() {
	e.everywhere(func(t *cache.Table, now int64, out *cache.Effects) {
		r := e.routes.Load()
		t.Reroute(r.policy,
			func(s *cache.Session, key string, mode cache.Mode, ttl int64) (cache.Code, error) {
				return routeFor(r, key).admits(&SessionOf(s).peer, mode, ttl)
			}, now, out)
	})
}
