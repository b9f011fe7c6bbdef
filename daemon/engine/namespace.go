package engine

import (
	"cmp"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// This file has the namespaces of the configuration. route.go makes routes of them.

// Namespace is the policy for the keys that begin with Prefix, except those that begin with a
// longer prefix of another namespace. The zero value of a field is its default.
type Namespace struct {
	Prefix string
	Store  string // the name of one of the stores

	TTL       time.Duration // of an acquire that states none: 30 s
	MaxTTL    time.Duration // 24 h
	MaxWait   time.Duration // the longest wait of an acquire; 0 for no bound
	MaxHold   time.Duration // the longest hold; 0 for no bound
	Heartbeat time.Duration // a client that is silent for so long loses its holds; 0 for no bound

	MaxHandoffs    int           // local handoffs of a key while another host waits for it: 8
	MaxHandoffTime time.Duration // for these handoffs: 50 ms, but at least 5 round trips to the store
	Linger         time.Duration // how long an unheld lease is kept, up to MaxLinger; 0 for never
	// LingerPause is how long linger is off for a key after another host has acquired the key or
	// waited for it: 30 s.
	LingerPause time.Duration
	MaxHolds    int64 // of all clients together; 0 for no bound
	MaxWaiters  int64 // of all clients together; 0 for no bound

	// Tenure bounds how long a lease stays on this host while a local waiter waits for it. After that
	// this host does not request the key for Pause. Both are for keys that plain lockers use, too. 0
	// means no bound and no pause, except at stores without a queue between hosts: their namespaces
	// have the defaults.
	Tenure, Pause time.Duration

	// Users and Groups may use the keys, by uid and gid. If both are empty, everybody may.
	Users, Groups []int
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
	for _, d := range []*time.Duration{&n.MaxWait, &n.MaxHold, &n.Heartbeat, &n.MaxHandoffTime,
		&n.LingerPause, &n.Tenure, &n.Pause, &n.LocalAfter} {
		*d = min(*d, longest)
	}
}

// longest replaces any longer time in a namespace. A time of the boot clock plus longest does not
// overflow.
const longest = 100 * 365 * 24 * time.Hour

// Class is a name under which the keys with a prefix are counted separately within their namespace.
type Class struct{ Name, Prefix string }
