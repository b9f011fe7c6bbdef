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
	name  string
	flag  string
	help  string
	value func(*Policy) pflag.Value
}

var policySettings = []policySetting{
	{"ttl", "ttl", "length of a lease where the client names none; it is renewed while held",
		func(p *Policy) pflag.Value { return &duration{&p.TTL, shortestTTL} }},
	{"max_wait", "max-wait", "the longest that a client may wait for a lock; 0 is without bound",
		func(p *Policy) pflag.Value { return &duration{&p.MaxWait, 0} }},
	{"max_hold", "max-hold", "the longest that a client may hold a lock; 0 is without bound",
		func(p *Policy) pflag.Value { return &duration{&p.MaxHold, 0} }},
	{"heartbeat", "", "a client that says nothing for so long loses what it holds; 0 is to not ask",
		func(p *Policy) pflag.Value { return &duration{&p.Heartbeat, 0} }},
	{"hand_overs", "hand-overs", "how often a lock may go from client to client on this host while another host waits for it",
		func(p *Policy) pflag.Value { return &number{&p.HandOvers, 1, 768} }},
	{"hand_over_time", "hand-over-time", "for how long it may",
		func(p *Policy) pflag.Value { return &duration{&p.HandOverTime, time.Millisecond} }},
	{"linger", "linger", "how long a lock that nobody holds may stay with this host if it is often wanted again here; 0 is not at all",
		func(p *Policy) pflag.Value { return &duration{&p.Linger, 0} }},
	{"linger_pause", "", "not again for so long once another host has wanted the lock",
		func(p *Policy) pflag.Value { return &duration{&p.LingerPause, 0} }},
	{"interop", "", "plain lockers use the keys too: do not keep them from polling lockers for long",
		func(p *Policy) pflag.Value { return (*yesno)(&p.Interop) }},
	{"fence_epoch", "", "lifts fences: the same on every host, and never less",
		func(p *Policy) pflag.Value { return (*fence)(&p.FenceEpoch) }},
	{"outage", "outage", "when the store is down: fail, or local: this host grants alone, without fences",
		func(p *Policy) pflag.Value { return &choice{&p.Outage, []string{"fail", "local"}} }},
	{"outage_after", "", "for how long the store has to be down before this host grants alone",
		func(p *Policy) pflag.Value { return &duration{&p.OutageAfter, 0} }},
	{"users", "", "users who may use the locks, by name or number, with commas; empty for everybody",
		func(p *Policy) pflag.Value { return (*names)(&p.Users) }},
	{"groups", "", "groups who may, in the same way",
		func(p *Policy) pflag.Value { return (*names)(&p.Groups) }},
}

// spaceSettings are fields of a namespace alone.
var spaceSettings = []struct {
	name  string
	value func(*Namespace) pflag.Value
}{
	{"store", func(n *Namespace) pflag.Value { return (*text)(&n.Store) }},
	{"both", func(n *Namespace) pflag.Value { return (*text)(&n.Both) }},
	{"max_holds", func(n *Namespace) pflag.Value { return &number{&n.MaxHolds, 0, 1 << 30} }},
	{"max_waiters", func(n *Namespace) pflag.Value { return &number{&n.MaxWaiters, 0, 1 << 30} }},
}

// storeSettings are the fields of a store.
var storeSettings = []struct {
	name  string
	value func(*Store) pflag.Value
}{
	{"upstream", func(s *Store) pflag.Value { return (*text)(&s.Upstream) }},
	{"username", func(s *Store) pflag.Value { return (*text)(&s.Username) }},
	{"password", func(s *Store) pflag.Value { return (*text)(&s.Password) }},
	{"password_file", func(s *Store) pflag.Value { return (*text)(&s.PasswordFile) }},
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
func (n *Namespace) path(field string) string { return "namespaces." + n.Prefix + "." + field }

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
				fault("namespaces."+n.Prefix, "%v", err)
			}
		}
		if n.TTL > longestTTL {
			fault(at("ttl"), "%v is longer than %v", n.TTL, longestTTL)
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
		if n.Linger > longestLinger {
			fault(at("linger"), "%v is too long, the most is %v", n.Linger, longestLinger)
		}
		if n.Linger > 0 && n.Interop {
			fault(at("linger"), "plain lockers (interop) cannot say that they want a lock: nothing may linger there")
		}
		if n.Linger > 0 && (c.isRedlock(n.Store) || n.Both != "" && c.isRedlock(n.Both)) {
			fault(at("linger"), "on Redlock no host can say that it wants a lock: nothing may linger there")
		}
		if n.Heartbeat > 0 && n.Heartbeat < time.Second {
			fault(at("heartbeat"), "%v is too short, the least is 1s", n.Heartbeat)
		}
		if n.MaxHold > 0 && n.MaxHold < 10*time.Millisecond {
			fault(at("max_hold"), "%v is too short, the least is 10ms", n.MaxHold)
		}
		if _, err := UIDs(n.Users); err != nil {
			fault(at("users"), "%v", err)
		}
		if _, err := GIDs(n.Groups); err != nil {
			fault(at("groups"), "%v", err)
		}
	}
}

func (c *Config) isRedlock(store string) bool {
	s := c.Store(store)
	return s != nil && strings.HasPrefix(s.Upstream, "redlock:")
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
