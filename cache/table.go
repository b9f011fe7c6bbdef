package cache

import (
	"math"
	"time"
)

// Config configures a table. Durations are on the boot clock.
type Config struct {
	Shard  int // this table's number, from 0 to Shards-1
	Shards int

	Poll     time.Duration // time between two OpJoin while queued at the store
	RetryMin time.Duration // RetryMin and RetryMax are the first and the longest pause after a failed op
	RetryMax time.Duration
	Grace    time.Duration // how long waiters wait while the store fails

	MaxHolds   int64 // maximum of a session, over all shards
	MaxWaiters int64

	Habits int // maximum number of keys with a remembered history, and so of lingering leases

	Seed uint64 // for jitter
}

// DefaultConfig returns the configuration that a daemon starts with.
func DefaultConfig() Config {
	return Config{
		Shards:   1,
		Poll:     500 * time.Millisecond,
		RetryMin: 50 * time.Millisecond, RetryMax: time.Second, Grace: 5 * time.Second,
		MaxHolds: math.MaxInt64, MaxWaiters: math.MaxInt64, Habits: 1024,
	}
}

// The fences within one base, and where a new base is fetched. Permits have the upper half, so that a lock and a
// permit of one key never have the same fence.
const (
	handoffBits    = 10
	permitHandoffs = 1 << (handoffBits - 1)
	maxHandoff     = permitHandoffs - 1
	handoffRebase  = permitHandoffs * 3 / 4
)

// LeaseDeadline returns when this host considers a lease ended that was acquired or renewed with ttl by a request
// sent at sent. It allows for a drift of 1 % and 2 ms between this host's clock and the store's, as the
// description of Redlock does.
func LeaseDeadline(sent, ttl int64) int64 {
	return sent + ttl - ttl/100 - int64(2*time.Millisecond)
}

// Table is the lock table of one shard.
type Table struct {
	cfg    Config
	leases map[string]*Lease
	sems   map[string]*Lease // semaphores
	timers timerHeap
	stores []*storeState // by the stores' numbers
	token  uint64        // the last token given out
	gen    uint64        // the last generation given out

	habits   habits
	noLinger bool

	stats  []*Stats // by class
	holds  chain[hold]
	forced int // forced ones among holds
	waits  chain[waiter]
	places map[*Lease]int32 // how many of a key's waiters the current scan has visited

	followed []*Lease // whose namespaces Follow has changed; Reroute has yet to advance them
	moves    []move   // of keys whose leases Reroute has yet to find

	freeLeases []*Lease
	freeHolds  []*hold
	freeWaits  []*waiter
}

// New returns an empty table. Tables of different shards never use the same token.
func New(cfg Config) *Table {
	return &Table{cfg: cfg, leases: make(map[string]*Lease), sems: make(map[string]*Lease), token: uint64(cfg.Shard),
		holds: chain[hold]{of: func(h *hold) *links[hold] { return &h.chain }},
		waits: chain[waiter]{of: func(w *waiter) *links[waiter] { return &w.chain }}}
}

// SetLimits changes the maximum number of holds and waiters of a session.
func (t *Table) SetLimits(holds, waiters int64) { t.cfg.MaxHolds, t.cfg.MaxWaiters = holds, waiters }

// Len returns the number of locks and semaphores in the table.
func (t *Table) Len() int { return len(t.leases) + len(t.sems) }

// Held returns the number of leases held at stores.
func (t *Table) Held() (n int) {
	for _, st := range t.stores {
		if st != nil {
			n += st.held
		}
	}
	return n
}

// state is the state of a lease at the store.
type state uint8

const (
	stateNone      state = iota // the store has nothing of this host's
	stateAsked                  // a token has been sent; it may hold the lease or queue at the store
	stateHeld                   // granted
	stateReleasing              // the release is pending: the store has not confirmed it
	stateClosed                 // lost; the key stays closed until endsAt, when its holders' validity ends
)

// early records the hints that have overtaken the answer to the op in flight. Their meaning is known only with
// that answer.
type early uint8

const (
	earlyAvailable early = 1 << iota
	earlyContended
	earlyTried
)

// Lease is this host's lease on one key, with the holds and waiters that it serves.
type Lease struct {
	// Renewal belongs to the renewer, and is guarded by its mutex. The table neither reads
	// nor writes it.
	Renewal Renewal

	leaseState
}

