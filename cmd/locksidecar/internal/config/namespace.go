package config

import (
	"errors"
	"fmt"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

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

	set []assignment // values for inherit to set, after those of the top level
}

// assignment is a value of a namespace, still as text.
type assignment struct {
	value func(*Namespace) pflag.Value
	name  string
	text  string
}

// policySetting is one field of a policy, at the top level and in every namespace.
type policySetting struct {
	name, flag          string
	help, more, example string // see Setting
	value               func(*Policy) pflag.Value
}

var policySettings = []policySetting{
	{name: "ttl", flag: "ttl", help: "lease duration, unless the client requests another; the daemon renews leases while they are held",
		more:    "If this host dies, its locks become free after this time. Each store has a minimum; a configuration with a shorter ttl is refused.",
		example: "10s", value: func(p *Policy) pflag.Value { return &duration{d: &p.TTL, least: shortestTTL, most: longestTTL} }},
	{name: "max_wait", flag: "max-wait", help: "longest time that a client may wait for a lock; 0 for no limit",
		more:    "A shorter one also applies to clients that wait already, counted from the beginning of their waits.",
		example: "1m", value: func(p *Policy) pflag.Value { return &duration{d: &p.MaxWait} }},
	{name: "max_hold", flag: "max-hold", help: "longest time that a client may hold a lock; 0 for no limit",
		more:    "After that the hold is lost (reason `too_long`).",
		example: "5m", value: func(p *Policy) pflag.Value { return &duration{d: &p.MaxHold, least: shortestHold, none: true} }},
	{name: "heartbeat", help: "a client that sends nothing for this long loses its holds; 0 for no heartbeat",
		more: "The reason is `silent`. This applies even while the connection is open, because the process may be stopped. " +
			"Clients that answer every keepalive, such as ours for Go, Python and Java, lose no holds when a reload adds a heartbeat. " +
			"Time in which the daemon reads nothing because of `limits.max_user_rate` does not count.",
		example: "15s", value: func(p *Policy) pflag.Value { return &duration{d: &p.Heartbeat, least: shortestBeat, none: true} }},
	{name: "max_handoffs", flag: "max-handoffs", help: "maximum number of local handoffs of a lock while another host waits for it",
		more:    "Not used on Redlock, where a host does not notice that another one waits: handoffs end after 500 ms there. The same holds for `max_handoff_time`.",
		example: "16", value: func(p *Policy) pflag.Value { return &number{&p.MaxHandoffs, 1, 768} }},
	{name: "max_handoff_time", flag: "max-handoff-time", help: "maximum time for local handoffs of a lock while another host waits for it",
		more:    "If five round trips to the store take longer, their time is the limit. Handoffs end when `max_handoffs` or `max_handoff_time` is reached, whichever is first.",
		example: "100ms", value: func(p *Policy) pflag.Value { return &duration{d: &p.MaxHandoffTime, least: time.Millisecond} }},
	{name: "linger", flag: "linger", help: "how long this host keeps a lock without holders if local clients often want it again; 0 releases it at once",
		more:    "At most half the TTL. Set the same value on every host. Not available with `interop` or on Redlock.",
		example: "2s", value: func(p *Policy) pflag.Value { return &duration{d: &p.Linger, most: longestLinger} }},
	{name: "linger_pause", help: "how long linger is off for a lock after another host has wanted it",
		example: "1s", value: func(p *Policy) pflag.Value { return &duration{d: &p.LingerPause} }},
	{name: "interop", help: "share the keys fairly with plain lockers, which poll",
		more:    "Local handoffs of a key end after 500 ms at the latest; then this host leaves the key alone for 250 ms. `max_handoffs` and `max_handoff_time` still apply when another host with locksidecar waits.",
		example: "true", value: func(p *Policy) pflag.Value { return (*yesno)(&p.Interop) }},
	{name: "fence_epoch", help: "raises fences; set the same value on every host and never lower it",
		more:    "Use it when keys move to a store whose fences would be smaller than those of the previous store.",
		example: "4000000000000000", value: func(p *Policy) pflag.Value { return (*fence)(&p.FenceEpoch) }},
	{name: "outage", flag: "outage", help: "when the store is down: fail refuses acquires; local lets this host grant alone, without fences",
		more:    "Local grants are marked as degraded, because other hosts may hold the same locks.",
		example: "local", value: func(p *Policy) pflag.Value { return &choice{&p.Outage, []string{"fail", "local"}} }},
	{name: "outage_after", help: "how long the store must be down before this host grants alone",
		example: "5s", value: func(p *Policy) pflag.Value { return &duration{d: &p.OutageAfter} }},
	{name: "users", help: "users who may use the locks, by name or number, separated by commas; all users if users and groups are empty",
		more:    "If `users` or `groups` is set, users in neither are refused (`denied`).",
		example: "[1001, 1002]", value: func(p *Policy) pflag.Value { return (*names)(&p.Users) }},
	{name: "groups", help: "groups whose members may use the locks, in the same form as users",
		example: "[1001]", value: func(p *Policy) pflag.Value { return (*names)(&p.Groups) }},
}

