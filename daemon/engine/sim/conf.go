package sim

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// conf is a configuration that an operator writes for all hosts. It never changes.
type conf struct {
	namespaces []namespace // by prefix; the first is for the empty one
	spare      []*simStore // stores that it names, and that no namespace uses
	classes    []engine.Class
	limits     engine.Limits
	stage      int // how many rollouts of a move there have been
}

// namespace is one namespace of a configuration, with its store.
type namespace struct {
	engine.Namespace
	at *simStore
}

// of returns the namespace of a key.
func (c *conf) of(name string) *namespace {
	best := &c.namespaces[0]
	for i := range c.namespaces {
		ns := &c.namespaces[i]
		if len(ns.Prefix) > len(best.Prefix) && strings.HasPrefix(name, ns.Prefix) {
			best = ns
		}
	}
	return best
}

// stores returns the stores that the configuration names.
func (c *conf) stores() (all []*simStore) {
	for i := range c.namespaces {
		if s := c.namespaces[i].at; !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	for _, s := range c.spare {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}

// allows reports whether a user may use the keys.
func (ns *namespace) allows(uid int) bool {
	return len(ns.Users) == 0 ||
		slices.Contains(ns.Users, uid)
}

// firstConf returns the configuration with which every host begins.
func (w *World) firstConf() *conf {
	c := &conf{limits: w.limits()}
	c.namespaces = []namespace{{w.policy(""), w.stores[0]}}
	for range w.p.Namespaces {
		w.changeNamespace(c)
	}
	return c
}

// limits returns the limits of sessions and users.
func (w *World) limits() engine.Limits {
	return engine.Limits{MaxHolds: int(w.p.MaxHolds), MaxWaiters: int(w.p.MaxWaits),
		MaxFrame: maxFrame, OutBuffer: w.p.Out,
		Users: engine.UserLimits{Holds: w.p.UserHolds, Waiters: w.p.UserWaits,
			Rate: w.p.Rate}}
}

// policy draws the settings of a namespace from the settings that this world may use. If there is
// only one namespace, it uses all of them.
func (w *World) policy(prefix string) engine.Namespace {
	p := &w.p
	n := engine.Namespace{Prefix: prefix, TTL: time.Duration(p.TTLs[0] * ms), MaxTTL: time.Hour,
		MaxHandoffs: p.Hands, MaxHandoffTime: time.Duration(p.HandTime),
		LingerPause: time.Duration(p.Pause), LocalAfter: time.Duration(p.LocalAfter)}
	has := func() bool { return p.Namespaces == 0 || w.chance(600) }
	if p.Linger > 0 && has() {
		n.Linger = time.Duration(p.Linger)
	}
	if p.MaxHold > 0 && has() {
		n.MaxHold = time.Duration(p.MaxHold)
	}
	if p.Tenure > 0 && has() {
		n.Tenure, n.Pause = time.Duration(p.Tenure), time.Duration(p.Tenure/2)
	}
	if p.Local && has() {
		n.Local = true
	}
	if p.Namespaces == 0 {
		return n
	}
	n.MaxHandoffs = 1 + w.pick(p.Hands)
	if p.Heartbeat > 0 && (p.Stalls || has()) {
		n.Heartbeat = time.Duration(p.Heartbeat)
	}
	if p.MaxWait > 0 && has() {
		n.MaxWait = time.Duration(p.MaxWait)
	}
	if p.NamespaceLimit > 0 && has() {
		n.MaxHolds, n.MaxWaiters = int64(1+w.pick(p.NamespaceLimit)), int64(1+w.pick(p.NamespaceLimit))
	}
	if p.Users > 1 && has() {
		for uid := range p.Users {
			if w.chance(700) {
				n.Users = append(n.Users, uid)
			}
		}
	}
	return n
}

// prefixes returns the prefixes that a namespace may have: all locks, all semaphores, or a single
// key.
func (w *World) prefixes() []string {
	all := []string{"k", "s"}
	for _, k := range w.everything {
		all = append(all, k.name)
	}
	return all
}

// changeNamespace changes one namespace of c, or adds one.
func (w *World) changeNamespace(c *conf) {
	prefix := ""
	if w.chance(800) {
		all := w.prefixes()
		prefix = all[w.pick(len(all))]
	}
	ns := namespace{w.policy(prefix), w.stores[w.pick(len(w.stores))]}
	if w.p.Move {
		ns.at = w.stageStore(c.stage)
	}
	i := slices.IndexFunc(c.namespaces, func(o namespace) bool { return o.Prefix == prefix })
	switch {
	case i < 0:
		c.namespaces = append(c.namespaces, ns)
		slices.SortFunc(c.namespaces, func(a, b namespace) int { return cmp.Compare(a.Prefix, b.Prefix) })
	case w.chance(300): // only its policy
		c.namespaces[i].Namespace = ns.Namespace
	case w.chance(400): // only its store
		c.namespaces[i].at = ns.at
	default:
		c.namespaces[i] = ns
	}
}

// edit returns the next configuration after c.
func (w *World) edit(c *conf) *conf {
	next := &conf{namespaces: slices.Clone(c.namespaces), spare: c.spare, classes: c.classes, limits: c.limits,
		stage: c.stage}
	switch w.pick(8) {
	case 0, 1, 2:
		w.changeNamespace(next)
	case 3: // it removes a namespace
		if n := len(next.namespaces); n > 1 {
			i := 1 + w.pick(n-1)
			next.namespaces = slices.Delete(next.namespaces, i, i+1)
		}
	case 4, 5: // it removes a store, and gives its namespaces another one
		removed, to := w.stores[w.pick(len(w.stores))], w.stores[w.pick(len(w.stores))]
		for i := range next.namespaces {
			if next.namespaces[i].at == removed {
				next.namespaces[i].at = to
			}
		}
		next.spare = slices.DeleteFunc(slices.Clone(next.spare), func(s *simStore) bool {
			return s == removed
		})
	case 6:
		next.spare = nil
		if w.chance(500) {
			next.spare = []*simStore{w.stores[w.pick(len(w.stores))]}
		}
		next.classes = nil
		if w.chance(500) {
			all := w.prefixes()
			next.classes = []engine.Class{{Name: "class", Prefix: all[w.pick(len(all))]}}
		}
	case 7:
		next.limits = w.limits()
		if w.chance(500) && next.limits.MaxHolds < 1000 {
			next.limits.MaxHolds, next.limits.MaxWaiters = max(1, next.limits.MaxHolds/2),
				max(1, next.limits.MaxWaiters/2)
		}
		if w.p.Rate > 0 {
			next.limits.Users.Rate = w.p.Rate * w.pick(3)
		}
	}
	return next
}