// leaseState is what the table knows of a lease.
type leaseState struct {
	key   string
	ns    *Namespace  // the namespace to which the key is routed now
	st    *storeState // where the lease is or will be requested; differs from ns.Store while the key moves
	sem   *semaphore  // not nil for a semaphore, which is held through its permits
	head  *Lease      // not nil for a permit of that semaphore
	place int32       // of a permit: its index among the semaphore's permits

	// Upstream.
	token      uint64
	base       uint64
	epoch      uint64 // raises the bases of st; set by the last namespace that routed the key there
	fence      uint64 // of the present phase of holding; 0 if it has none yet
	until      int64  // stateHeld: the deadline; Forever on session stores. Never goes back
	since      int64  // stateHeld: when it was granted
	ttl        int64  // that renewals use
	maxTTL     int64  // the longest TTL that was requested with the token
	retryAt    int64  // no op goes to the main lane before this time
	endsAt     int64  // stateReleasing: when the store has dropped it by itself; stateClosed: when the key opens: see endReleasing
	opGen      uint64 // of the op in the main lane; 0 for none
	renewGen   uint64 // of the op in the renewal lane; 0 for none
	handoff    int16  // handoff number of the newest fence; -1 before the first
	state      state
	mode       Mode // of the lease, or of what was asked
	op         OpKind
	queued     bool // stateAsked: the token is in the store's queue
	shortLived bool // stateAsked: with a short-lived queue entry, on behalf of tries
	maybe      bool // stateAsked: an acquire was not answered, so the store may have the token
	granted    bool // the token has been granted once: a pending release uses OpRelease
	contended  bool // another host waits
	downgrade  bool // the lease has to be made shared
	rebase     bool // a new base has to be fetched
	tracked    bool // the renewer knows it
	starved    bool // the next handoff waits for a renewal
	doubt      bool // the store may have removed it: a renewal will tell
	orphan     bool // at a pair: its session is lost, so what is left of it ends with its TTL, if it has one
	early      early

	// Here.
	heldMode Mode // of the holds
	nHolds   int32
	nWaits   int32
	nTries   int32 // waiters that are tries
	nWriters int32 // waiters for an exclusive hold
	timerIdx int32 // 0 when not armed
	holds    *hold
	waitHead *waiter
	waitTail *waiter
	minEnd   int64   // the first own end of a fixed hold; Forever when none
	releaser Request // the request that waits for the store to confirm the release
	last     *hold   // the hold that was released last, while the store may yet not know the lease: see keepLast
	optional *optionalFields
}

// Renewal is the renewer's record of a lease.
type Renewal struct {
	Due   int64
	Index int32 // place in its heap, from 1; 0 when it is not there
	Shard int16
	Gen   uint64
}

// optionalFields holds fields that few leases use.
type optionalFields struct {
	peeks       []Request
	extends     []extend
	byOwner     map[ownerKey]*hold // once there are many holds
	byWaiter    map[ownerKey]int32 // how many waits an owner has, once there are many
	failSince   int64              // the time of the first failure since the last success
	fails       int
	err         error // the last failure
	contendedAt int64
	handoffs    int   // handoffs since contendedAt
	alone       int64 // until when degraded holds have been stated to be valid
	idleUntil   int64 // how long the lease lingers; 0 when it does not
	tryUntil    int64 // how long tries wait in the store's queue; 0 before they are in it
	// silentFrom is the end of the validity that was stated before the namespace required its present
	// heartbeat. No hold is lost as silent before that time.
	silentFrom int64
}

// extend is a client's renewal that waits for the store.
type extend struct {
	req   Request
	owner uint64
	fence uint64
	ttl   int64
}

type ownerKey struct {
	s     *Session
	owner uint64
}

// hold is one owner's possession of a key.
type hold struct {
	l          *Lease
	s          *Session
	owner      uint64
	fence      uint64 // 0 when this host granted it alone, in an outage
	end        int64  // its own end, despite renewals; 0 for none
	last       int64  // end cannot be moved beyond; 0 for no bound
	since      int64  // when it was granted
	next, prev *hold  // of the lease
	sNext      *hold  // of the session in this shard
	sPrev      *hold
	chain      links[hold] // of the table
	count      uint32
	class      uint16 // what it is counted under
	mode       Mode
	forced     bool // lost, and its owner told; the key stays closed until end
}

