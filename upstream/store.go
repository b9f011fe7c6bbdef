package upstream

import (
	"context"
	"errors"
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

// ErrDown marks the error of an Apply or a Ping that says that the store as a
// whole cannot be reached or cannot write now: no connection, no answer, a
// read-only server, no quorum. One that refuses some ops for what they ask for is
// not down.
var ErrDown = errors.New("the store is down")

// Store carries out batches of ops. Apply may be called from several goroutines
// at once; no two calls under way at the same time, the renewals apart, hold ops
// of the same key.
type Store interface {
	// Apply carries out one batch in as few round trips as the store allows and
	// sets results[i] for ops[i], whatever happens to its neighbours; a result
	// that it does not set is Unknown. It returns when the answers are there,
	// when ctx ends, or when the store cannot be reached. What happened to each op
	// is in its result alone; the error is for logs, and is ErrDown when the whole
	// store is. The caller reads the clock before the call.
	Apply(ctx context.Context, ops []Op, results []Result) error

	// Ping asks in one round trip whether ops can be carried out now: the server is
	// there, is the right one and can write. Its error is ErrDown.
	Ping(ctx context.Context) error

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
	No    uint64 // its number, from 1: a larger one means that all before have ended
	Until int64  // its deadline: nanoseconds of the boot clock; never goes back
	Lost  bool   // the store ended it: every lease under it is gone
}

// Connected is a Store that knows how many connections it has to its servers now.
type Connected interface{ Connections() int }

// Connections is how many there are to the servers of all of stores together; one that has no
// server has none.
func Connections(stores ...Store) (n int) {
	for _, s := range stores {
		if c, ok := s.(Connected); ok {
			n += c.Connections()
		}
	}
	return n
}

// Lister is a Store that can say which locks it knows, other hosts' and orphaned
// ones too.
type Lister interface {
	// List returns at most limit locks whose keys begin with prefix, from cursor on
	// (empty for the first page), and the cursor of the next page, empty after the
	// last. Locks that come or go meanwhile may be missing, or there twice. It must
	// not hold up other work at the server.
	List(ctx context.Context, prefix, cursor string, limit int) (locks []Lock, next string, err error)
}

// Lock is a lock as a store knows it.
type Lock struct {
	Key     string
	Name    string // of what stands for it in the store, for who wants to look there
	Mode    cache.Mode
	Holder  string // who holds it, in the store's terms: a token, a lease, an instance
	Mine    bool   // held through this Store
	Foreign bool   // not made by a locksidecar
	Left    int64  // nanoseconds until it ends by itself, -1 when not known
	Waiters int    // in the store's queue, -1 when not known
	Base    uint64 // its fence base, 0 when not known
	Daemon  string // the id under which the holder's daemon registers (Registrar); empty when not known
	Token   uint64 // the number of the holder's token, 0 when not known; for questions to its daemon, never shown
	Held    int64  // nanoseconds since the holder's lease began, 0 when not known
	Asker   Asker  // that can ask the holder's daemon for Held (see Ask); nil for none
	Note    string // a remark for people, such as the nodes that disagree
}

// Sweeper is a Store whose session may have things hanging on it that nobody
// asks for any more: what an answer that never came has left behind.
type Sweeper interface {
	// Sweep removes what stands under this Store's session with a token that is not
	// known. known may be called from any goroutine and does not block for long; a
	// token that it does not know will never be known again.
	Sweep(ctx context.Context, known func(key string, token uint64) bool) (removed int, err error)
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
	// TTLs is set when they live by their own TTLs as well.
	TTLs bool
	// Rebase says that OpRenew can fetch a new base for a lease that is held.
	Rebase bool
	// Floors says that a new base is above Op.Floor. So it is with Rebase. Otherwise bases are the store's own
	// order.
	Floors bool
	// Pair says that a lease stands in two stores. When one of them has lost it, the other may still have it.
	Pair bool
	// Permits says that it has semaphores: ops with Mode Permit.
	Permits bool
	// Queue says that OpJoin keeps a queue between hosts, if there are several.
	Queue bool
	// Notice is how late, beside the way from the server, a hint may be that a held key
	// is wanted.
	Notice time.Duration
	// Gather says that a small batch costs it nearly as much as a large one: Lane.Gather.
	Gather bool
	// Timeout bounds one Apply.
	Timeout time.Duration
}

// Clock returns nanoseconds of a clock that counts the time a machine sleeps
// (CLOCK_BOOTTIME).
type Clock func() int64