// spaceSettings are the fields that only a namespace has.
var spaceSettings = []struct {
	name, help, more, example string
	value                     func(*Namespace) pflag.Value
}{
	{name: "store", help: "name of the store, under stores, that keeps the keys; empty for the store in upstream",
		example: "billing", value: func(n *Namespace) pflag.Value { return (*text)(&n.Store) }},
	{name: "both", help: "second store for the keys while they move to it from store",
		more:    "`default` is the store in upstream. upstream/STORES.md describes how to move keys. Not available with `outage: local`.",
		example: "default", value: func(n *Namespace) pflag.Value { return (*text)(&n.Both) }},
	{name: "max_holds", help: "maximum number of locks held by all clients of this host together; 0 for no limit",
		example: "10000", value: func(n *Namespace) pflag.Value { return &number{&n.MaxHolds, 0, 1 << 30} }},
	{name: "max_waiters", help: "maximum number of waiting acquires of all clients of this host together; 0 for no limit",
		example: "1000", value: func(n *Namespace) pflag.Value { return &number{&n.MaxWaiters, 0, 1 << 30} }},
}

// storeSettings are the fields of a store, at the top level and in every store under stores.
var storeSettings = []struct {
	name, flag          string
	help, more, example string
	secret              bool
	value               func(*Store) pflag.Value
}{
	{name: "upstream", flag: "upstream", help: "`URL` of the store: memory: (this host alone), redis://HOST:PORT, etcd://HOST,HOST …; upstream/STORES.md lists all",
		more:    "Hosts with the same store share their locks.",
		example: "redis://redis.internal:6379", value: func(s *Store) pflag.Value { return (*text)(&s.Upstream) }},
	{name: "username", help: "user name at the store, if the URL does not contain one",
		example: "locksidecar", value: func(s *Store) pflag.Value { return (*text)(&s.Username) }},
	{name: "password", secret: true, help: "password at the store",
		more:    "Set only one of `password`, `password_file` and a password in the URL.",
		example: "sesame", value: func(s *Store) pflag.Value { return (*text)(&s.Password) }},
	{name: "password_file", help: "`file` that contains the password; the daemon reads it for each connection, so it may change",
		example: "/etc/locksidecar/secrets/redis", value: func(s *Store) pflag.Value { return (*text)(&s.PasswordFile) }},
}

// spaceField returns the field of a namespace with that name; nil if there is none.
func spaceField(name string) func(*Namespace) pflag.Value {
	for _, s := range spaceSettings {
		if s.name == name {
			return s.value
		}
	}
	for _, s := range policySettings {
		if s.name == name {
			return func(n *Namespace) pflag.Value { return s.value(&n.Policy) }
		}
	}
	return nil
}

func spaceFields() (all []string) {
	for _, s := range spaceSettings {
		all = append(all, s.name)
	}
	for _, s := range policySettings {
		all = append(all, s.name)
	}
	return all
}

// inherit gives every namespace the policy of the top level and then its own values.
func (c *Config) inherit() (faults []error) {
	for _, n := range c.Namespaces {
		n.Policy = c.Policy
		for _, a := range n.set {
			if err := a.value(n).Set(a.text); err != nil {
				faults = append(faults, fmt.Errorf("%s: %s: %q: %w", c.from[n.path(a.name)], n.path(a.name), a.text, err))
			}
		}
	}
	return faults
}

// path returns the path of a field of n in the file.
func (n *Namespace) path(field string) string { return SpacePath(n.Prefix) + "." + field }

// SpacePath returns the path of the namespace of a prefix in the file. The empty prefix is in quotes, as in the file.
func SpacePath(prefix string) string {
	if prefix == "" {
		return `namespaces.""`
	}
	return "namespaces." + prefix
}

// Spaces returns all namespaces: first the one for keys that no prefix fits, then the rest by
// prefix.
func (c *Config) Spaces() []*Namespace {
	all := slices.Clone(c.Namespaces)
	if !slices.ContainsFunc(all, func(n *Namespace) bool { return n.Prefix == "" }) {
		all = append(all, &Namespace{Policy: c.Policy})
	}
	slices.SortFunc(all, func(a, b *Namespace) int { return strings.Compare(a.Prefix, b.Prefix) })
	return all
}

// Space returns the namespace of a key.
func (c *Config) Space(key string) *Namespace {
	all := c.Spaces()
	found := all[0]
	for _, n := range all {
		if strings.HasPrefix(key, n.Prefix) && len(n.Prefix) >= len(found.Prefix) {
			found = n
		}
	}
	return found
}

// checkSpaces checks combinations of fields.
func (c *Config) checkSpaces(fault func(path, format string, a ...any)) {
	for _, n := range c.Spaces() {
		at := n.path
		if n.Prefix == "" && len(n.set) == 0 {
			at = func(field string) string { return field }
		} else if n.Prefix != "" {
			if err := protocol.CheckKey(n.Prefix); err != nil {
				fault(SpacePath(n.Prefix), "%v", err)
			}
		}
		if c.Store(n.Store) == nil {
			fault(at("store"), "there is no store %q under stores", n.Store)
		}
		if n.Both != "" && c.Store(n.Both) == nil {
			fault(at("both"), "there is no store %q under stores", n.Both)
		} else if n.Both != "" && c.Store(n.Both) == c.Store(n.Store) {
			fault(at("both"), "store and both name the same store")
		}
		if n.Both != "" && n.Outage == "local" {
			fault(at("both"), "both is not available with outage: local")
		}
		if n.Linger > 0 && n.Interop {
			fault(at("linger"), "linger is not available with interop, because plain lockers cannot signal that they want a lock")
		}
		if _, err := UIDs(n.Users); err != nil {
			fault(at("users"), "%v", err)
		}
		if _, err := GIDs(n.Groups); err != nil {
			fault(at("groups"), "%v", err)
		}
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