// waiter is a queued acquire.
type waiter struct {
	l          *Lease // the lock or the semaphore; its namespace applies
	req        Request
	owner      uint64
	ttl        int64
	deadline   int64 // of the wait; Forever when it has none
	since      int64
	next, prev *waiter
	sNext      *waiter
	sPrev      *waiter
	chain      links[waiter] // of the table
	timerIdx   int32
	mode       Mode
	fixed      bool
	try        bool
	contended  bool // the key was held, or others waited for it
}

func (l *Lease) withOptional() *optionalFields {
	if l.optional == nil {
		l.optional = &optionalFields{}
	}
	return l.optional
}

// Key returns the key.
func (l *Lease) Key() string { return l.key }

// lock returns the lock of a key after it has applied ns to it; nil when the table has none.
func (t *Table) lock(key []byte, ns *Namespace) *Lease {
	return t.withPolicy(t.leases[string(key)], ns)
}

// withPolicy applies ns to l, which may be nil, and returns l.
func (t *Table) withPolicy(l *Lease, ns *Namespace) *Lease {
	if l != nil && l.ns != ns {
		t.follow(l, ns)
	}
	return l
}

func (t *Table) lease(key []byte, ns *Namespace) *Lease {
	if l := t.lock(key, ns); l != nil {
		return l
	}
	l := t.newLease(string(key), ns)
	t.leases[l.key] = l
	return l
}

func (t *Table) newLease(key string, ns *Namespace) *Lease {
	var l *Lease
	if n := len(t.freeLeases); n > 0 {
		l, t.freeLeases = t.freeLeases[n-1], t.freeLeases[:n-1]
	} else {
		l = new(Lease)
	}
	l.key, l.ns, l.minEnd, l.handoff = key, ns, Forever, -1
	t.setStore(l, ns.Store)
	return l
}

// maxFree bounds each list of unused objects.
const maxFree = 256

// dropLease removes l from the table. It always clears l, even if l is not kept for reuse, so that a
// caller with a list of leases can recognize a dropped one.
func (t *Table) dropLease(l *Lease) {
	t.disarm(l)
	l.countMoved(-1)
	l.st.users--
	switch {
	case l.head != nil:
		l.head.sem.drop(l)
	case l.sem != nil:
		delete(t.sems, l.key)
	default:
		delete(t.leases, l.key)
	}
	l.leaseState = leaseState{}
	if len(t.freeLeases) < maxFree {
		t.freeLeases = append(t.freeLeases, l)
	}
}

// dropped reports whether l is no longer in the table.
func (l *Lease) dropped() bool { return l.st == nil }

// deadline returns when l ends for all owners on this host.
func (t *Table) deadline(l *Lease) int64 {
	if l.state != stateHeld && l.nHolds > 0 {
		return l.optional.alone
	}
	return min(l.until, l.st.session)
}

// enter moves l to another state with the store.
func (t *Table) enter(l *Lease, s state) {
	if l.state != stateHeld && s == stateHeld {
		l.st.held++
	} else if l.state == stateHeld && s != stateHeld {
		l.st.held--
		t.endIdle(l)
	}
	if l.head != nil {
		l.head.sem.moves(l, s)
	}
	l.state = s
}

// valid returns the end of the validity that may be stated for h.
func (t *Table) valid(h *hold) int64 {
	d := t.deadline(h.l)
	if h.end != 0 {
		d = min(d, h.end)
	}
	return d
}

// askTTL returns the TTL of the next op of l, and records it in maxTTL. The TTL is never so short that the lease
// would end before the validity that has been stated.
func (t *Table) askTTL(l *Lease, now int64) time.Duration {
	ttl := l.ttl
	if l.state == stateHeld && l.st.renews() {
		stated := (l.until-now+int64(2*time.Millisecond))*100/99 + 1 // the inverse of LeaseDeadline
		ttl = max(ttl, stated)
	}
	l.maxTTL = max(l.maxTTL, ttl)
	return time.Duration(ttl)
}

// jitter returns d, changed at random by up to a fifth.
func (t *Table) jitter(d time.Duration) int64 {
	x := t.cfg.Seed + t.gen*0x9e3779b97f4a7c15 + uint64(t.cfg.Shard)
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 32
	return int64(d)*4/5 + int64(x%1024)*int64(d)*2/5/1024
}

func (t *Table) newToken() uint64 {
	t.token += uint64(max(1, t.cfg.Shards))
	return t.token
}
