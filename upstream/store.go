package upstream

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// The words of the contract are the table's: what it asks is what a store does.
type (
	Op     = cache.Op
	Result = cache.Result
	Hint   = cache.Hint
)

// MaxBatch is the largest number of ops in one Apply.
const MaxBatch = 256

// Store carries out batches of ops. Apply may be called from several goroutines
// at once; no two calls under way at the same time, the renewals apart, hold ops
// of the same key.
type Store interface {
	// Apply carries out one batch in as few round trips as the store allows and
	// sets results[i] for ops[i], whatever happens to its neighbours; a result
	// that it does not set is Unknown. It returns when the answers are there,
	// when ctx ends, or when the store cannot be reached. The error is for logs:
	// what happened to each op is in its result alone. The caller reads the
	// clock before the call.
	Apply(ctx context.Context, ops []Op, results []Result) error

	// Hints is the stream of what the store noticed; nil when it has none. It
	// is closed by Close.
	Hints() <-chan Hint

	// Sessions is the stream of session deadlines, for stores whose leases live
	// by the daemon's session; nil on others. It is closed by Close.
	Sessions() <-chan Session

	// Info says what kind of store this is.
	Info() Info

	// Close gives back connections and ends goroutines. What is still held
	// stays held, to its deadline.
	Close() error
}

// Session is news of the daemon's session at a store.
type Session struct {
	Until int64 // its deadline: nanoseconds of the boot clock; never goes back
	Lost  bool  // the store ended it: every lease under it is gone
}

// Inline is a Store that can answer some ops without waiting for anything.
type Inline interface {
	// ApplyInline carries out op if that takes no I/O. It is called with locks
	// held. When it returns false nothing has happened and op has to go through
	// Apply.
	ApplyInline(op *Op, res *Result) bool
}

// Info is what the daemon needs to know of a store.
type Info struct {
	Name   string        // for welcome, logs and metrics: "embedded", "redis"
	Safety string        // "linearizable" or "best-effort"
	MinTTL time.Duration // the shortest TTL that makes sense there
	// Session is set when leases live by the daemon's session, with its TTL.
	Session time.Duration
	// Rebase says that OpRenew can fetch a new base for a lease that is held.
	Rebase bool
	// Queue says that OpJoin keeps a queue between hosts.
	Queue bool
	// Timeout bounds one Apply.
	Timeout time.Duration
}

// Clock returns nanoseconds of a clock that counts the time a machine sleeps
// (CLOCK_BOOTTIME).
type Clock func() int64
