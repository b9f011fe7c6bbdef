package cache

import (
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Mode is how a key is held.
type Mode = protocol.Mode

// The modes, for the drivers of stores.
const (
	Exclusive = protocol.Exclusive
	Shared    = protocol.Shared
	Permit    = protocol.Permit
)

// Forever is a time that never comes. It is the deadline of a lease, wait or hold that has no end
// of its own.
const Forever = int64(1<<63 - 1)

// MaxBase bounds fence bases: base<<10 has to stay within 63 bits, and Lua counts exactly only up
// to 2^53.
const MaxBase = uint64(1)<<53 - 1

// OpKind is the kind of a request to a store.
type OpKind uint8

// The operations of the store contract. All but OpRenew go through the main lane, which has at most
// one op of a key in flight. OpRenew has a lane of its own. No op may shorten a TTL: it can arrive
// after a later op that extended it.
//
// With Mode Permit the ops are about a semaphore. Each token is one permit, and the key is
// available while fewer than Limit tokens hold a permit. Each token has its own place in the queue,
// even among tokens of one host. At most one op of a token is in flight, but several ops of a key
// may be, even in one batch.
const (
	// OpTry takes the key if it is free and its queue is empty. Otherwise it changes
	// nothing. If it is repeated with the same token, it is granted again. Its results are Granted,
	// Busy, Refused and Unknown.
	OpTry OpKind = iota + 1
	// OpJoin takes the key if it is free and no token is before this one in the queue. Otherwise it
	// joins the store's queue, or keeps the token's place in it: a daemon that does not repeat
	// OpJoin loses its place. Its results are Granted, Queued, Refused, Unknown and Busy. Busy
	// means that the token has lost its place for good and the store keeps nothing of it: the
	// daemon has to join with another token.
	OpJoin
	// OpWithdraw leaves the queue, and releases the lease if it has been granted meanwhile. Its
	// results are Done, Refused and Unknown. As with OpRelease, a copy of the request may be
	// carried out late, so its token is never used again.
	OpWithdraw
	// OpRelease ends the lease and wakes the next waiter in the queue. It removes the
	// token from the store in any form: exclusive, shared or queued. Its results are Done,
	// NotHeld, Refused and Unknown. NotHeld means that the lease had ended before. A
	// store that may have carried out a copy of the request answers Unknown.
	OpRelease
	// OpRenew restarts the lease's TTL. With Rebase it also fetches a new base. Its results are
	// Done, NotHeld, Refused and Unknown; the result says whether the key is Contended. A lease that
	// has ended is NotHeld, even if nobody has taken the key since: a late renewal must not close it
	// again.
	OpRenew
	// OpDowngrade turns an exclusive lease into a shared one, restarts its TTL, and wakes
	// queued readers. If it is repeated, it is Done again. Its results are Done,
	// NotHeld, Refused and Unknown.
	OpDowngrade
	// OpPeek asks whether the key is held. Its results are Busy (with Left and Mode, if
	// known), Done if the key is free, Refused and Unknown.
	OpPeek
)

var opNames = [...]string{OpTry: "try", OpJoin: "join", OpWithdraw: "withdraw",
	OpRelease: "release", OpRenew: "renew", OpDowngrade: "downgrade", OpPeek: "peek"}

func (k OpKind) String() string { return opNames[k] }

// Ends reports whether k ends a token's lease or place in the queue. OpRelease and OpWithdraw do.
func (k OpKind) Ends() bool { return k == OpRelease || k == OpWithdraw }

// Op is one request to a store. Key, Kind, Mode, Token, TTL and Floor are for the driver. Ref and
// Gen return unchanged with the result.
type Op struct {
	Kind   OpKind
	Mode   Mode   // of the lease; for OpRelease, as far as the table knows it
	Limit  uint32 // Mode Permit, OpTry and OpJoin: how many permits there are, from 1
	Rebase bool   // OpRenew: fetch a new base
	// ShortLived is for OpJoin. It asks for a short-lived queue entry, on behalf of tries, in case
	// the key lingers on another host. The holder gets HintTried, or HintContended from a store
	// that cannot tell the two apart. Either all joins of a token are short-lived, or none is.
	ShortLived bool
	Key        string
	// Token proves the lease to the store; it is never used again by this daemon. It is 0 for
	// OpPeek.
	Token uint64
	TTL   time.Duration // OpTry, OpJoin, OpRenew, OpDowngrade
	// Stated is not 0 if a hold has a keep (see detach.go). The deadline then follows from Stated,
	// and the lease has to last for TTL even if the daemon ends. TTL is shorter than Stated only where
	// the store session alone determines the deadline. For the caller.
	Stated time.Duration
	Floor  uint64 // the highest base known here; a new one is larger
	Store  int    // the store's number; for the caller
	// Until is for OpRenew: the deadline of the lease. The result is of no use after it.
	Until int64

	Ref *Lease
	Gen uint64   // the op's generation: no other op of the table has this number
	For *Session // the session whose Asks counts the op; nil for none
}

// stated returns the TTL from which the deadline follows.
func (op *Op) stated() int64 {
	if op.Stated != 0 {
		return int64(op.Stated)
	}
	return int64(op.TTL)
}

// Status is how an Op ended.
type Status uint8

// The statuses of a result. The zero value is Unknown, so a result that no driver has set is
// ambiguous.
const (
	Unknown Status = iota // no answer came: the store may or may not have carried out the op
	Granted               // the lease is ours, with Base
	Queued                // we are in the store's queue
	Busy                  // another token has the key
	Done                  // the store has carried out the op
	NotHeld               // the store does not know our token
	// Refused means that the store has changed nothing: it is out of memory, read-only, or wants a
	// login.
	Refused
)

var statusNames = [...]string{"unknown", "granted", "queued", "busy", "done", "not_held", "refused"}

func (s Status) String() string { return statusNames[s] }

// Result is a store's answer to one Op.
type Result struct {
	Status    Status
	Mode      Mode   // Busy on OpPeek: how the key is held
	Contended bool   // OpTry, OpJoin, OpRenew, OpDowngrade: another host waits for the key
	Base      uint64 // Granted; OpRenew with Rebase. At most MaxBase, more than Op.Floor
	Left      int64  // Busy: nanoseconds until the present lease ends, -1 when not known
	// Session is the deadline of the store session, in nanoseconds of the boot clock, if
	// leases at the store depend on a session. It is 0 for other stores: there
	// the lease's deadline follows from the time before the request was sent.
	Session int64
	// SessionNo is the number of that session, from 1. A larger number means that all
	// earlier sessions have ended, with the leases granted under them.
	SessionNo uint64
	Gone      bool // Refused: the token's lease or place in the queue has been removed
	// Partly is for an OpRelease or OpWithdraw at a pair of stores that is Unknown: one store has
	// carried it out. If Expires is set, the lease that the other store may still have ends with
	// its TTL.
	Partly, Expires bool
	Err             error // Refused, Unknown: why, for people
}

// HintKind is the kind of a hint.
type HintKind uint8

// The kinds of hints. A hint may be late, duplicated or lost without harm.
const (
	HintAvailable HintKind = iota + 1 // the key may be available to this host: ask again
	HintContended                     // another host waits for a key that this host holds
	// HintGone means that this host's lease may have been removed: a renewal finds out.
	HintGone
	// HintTried means that another host tries to acquire a key that this host holds: it should not
	// linger.
	HintTried
)

// Hint is a store's notice about a key.
type Hint struct {
	Kind HintKind
	Mode Mode // Permit if it is about a semaphore; anything else is a lock's
	Key  string
	// Token identifies the permit that the hint is about; 0 means any permit of this host. Not for
	// locks.
	Token uint64
}
