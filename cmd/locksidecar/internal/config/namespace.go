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

// Policy is what a namespace says of its keys. At the top of the file it is what
// holds for all of them.
type Policy struct {
	TTL          time.Duration
	MaxWait      time.Duration // 0 for no bound
	MaxHold      time.Duration // 0 for no bound
	Heartbeat    time.Duration // 0 to not ask
	HandOvers    int
	HandOverTime time.Duration
	Linger       time.Duration // 0 to not
	LingerPause  time.Duration
	Interop      bool
	FenceEpoch   uint64
	Outage       string // "fail" or "local"
	OutageAfter  time.Duration
	Users        []string
	Groups       []string
}

// Namespace is the keys that begin with Prefix and with no longer prefix of
// another.
type Namespace struct {
	Prefix string
	Store  string // empty for the one that upstream names
	Both   string // a second store while moving; empty for none

	MaxHolds   int // of all clients together; 0 for no bound
	MaxWaiters int // of all clients together; 0 for no bound
	Policy

	set []assignment // what is said of it, until the rest is known
}

// assignment is a value that waits for the levels above it.
type assignment struct {
	value func(*Namespace) pflag.Value
	name  string
	text  string
}

// policySetting is one field of a policy, at the top and in every namespace.
type policySetting struct {
	name, flag          string
	help, more, example string // see Setting
	value               func(*Policy) pflag.Value
}

var policySettings = []policySetting{
	{name: "ttl", flag: "ttl", help: "length of a lease where the client names none; it is renewed while held",
		more:    "When this host dies the lock comes free after so long. Each store has a shortest of its own, and says so at the start.",
		example: "10s", value: func(p *Policy) pflag.Value { return &duration{d: &p.TTL, least: shortestTTL, most: longestTTL} }},
	{name: "max_wait", flag: "max-wait", help: "the longest that a client may wait for a lock; 0 is without bound",
		example: "1m", value: func(p *Policy) pflag.Value { return &duration{d: &p.MaxWait} }},
	{name: "max_hold", flag: "max-hold", help: "the longest that a client may hold a lock; 0 is without bound",
		more:    "Then it is lost, for the reason `too_long`.",
		example: "5m", value: func(p *Policy) pflag.Value { return &duration{d: &p.MaxHold, least: shortestHold, none: true} }},
	{name: "heartbeat", help: "a client that says nothing for so long loses what it holds; 0 is to not ask",
		more: "It is lost for the reason `silent`, though the connection stands: the process may be stopped. " +
			"A reload that adds one costs no holds of clients that answer every keepalive, as those for Go, Python and Java do." +
			" Time in which the daemon reads nothing because of `limits.max_user_rate` does not count.",
		example: "15s", value: func(p *Policy) pflag.Value { return &duration{d: &p.Heartbeat, least: shortestBeat, none: true} }},
	{name: "hand_overs", flag: "hand-overs", help: "how often a lock may go from client to client on this host while another host waits for it",
		example: "16", value: func(p *Policy) pflag.Value { return &number{&p.HandOvers, 1, 768} }},
	{name: "hand_over_time", flag: "hand-over-time", help: "for how long it may",
		more:    "Five round trips to the store at the least; whichever of the two is over first counts.",
		example: "100ms", value: func(p *Policy) pflag.Value { return &duration{d: &p.HandOverTime, least: time.Millisecond} }},
	{name: "linger", flag: "linger", help: "how long a lock that nobody holds may stay with this host if it is often wanted again here; 0 is not at all",
		more:    "Half the TTL at the most. The same on every host. Not with `interop`, and not on Redlock.",
		example: "2s", value: func(p *Policy) pflag.Value { return &duration{d: &p.Linger, most: longestLinger} }},
	{name: "linger_pause", help: "not again for so long once another host has wanted the lock",
		example: "1s", value: func(p *Policy) pflag.Value { return &duration{d: &p.LingerPause} }},
	{name: "interop", help: "plain lockers use the keys too: do not keep them from polling lockers for long",
		more:    "Hand-overs on this host end after 500 ms, and then it keeps off the key for 250 ms.",
		example: "true", value: func(p *Policy) pflag.Value { return (*yesno)(&p.Interop) }},
	{name: "fence_epoch", help: "lifts fences: the same on every host, and never less",
		more:    "For a store whose fences would be smaller than those of the one before it.",
		example: "4000000000000000", value: func(p *Policy) pflag.Value { return (*fence)(&p.FenceEpoch) }},
	{name: "outage", flag: "outage", help: "when the store is down: fail, or local: this host grants alone, without fences",
		more:    "Grants by this host alone are marked as degraded: other hosts may hold the same locks.",
		example: "local", value: func(p *Policy) pflag.Value { return &choice{&p.Outage, []string{"fail", "local"}} }},
	{name: "outage_after", help: "for how long the store has to be down before this host grants alone",
		example: "5s", value: func(p *Policy) pflag.Value { return &duration{d: &p.OutageAfter} }},
	{name: "users", help: "users who may use the locks, by name or number, with commas; empty for everybody",
		more:    "Where users or groups are named, who is in neither is refused as `denied`.",
		example: "[1001, 1002]", value: func(p *Policy) pflag.Value { return (*names)(&p.Users) }},
	{name: "groups", help: "groups who may, in the same way",
		example: "[1001]", value: func(p *Policy) pflag.Value { return (*names)(&p.Groups) }},
}

