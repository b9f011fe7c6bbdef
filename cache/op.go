package cache

import "time"

// Mode is how a key is held.
type Mode uint8

// The modes. Their numbers are the protocol's. Permit is one permit of a
// semaphore; a semaphore has nothing to do with a lock of the same key.
const (
	Exclusive Mode = 0
	Shared    Mode = 1
	Permit    Mode = 2
)

func (m Mode) String() string {
	switch m {
	case Shared:
		return "shared"
	case Permit:
		return "permit"
	}
	return "exclusive"
}

// Forever is a time that never comes: the deadline of what does not end by
// itself.
const Forever = int64(1<<63 - 1)

// MaxBase bounds fence bases: base<<10 has to stay within 63 bits, and Lua
// counts exactly only up to 2^53.
const MaxBase = uint64(1)<<53 - 1

// OpKind is what the table asks of a store.
type OpKind uint8

// The operations of the store contract. All but OpRenew go through the main
// lane, at most one of a key at a time; OpRenew has a lane of its own. None makes
// what stands under its token end sooner: it may come late, behind one that gave it
// longer.
//
// With Mode Permit they are about a semaphore: each token is one permit, and the
// key is free while fewer than Limit tokens hold one. Each token queues for itself,
// those of one host too, and at most one op of a token is under way at a time, but
// several of a key may be, even in one batch.
const (
	// OpTry takes the key if it is free and nobody queues for it, and leaves
	// nothing behind when not. Repeated with the same token it is granted
	// again. Granted, Busy, Refused or Unknown.
	OpTry OpKind = iota + 1
	// OpJoin takes the key if it is free and nobody queues before us, and
	// otherwise joins the store's queue or keeps our place in it: a daemon that
	// does not repeat it drops out by itself. Granted, Queued, Refused or Unknown.
	// Busy says that the token has lost its place for good, and has left nothing
	// behind: another token has to join.
	OpJoin
	// OpWithdraw leaves the queue, and releases the lease should it have been
	// granted meanwhile. Done, Refused or Unknown. As for a release, a copy of it
	// may be carried out late: its token is never asked for again.
	OpWithdraw
	// OpRelease ends the lease and wakes the next in the queue. Whatever shape
	// the token has in the store (exclusive, shared, queued) is removed. Done,
	// NotHeld, Refused or Unknown. NotHeld means that the lease was gone before: a
	// store that may have carried out a copy of the request answers Unknown.
	OpRelease
	// OpRenew restarts the lease's TTL. With Rebase it fetches a new base too.
	// Done, NotHeld, Refused or Unknown, with Wanted.
	OpRenew
	// OpDowngrade turns an exclusive lease into a shared one, with the TTL
	// restarted, and wakes queued readers. Repeated it is Done again. Done,
	// NotHeld, Refused or Unknown.
	OpDowngrade
	// OpPeek asks whether anybody holds the key. Busy (with Left and Mode, if
	// known), Done when it is free, Refused or Unknown.
	OpPeek
)

var opNames = [...]string{OpTry: "try", OpJoin: "join", OpWithdraw: "withdraw", OpRelease: "release",
	OpRenew: "renew", OpDowngrade: "downgrade", OpPeek: "peek"}

func (k OpKind) String() string { return opNames[k] }

// Ends reports whether k ends what stands under a token: OpRelease and OpWithdraw do.
func (k OpKind) Ends() bool { return k == OpRelease || k == OpWithdraw }

// Op is one thing asked of a store. Key, Kind, Mode, Token, TTL and Floor are
// for the driver; Ref and Gen come back with the result untouched.
type Op struct {
	Kind   OpKind
	Mode   Mode   // of the lease; for OpRelease what the table believes it is
	Limit  uint32 // Mode Permit, OpTry and OpJoin: how many permits there are, from 1
	Rebase bool   // OpRenew: fetch a new base
	// Brief, of OpJoin: the place is for a moment only, on behalf of tries, in case the
	// key lingers on another host. Its holder gets HintTried, or HintContended where a store
	// cannot tell the two apart. All joins of a token are brief, or none.
	ShortLived bool
	Key        string
	Token      uint64        // the lease's number, never used again by this daemon; 0 for OpPeek
	TTL        time.Duration // OpTry, OpJoin, OpRenew, OpDowngrade
	Floor      uint64        // the highest base known here; a new one is larger
	Store      int           // its number; for the shell

	Ref *Lease
	Gen uint64
	For *Session // in whose Asks it is counted; nil for none
}

// Status is how an Op ended.
type Status uint8

// The statuses of a result. The zero status is Unknown, so that a result that
// no driver filled in is the ambiguous one.
const (
	Unknown Status = iota // the answer never came: it may or may not have happened
	Granted               // the lease is ours, with Base
	Queued                // we are in the store's queue
	Busy                  // somebody else has it
	Done                  // it happened
	NotHeld               // the store does not know our token
	Refused               // the store said no and did nothing: out of memory, read-only, no login
)

var statusNames = [...]string{"unknown", "granted", "queued", "busy", "done", "not_held", "refused"}

func (s Status) String() string { return statusNames[s] }

// Result is a store's answer to one Op.
type Result struct {
	Status    Status
	Mode      Mode   // Busy on OpPeek: how it is held
	Contended bool   // OpTry, OpJoin, OpRenew, OpDowngrade: another host waits for it
	Base      uint64 // Granted; OpRenew with Rebase. At most MaxBase, more than Op.Floor
	Left      int64  // Busy: nanoseconds until the present lease ends, -1 when not known
	// Session is, on stores whose leases live by the daemon's session, the
	// session's deadline in nanoseconds of the boot clock. 0 on the others: there
	// the lease's deadline follows from the time before the request was sent.
	Session int64
	// SessionNo is that session's number, from 1; a larger one means that all
	// before have ended, with what was granted under them.
	SessionNo uint64
	Gone      bool // Refused: what stood under the token has been withdrawn
	// Partly is for an OpRelease or OpWithdraw that is Unknown, in two stores: one store has carried it out. With
	// Expires, what the other one may still have ends with its TTL.
	Partly, Expires bool
	Err             error // Refused, Unknown: why, for people
}

// HintKind is what a store noticed.
type HintKind uint8

// The hints. They may be late, doubled or lost without harm.
const (
	HintAvailable HintKind = iota + 1 // this key may have come free for us: ask again
	HintContended                     // another host waits for this key, which we hold
	HintGone                          // our lease of this key may have been removed: renew it, to see
	HintTried                         // another host tries for this key, which we hold: it should not linger
)

// Hint is one thing that a store noticed about a key.
type Hint struct {
	Kind HintKind
	Mode Mode // Permit if it is about a semaphore; anything else is a lock's
	Key  string
	// Token is of the permit that it is about; 0 for any of this host's. Not for locks.
	Token uint64
}
