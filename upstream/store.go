package upstream

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// The ops, results and hints of the contract are the lock table's own types.
type (
	Op     = cache.Op
	Result = cache.Result
	Hint   = cache.Hint
)

// MaxBatch is the largest number of ops in one Apply.
const MaxBatch = 256

// ErrDown marks an error of Apply or Ping that concerns the store as a whole: the store cannot be
// reached or cannot write now. Examples are no connection, no answer, a read-only server and a
// missing quorum. A store that refuses some ops because of what they request is not down.
var ErrDown = errors.New("the store is down")

// Store carries out batches of ops on locks. Every driver implements it.
//
// Apply may run concurrently with itself and with the other methods. Concurrent calls never have
// ops of the same key, except for renewals and permits. No method is called after Close.
type Store interface {
	// Apply carries out one batch in as few round trips as the store allows. results[i] answers
	// ops[i], whatever happens to the other ops. A result that Apply leaves as it is means Unknown.
	// Apply returns when it has the answers, when ctx ends, or when the store cannot be reached.
	//
	// The results alone decide what happened to the ops. The error is for logs. It is ErrDown if
	// the store as a whole is down. The caller reads its clock before the call, because the
	// deadline of a lease counts from the send.
	Apply(ctx context.Context, ops []Op, results []Result) error

	// Ping checks in one round trip whether ops can be carried out now: the server answers, is the
	// right one, and can write. Every error of Ping is ErrDown.
	Ping(ctx context.Context) error

	// Hints returns the stream of events that the store has noticed, such as a key that has become
	// available. It is nil if the store has none. Close closes it. Losing a hint is harmless.
	Hints() <-chan Hint

	// Sessions returns the stream of the store session's deadlines. It is nil if leases do not
	// depend on a store session. Close closes it.
	Sessions() <-chan Session

	// Info returns the properties of the store. It does not block. Name never changes; other fields
	// can change when the store reaches a server for the first time.
	Info() Info

	// Capabilities returns the optional parts of the contract that the store implements. It always
	// returns the same ones, and does not block.
	Capabilities() Capabilities

	// Close releases the connections and ends the store's goroutines. Leases that are still held
	// last until their deadlines.
	Close() error
}

// Session is the state of the daemon's store session.
type Session struct {
	// No is its number, from 1. A larger number means that all earlier sessions have ended.
	No uint64
	// Until is its deadline, in nanoseconds of the boot clock. It never decreases within a session.
	Until int64
	// Lost means that the session has ended, and every lease that depended on it is gone.
	Lost bool
	// TTL is the TTL that the store has granted, if it may differ from Info.Session; else 0.
	TTL time.Duration
}

// Info has the properties of a store.
type Info struct {
	Name   string        // for clients, logs and metrics, such as "redis"
	Safety string        // "linearizable" or "best-effort"
	MinTTL time.Duration // the shortest useful TTL

	Session time.Duration // the TTL of the store session if leases depend on one, else 0
	TTLs    bool          // leases that depend on a store session end with their own TTLs as well
	Rebase  bool          // OpRenew can fetch a new fence base for a held lease
	Permits bool          // the store has semaphores: ops with Mode Permit
	Queue   bool          // OpJoin queues between hosts
	Gather  bool          // a small batch costs nearly as much as a large one: see Lane
	Timeout time.Duration // the longest time that one Apply takes

	// Floors means that new bases are larger than Op.Floor, as they are with Rebase. Without Floors
	// they follow the store's own order.
	Floors bool
	// Pair means that a lease exists in two stores. If one loses it, the other may still have it.
	Pair bool
	// Keeps is the longest TTL with which a lease lasts after the daemon has ended; 0 if leases end
	// with the daemon. A renewal may ask for it: see cache.Op.Stated.
	Keeps time.Duration
	// Notice bounds the delay of the hint that a held key is contended, besides the network's.
	Notice time.Duration
}

// Clock returns nanoseconds of a clock that includes the time that the machine is suspended
// (CLOCK_BOOTTIME).
type Clock func() int64
