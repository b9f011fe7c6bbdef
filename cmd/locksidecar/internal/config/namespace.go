package config

import (
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Policy holds the settings of a namespace. The top level of the file sets them for all
// keys.
type Policy struct {
	TTL            time.Duration
	MaxWait        time.Duration // 0 for no bound
	MaxHold        time.Duration // 0 for no bound
	Heartbeat      time.Duration // 0 for none
	MaxHandoffs    int
	MaxHandoffTime time.Duration
	Linger         time.Duration // 0 to release at once
	LingerPause    time.Duration
	Interop        bool
	FenceEpoch     uint64
	Outage         string // "fail" or "local"
	OutageAfter    time.Duration
	Users          []string
	Groups         []string
}

// Namespace applies to the keys that begin with Prefix and with no longer prefix of
// another namespace.
type Namespace struct {
	Prefix string
	Store  string // empty for the store in upstream
	Both   string // a second store while moving; empty for none

	MaxHolds   int // of all clients together; 0 for no bound
	MaxWaiters int // of all clients together; 0 for no bound
	Policy

	set []assignment // values that inherit sets, after the values of the top level
}

// assignment is a value of a namespace, still as text.
type assignment struct {
	field *Field[Namespace]
	text  string
}

// policyFields are the fields of a policy, at the top level and in every namespace.
var policyFields = []Field[Policy]{
	{Path: "ttl", Flag: "ttl", Help: "lease duration, unless the client requests another; the " +
		"daemon renews leases while they are held",
		More: "If this host dies, its locks become free after this time; on etcd and ZooKeeper, " +
			"after the store session in the URL (10s). Each store has a minimum.",
		Example: "10s", value: func(p *Policy) value {
			return duration(&p.TTL, shortestTTL, longestTTL)
		}},
	{Path: "max_wait", Flag: "max-wait", Help: "longest time that a client may wait for a lock; " +
		"0 for no limit",
		More: "A shorter one also applies to clients that wait already, counted from the " +
			"beginning of their waits.",
		Example: "1m", value: func(p *Policy) value { return duration(&p.MaxWait, 0, 0) }},
	{Path: "max_hold", Flag: "max-hold", Help: "longest time that a client may hold a lock; 0 " +
		"for no limit",
		More:    "After that the hold is lost (reason `too_long`).",
		Example: "5m", value: func(p *Policy) value { return durationOrNone(&p.MaxHold, shortestHold) }},
	{Path: "heartbeat", Help: "a client that sends nothing for this long, even on an open " +
		"connection, loses its holds; 0 for no heartbeat",
		More: "The reason is `silent`. Clients that " +
			"answer every keepalive, such as ours, lose no holds when a reload adds a heartbeat. " +
			"Time in which `limits.max_user_rate` delays requests does not count.",
		Example: "15s", value: func(p *Policy) value {
			return durationOrNone(&p.Heartbeat, shortestHeartbeat)
		}},
	{Path: "max_handoffs", Flag: "max-handoffs",
		Help: "maximum number of local handoffs of a lock while another host waits for it",
		More: "This and `max_handoff_time` are not used on Redlock, where a host does not notice " +
			"that another one waits: handoffs end after 500 ms.",
		Example: "16", value: func(p *Policy) value { return number(&p.MaxHandoffs, 1, 768) }},
	{Path: "max_handoff_time", Flag: "max-handoff-time",
		Help: "maximum time for local handoffs of a lock while another host waits for it",
		More: "If five round trips to the store take longer, their time is the limit. " +
			"Handoffs end when `max_handoffs` or `max_handoff_time` is reached, whichever is " +
			"first.",
		Example: "100ms", value: func(p *Policy) value {
			return duration(&p.MaxHandoffTime, time.Millisecond, 0)
		}},
	{Path: "linger", Flag: "linger", Help: "how long this host keeps a lock without holders if " +
		"local clients often want it again; 0 releases it at once",
		More: "At most half the TTL. Set the same value on every host. Not available with " +
			"`interop` or on Redlock.",
		Example: "2s", value: func(p *Policy) value { return duration(&p.Linger, 0, longestLinger) }},
	{Path: "linger_pause", Help: "how long linger is off for a lock after another host has " +
		"requested it",
		Example: "1s", value: func(p *Policy) value { return duration(&p.LingerPause, 0, 0) }},
	{Path: "interop", Help: "share the keys fairly with plain lockers, which poll",
		More: "Local handoffs of a key end after 500 ms at the latest. Then this host does not " +
			"acquire the key for 250 ms. `max_handoffs` and `max_handoff_time` still apply when " +
			"another host with locksidecar waits.",
		Example: "true", value: func(p *Policy) value { return yesno(&p.Interop) }},
	{Path: "fence_epoch", Help: "raises fences; set the same value on every host and never lower " +
		"it",
		More:    "Use it when keys move to a store whose fences would be smaller.",
		Example: "4000000000000000", value: func(p *Policy) value { return fence(&p.FenceEpoch) }},
	{Path: "outage", Flag: "outage", Help: "when the store is down: fail refuses acquires; local " +
		"lets this host grant alone, without fences",
		More: "Local grants are marked as degraded, because other hosts may hold the same " +
			"locks.",
		Example: "local", value: func(p *Policy) value { return choice(&p.Outage, "fail", "local") }},
	{Path: "outage_after", Help: "how long the store must be down before this host grants alone",
		Example: "5s", value: func(p *Policy) value { return duration(&p.OutageAfter, 0, 0) }},
	{Path: "users", Help: "users who may use the locks; all users if users and groups are empty",
		More:    "If `users` or `groups` is set, users in neither are refused (`denied`).",
		Example: "[1001, 1002]", value: func(p *Policy) value { return names(&p.Users) }},
	{Path: "groups", Help: "groups whose members may use the locks",
		Example: "[1001]", value: func(p *Policy) value { return names(&p.Groups) }},
}

// ownFields are the fields that only a namespace has.
var ownFields = []Field[Namespace]{
	{Path: "store", Help: "name of the store, under stores, that keeps the keys; empty for the " +
		"store in upstream",
		Example: "billing", value: func(n *Namespace) value { return text(&n.Store) }},
	{Path: "both", Help: "second store for the keys while they move to it from store",
		More: "`default` is the store in upstream. docs/operate/stores.md describes how to " +
			"move keys. Not available with `outage: local`.",
		Example: "default", value: func(n *Namespace) value { return text(&n.Both) }},
	{Path: "max_holds", Help: "maximum number of locks held by all clients of this host " +
		"together; 0 for no limit",
		Example: "10000", value: func(n *Namespace) value { return number(&n.MaxHolds, 0, 1<<30) }},
	{Path: "max_waiters", Help: "maximum number of waiting acquires of all clients of this host " +
		"together; 0 for no limit",
		Example: "1000", value: func(n *Namespace) value { return number(&n.MaxWaiters, 0, 1<<30) }},
}

// spaceFields are all fields of a namespace.
var spaceFields = slices.Concat(ownFields,
	within(func(n *Namespace) *Policy { return &n.Policy }, policyFields))

// storeFields are the fields of a store, at the top level and in every store under stores.
var storeFields = []Field[StoreSettings]{
	{Path: "upstream", Flag: "upstream", Help: "`URL` of the store: memory: (this host alone), " +
		"redis://HOST:PORT, etcd://HOST,HOST …; docs/operate/stores.md lists all",
		More:    "Hosts with the same store share their locks.",
		Example: "redis://redis.internal:6379",
		value:   func(s *StoreSettings) value { return text(&s.Upstream) }},
	{Path: "username", Help: "user name at the store, if the URL does not contain one",
		Example: "locksidecar", value: func(s *StoreSettings) value { return text(&s.Username) }},
	{Path: "password", Secret: true, Help: "password at the store",
		More:    "Set only one of `password`, `password_file` and a password in the URL.",
		Example: "sesame", value: func(s *StoreSettings) value { return text(&s.Password) }},
	{Path: "password_file", Help: "`file` that contains the password; the daemon reads it for " +
		"each connection, so it may change",
		Example: "/etc/locksidecar/secrets/redis",
		value:   func(s *StoreSettings) value { return text(&s.PasswordFile) }},
}

// inherit gives every namespace the policy of the top level and then its own values.
func (c *Config) inherit() (faults []error) {
	for _, n := range c.Namespaces {
		n.Policy = c.Policy
		for _, a := range n.set {
			if err := a.field.set(n, a.text); err != nil {
				path := n.path(a.field.Path)
				faults = append(faults, fmt.Errorf("%s: %s: %w", c.from[path], path, err))
			}
		}
	}
	return faults
}

// EachNamed calls show with the path and the value of each field that the file sets for a store or a
// namespace.
func (c *Config) EachNamed(show func(path, value string)) {
	for _, s := range c.Stores {
		for i := range storeFields {
			f := &storeFields[i]
			if path := s.path(f.Path); c.Set(path) {
				show(path, f.Value(s))
			}
		}
	}
	for _, n := range c.Namespaces {
		for _, a := range n.set {
			show(n.path(a.field.Path), a.field.Value(n))
		}
	}
}

// path returns the path of a field of n in the file.
func (n *Namespace) path(field string) string { return NamespacePath(n.Prefix) + "." + field }

// NamespacePath returns the path of the namespace of a prefix in the file. The empty prefix is in
// quotes, as in the file.
func NamespacePath(prefix string) string {
	if prefix == "" {
		return `namespaces.""`
	}
	return "namespaces." + prefix
}

// AllNamespaces returns all namespaces: first the one for keys without a fitting prefix, then the
// rest by prefix.
func (c *Config) AllNamespaces() []*Namespace {
	all := slices.Clone(c.Namespaces)
	if !slices.ContainsFunc(all, func(n *Namespace) bool { return n.Prefix == "" }) {
		all = append(all, &Namespace{Policy: c.Policy})
	}
	slices.SortFunc(all, func(a, b *Namespace) int { return strings.Compare(a.Prefix, b.Prefix) })
	return all
}

// Space returns the namespace of a key.
func (c *Config) Space(key string) *Namespace {
	all := c.AllNamespaces()
	found := all[0]
	for _, n := range all {
		if strings.HasPrefix(key, n.Prefix) && len(n.Prefix) >= len(found.Prefix) {
			found = n
		}
	}
	return found
}

// The first message of the daemon to a client lists the namespaces. maxSpaces bounds their entries
// in it, in bytes, so that it fits into a frame of the size that every client reads. An entry has
// the prefix and up to spaceSize other bytes.
const (
	maxSpaces = protocol.DefaultMaxFrame - 1500
	spaceSize = 64
)

// checkNamespaces checks combinations of fields.
func (c *Config) checkNamespaces(fault func(path, format string, a ...any)) {
	size := 0
	for _, n := range c.AllNamespaces() {
		size += len(n.Prefix) + spaceSize
	}
	if size > maxSpaces {
		fault("namespaces", "there are %d: in the daemon's first message to each client they need "+
			"%d bytes, counted as %d and the prefix for each; the maximum is %d",
			len(c.Namespaces), size, spaceSize, maxSpaces)
	}
	for _, n := range c.AllNamespaces() {
		at := n.path
		if n.Prefix == "" && len(n.set) == 0 {
			at = func(field string) string { return field }
		} else if n.Prefix != "" {
			if err := protocol.CheckKey(n.Prefix); err != nil {
				fault(NamespacePath(n.Prefix), "%v", err)
			}
		}
		c.checkStores(n, func(field, format string, a ...any) { fault(at(field), format, a...) })
		if n.Linger > 0 && n.Interop {
			fault(at("linger"), "linger is not available with interop, because plain lockers "+
				"cannot signal that they want a lock")
		}
		if _, err := UIDs(n.Users); err != nil {
			fault(at("users"), "%v", err)
		}
		if _, err := GIDs(n.Groups); err != nil {
			fault(at("groups"), "%v", err)
		}
	}
}

// checkStores checks the stores of a namespace.
func (c *Config) checkStores(n *Namespace, fault func(field, format string, a ...any)) {
	if c.Store(n.Store) == nil {
		fault("store", "there is no store %q under stores", n.Store)
	}
	if n.Both == "" {
		return
	}
	switch c.Store(n.Both) {
	case nil:
		fault("both", "there is no store %q under stores", n.Both)
	case c.Store(n.Store):
		fault("both", "store and both name the same store")
	}
	if n.Outage == "local" {
		fault("both", "both is not available with outage: local")
	}
}

// UIDs returns the uids of users, given by name or number.
func UIDs(users []string) ([]int, error) {
	return ids(users, "user", func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
}

// GIDs returns the gids of groups, given by name or number.
func GIDs(groups []string) ([]int, error) {
	return ids(groups, "group", func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
}

func ids(who []string, what string, look func(string) (string, error)) (all []int, err error) {
	for _, name := range who {
		id, e := strconv.Atoi(name)
		if e != nil {
			found, e := look(name)
			if e == nil {
				id, e = strconv.Atoi(found)
			}
			if e != nil {
				err = errors.Join(err, fmt.Errorf("there is no %s %q", what, name))
				continue
			}
		}
		all = append(all, id)
	}
	return all, err
}