// spaceSettings are fields of a namespace alone.
var spaceSettings = []struct {
	name, help, more, example string
	value                     func(*Namespace) pflag.Value
}{
	{name: "store", help: "which store keeps the keys, by its name under stores; empty is the one that upstream names",
		example: "billing", value: func(n *Namespace) pflag.Value { return (*text)(&n.Store) }},
	{name: "both", help: "a second store that keeps them too, while they move from store to it",
		more:    "`default` is the one that upstream names. upstream/STORES.md says how keys move. Not with `outage: local`.",
		example: "default", value: func(n *Namespace) pflag.Value { return (*text)(&n.Both) }},
	{name: "max_holds", help: "locks held at once by all clients of this host together; 0 is without bound",
		example: "10000", value: func(n *Namespace) pflag.Value { return &number{&n.MaxHolds, 0, 1 << 30} }},
	{name: "max_waiters", help: "acquires waiting at once of all clients of this host together; 0 is without bound",
		example: "1000", value: func(n *Namespace) pflag.Value { return &number{&n.MaxWaiters, 0, 1 << 30} }},
}

// storeSettings are the fields of a store, at the top and in every one under stores.
var storeSettings = []struct {
	name, flag          string
	help, more, example string
	secret              bool
	value               func(*Store) pflag.Value
}{
	{name: "upstream", flag: "upstream", help: "`URL` of the store: memory: (this host alone), redis://HOST:PORT, etcd://HOST,HOST …; upstream/STORES.md has them all",
		more:    "All hosts that name the same one share their locks.",
		example: "redis://redis.internal:6379", value: func(s *Store) pflag.Value { return (*text)(&s.Upstream) }},
	{name: "username", help: "who we are to the store, if the URL names nobody",
		example: "locksidecar", value: func(s *Store) pflag.Value { return (*text)(&s.Username) }},
	{name: "password", secret: true, help: "password there",
		more:    "Only one of `password`, `password_file` and one in the URL can be given.",
		example: "sesame", value: func(s *Store) pflag.Value { return (*text)(&s.Password) }},
	{name: "password_file", help: "`file` that holds the password; read for each connection, so it may change",
		example: "/etc/locksidecar/secrets/redis", value: func(s *Store) pflag.Value { return (*text)(&s.PasswordFile) }},
}

// spaceField is a namespace's field of that name; nil when there is none.
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

// inherit gives every namespace what stands above it, and then its own.
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

// path is where a field of n stands.
func (n *Namespace) path(field string) string { return SpacePath(n.Prefix) + "." + field }

// SpacePath is where the namespace of a prefix stands. The empty prefix is in quotes, as in the file.
func SpacePath(prefix string) string {
	if prefix == "" {
		return `namespaces.""`
	}
	return "namespaces." + prefix
}

// Spaces is every namespace, that of all other keys first, the rest by their
// prefixes.
func (c *Config) Spaces() []*Namespace {
	all := slices.Clone(c.Namespaces)
	if !slices.ContainsFunc(all, func(n *Namespace) bool { return n.Prefix == "" }) {
		all = append(all, &Namespace{Policy: c.Policy})
	}
	slices.SortFunc(all, func(a, b *Namespace) int { return strings.Compare(a.Prefix, b.Prefix) })
	return all
}

// Space is the namespace of a key.
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

// checkSpaces is for what one field alone does not show.
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
			fault(at("both"), "it is the store itself: both is for moving from one to another")
		}
		if n.Both != "" && n.Outage == "local" {
			fault(at("both"), "a namespace that is moving cannot decide locally (outage: local)")
		}
		if n.Linger > 0 && n.Interop {
			fault(at("linger"), "plain lockers (interop) cannot say that they want a lock: nothing may linger there")
		}
		if _, err := UIDs(n.Users); err != nil {
			fault(at("users"), "%v", err)
		}
		if _, err := GIDs(n.Groups); err != nil {
			fault(at("groups"), "%v", err)
		}
	}
}

// UIDs are users' numbers.
func UIDs(users []string) ([]int, error) {
	return ids(users, "user", func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
}

// GIDs are groups' numbers.
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
