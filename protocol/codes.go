package protocol

// Version is the version of the protocol that this package speaks. MinVersion is the oldest version
// that it still understands.
const (
	Version    = 1
	MinVersion = 1
)

// Op names a request.
type Op uint8

// The requests. PROTOCOL.md has the fields of each.
const (
	OpHello       Op = 1
	OpAcquire     Op = 2
	OpRelease     Op = 3
	OpRenew       Op = 4
	OpDowngrade   Op = 5
	OpCancel      Op = 6
	OpInspect     Op = 7
	OpAcquireMany Op = 8
	OpReleaseMany Op = 9
	OpPing        Op = 10
	OpList        Op = 11
	OpStored      Op = 12
	OpAcquireAny  Op = 13
	OpForceUnlock Op = 14
)

// Code is the result of a request.
type Code uint8

// The codes of replies. Each kind of failure has its own code, and every code has a definite
// meaning.
const (
	OK          Code = 0 // done
	Busy        Code = 1 // a try found the key held, or others waiting for it
	Timeout     Code = 2 // the wait ended without a grant
	NotHeld     Code = 3 // there is no such hold: another fence, another owner, or lost
	Canceled    Code = 4 // withdrawn by the client's own cancel
	Upgrade     Code = 5 // a change from shared to exclusive, which could never be granted
	Unavailable Code = 6 // the store cannot be reached or refuses; nothing is held
	// the store has not confirmed a release, which the daemon still tries to settle
	Unknown     Code = 7
	Limit       Code = 8  // a limit of the daemon is reached
	Invalid     Code = 9  // a field is missing, of the wrong type, or out of range
	Unsupported Code = 10 // unknown operation, or one that the store cannot do
	Draining    Code = 11 // the daemon is going away; no new acquires
	Denied      Code = 12 // this peer may not use this key
	BadFrame    Code = 13 // not a frame of this protocol; the connection ends
	BadVersion  Code = 14 // no common version; the connection ends
	TooSlow     Code = 15 // replies were not read; the connection ends
	Overlong    Code = 16 // a reply would not fit into a frame
)

var codeNames = [...]string{
	OK: "ok", Busy: "busy", Timeout: "timeout", NotHeld: "not_held", Canceled: "canceled",
	Upgrade: "upgrade", Unavailable: "unavailable", Unknown: "unknown", Limit: "limit",
	Invalid: "invalid", Unsupported: "unsupported", Draining: "draining", Denied: "denied",
	BadFrame: "bad_frame", BadVersion: "bad_version", TooSlow: "too_slow", Overlong: "overlong",
}

// String returns the code's name in logs, metrics and other clients' tables.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "code_" + itoa(uint64(c))
}

// Event names a push: a message that answers no request. Its id is 0.
type Event uint8

// The pushes.
const (
	EventLost          Event = 64 // a hold is gone
	EventKeepalive     Event = 65 // every hold not reported lost is valid until a given time
	EventGoingAway     Event = 66 // the daemon drains
	EventFatal         Event = 67 // the daemon ends this connection, with the reason
	EventReleaseFailed Event = 68 // a quiet release has failed
)

// Reason says why a hold was lost.
type Reason uint8

// The reasons of a lost push.
const (
	LostExpired  Reason = 1 // the lease's deadline passed before a renewal was confirmed
	LostGone     Reason = 2 // the store no longer has our token
	LostFixed    Reason = 3 // a fixed hold reached its own end
	LostForced   Reason = 4 // an operator unlocked it
	LostSession  Reason = 5 // the store ended the daemon's session
	LostShutdown Reason = 6 // the drain time of a stopping daemon is over
	LostTooLong  Reason = 7 // the longest time is over for which the namespace allows a hold
	LostSilent   Reason = 8 // the client has not sent the heartbeat that the namespace requires

	// LostUnconfirmed is a reason that only clients use: the store has not confirmed a quiet release.
	LostUnconfirmed Reason = 255
)

var reasonNames = [...]string{
	LostExpired: "expired", LostGone: "gone", LostFixed: "fixed_end", LostForced: "forced",
	LostSession: "session", LostShutdown: "shutdown", LostTooLong: "too_long", LostSilent: "silent",
}

// String returns the reason's name.
func (r Reason) String() string {
	if int(r) < len(reasonNames) && r > 0 {
		return reasonNames[r]
	}
	if r == LostUnconfirmed {
		return "unconfirmed"
	}
	return "reason_" + itoa(uint64(r))
}

// Mode is how a key is held.
type Mode uint8

// The modes.
const (
	Exclusive Mode = 0
	Shared    Mode = 1
	// A permit is one of the permits of a semaphore. A semaphore is no lock: neither excludes the
	// other.
	Permit Mode = 2
)

// String returns the mode's name.
func (m Mode) String() string {
	switch m {
	case Shared:
		return "shared"
	case Permit:
		return "permit"
	}
	return "exclusive"
}

// The owner of a lock that a store knows, as the reply to stored states it.
const (
	StoredElsewhere = 0 // another daemon
	StoredHere      = 1 // this daemon
	StoredLeft      = 2 // made by this daemon, which no longer knows it
	StoredForeign   = 3 // a plain locker
)

// Flags of an acquire.
const (
	// FlagFixed makes a hold that only the client renews, and that ends with
	// lost at the end of its TTL.
	FlagFixed = 1 << 0

	acquireFlags = FlagFixed
)

// Flags of a release.
const (
	// FlagAsync asks for an answer before the store has confirmed.
	FlagAsync = 1 << 0
	// FlagAll ends the whole hold, whatever its count.
	FlagAll = 1 << 1
	// FlagQuiet asks for no answer. A failure comes as the push release-failed. It is not for
	// release-many.
	FlagQuiet = 1 << 2
	// FlagDetached ends a detached hold, of any session of the same user. It does not go together
	// with FlagQuiet. It is not for release-many, and neither is FlagNow.
	FlagDetached = 1 << 3
	// FlagNow also ends what Keep would keep.
	FlagNow = 1 << 4

	releaseManyFlags = FlagAsync | FlagAll
	releaseFlags     = releaseManyFlags | FlagQuiet | FlagDetached | FlagNow
)

// Flags of an inspect.
const (
	// FlagHolders asks for the holders' names, too. The daemon may need several round trips to the
	// store.
	FlagHolders = 1 << 0

	inspectFlags = FlagHolders
)

// Flags of a grant.
const (
	// GrantDegraded marks a grant that this host made alone in an outage. It has no fence.
	GrantDegraded = 1 << 0
	// GrantBound marks a grant with Keep whose key opens when the daemon ends, because the store
	// cannot keep it closed without the daemon.
	GrantBound = 1 << 1
)

// Limits on fields, checked when a request is decoded.
const (
	MaxKey     = 512      // bytes of a key
	MaxName    = 128      // bytes of a client's name or label
	MaxPermits = 10000    // of a semaphore
	MaxMany    = 1024     // keys of one acquire-many or release-many
	MaxAny     = 64       // keys of one acquire-any
	MaxList    = 1000     // rows of one list
	MaxWait    = 1 << 40  // milliseconds
	MaxTTL     = 86400000 // milliseconds: one day
	WaitNever  = 0        // do not wait: try
	WaitAlways = -1       // wait without bound
)

func itoa(v uint64) string {
	var b [20]byte
	i := len(b)
	for {
		i--
		b[i] = byte('0' + v%10)
		v /= 10
		if v == 0 {
			return string(b[i:])
		}
	}
}
