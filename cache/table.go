package cache

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Table is the lock table of one shard.
type Table struct {
	cfg        Config
	locks      map[string]*lock
	semaphores map[string]*semaphore
	timers     timerHeap
	stores     []*storeRecord // by the stores' numbers
	token      uint64         // the last token given out
	gen        uint64         // the last generation given out: the number of an op

	habits   habits // see linger.go
	noLinger bool   // EndLinger has been called

	stats  []*Stats // by class
	holds  chain[hold, holdsOfTable]
	forced int // forced ones among holds
	waits  chain[waiter, waitsOfTable]
	places map[*Lease]int32 // how many of a key's waiters the current scan has visited

	toAdvance []*Lease // whose namespaces Follow has changed; Reroute has yet to advance them
	leaving   []move   // of keys whose leases Reroute has yet to find

	dropped      []*Lease // since the last reuseDropped
	freeLocks    pool[lock]
	freePermits  pool[permit]
	freeHolds    pool[hold]
	freeReleased pool[releasedHold]
	freeWaits    pool[waiter]
}

// New returns an empty table. Tables of different shards never use the same token.
func New(cfg Config) *Table {
	return &Table{cfg: cfg, locks: make(map[string]*lock), semaphores: make(map[string]*semaphore),
		token: uint64(cfg.Shard)}
}

// SetLimits changes the maximum number of holds and waiters of a session.
func (t *Table) SetLimits(holds, waiters int64) {
	t.cfg.MaxHolds, t.cfg.MaxWaiters = holds, waiters
}

// Len returns the number of locks and semaphores in the table.
func (t *Table) Len() int { return len(t.locks) + len(t.semaphores) }

// Held returns the number of leases held at stores.
func (t *Table) Held() (n int) {
	for _, st := range t.stores {
		if st != nil {
			n += st.held
		}
	}
	return n
}

// early records the hints that have overtaken the answer to the op in flight. Their meaning is
// known only with that answer.
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

	kind // the lock, semaphore or permit that embeds the lease
	leaseState
}

// leaseState is what the table knows of a lease.
type leaseState struct {
	key string
	ns  *Namespace // the namespace to which the key is routed now
	// st is the store where the lease is or will be requested. It differs from ns.Store while the key
	// moves.
	st *storeRecord

	// The claim at the store.
	token   uint64
	epoch   uint64 // raises the bases of st; set by the last namespace that routed the key there
	ttl     int64  // the TTL of the next acquire or renewal
	maxTTL  int64  // the longest TTL that was requested with the token
	retryAt int64  // no op goes to the main lane before this time
	opGen   uint64 // the generation of the op in the main lane; 0 for none
	op      OpKind // the kind of that op; 0 for none
	mode    Mode   // of the lease, or of the acquire that was sent
	tracked bool   // the renewer has been told to renew it
	dropped bool   // the table no longer has it
	// orphan means that the session of a pair's store is lost. Nothing renews the lease at the other
	// store, where it ends with its TTL, if the store has TTLs.
	orphan bool

	state     state
	asked     askedFields
	held      heldFields
	releasing releasingFields

	// The holds on this host.
	heldMode     Mode // of the holds
	nHolds       int32
	timerIdx     int32 // the place of the wake-up among the table's timers; 0 when none is set
	holds        list[hold, holdsOfLease]
	minEnd       int64         // the earliest hold.end of its holds; Forever when none has one
	releaser     Request       // the request that waits for the store to confirm the release
	lastReleased *releasedHold // see foundgone.go; nil for none
	optional     *optionalFields
}

// The fields that belong to one state are zero in all other states: see enter.

// askedFields belong to stateAsked.
type askedFields struct {
	queued     bool // the token is in the store's queue
	shortLived bool // with a short-lived queue entry, on behalf of tries
	unanswered bool // an acquire was not answered, so the store may have the token
	early      early
	// tryUntil is how long tries wait in a short-lived queue entry; 0 before it is in the queue.
	tryUntil int64
}

// heldFields belong to stateHeld.
type heldFields struct {
	base      uint64 // the fence base
	fence     uint64 // of the present phase of holding; 0 if it has none yet
	until     int64  // the deadline; Forever on session stores. Never goes back
	since     int64  // when the lease was granted
	kept      int64  // the store keeps the lease until then, if later than until: see detach.go
	keptFor   int64  // the latest end of the keeps of holds that have ended; the store knows of them
	renewGen  uint64 // the generation of the op in the renewal lane; 0 for none
	handoff   int16  // handoff number of the newest fence; -1 before the first
	contended bool   // another host waits
	downgrade bool   // the lease has to be made shared
	rebase    bool   // a new base has to be fetched
	starved   bool   // the next handoff waits for a renewal
	doubt     bool   // the store may have removed the lease: a renewal will tell
	unkept    bool   // a renewal has to tell the store of a keep
}

// releasingFields belong to stateReleasing and stateClosed.
type releasingFields struct {
	// endsAt is when the store has dropped a lease in stateReleasing by itself, and when a key
	// in stateClosed opens: see endReleasing.
	endsAt  int64
	granted bool // the token has been granted: the pending release uses OpRelease
}

// Renewal is the renewer's record of a lease.
type Renewal struct {
	Due   int64
	Index int32 // place in its heap, from 1; 0 when it is not there
	Shard int16
	Token uint64
}

// optionalFields holds fields that few leases use.
type optionalFields struct {
	peeks          []Request          // inspections that wait for the state of the key
	clientRenewals []clientRenewal    // that wait for the store
	byOwner        map[ownerKey]*hold // once there are many holds
	keeps          map[*hold]int64    // until when holds keep the key closed: see detach.go
	keepLatest     int64              // the latest end of a keep since the first of the holds
	failSince      int64              // the time of the first failure since the last success
	fails          int
	err            error // the last failure
	contendedAt    int64
	handoffs       int   // handoffs since contendedAt
	degradedUntil  int64 // until when degraded holds have been stated to be valid
	idleUntil      int64 // how long the lease lingers; 0 when it does not
	// silentFrom is the end of the validity that was stated before the namespace required its
	// present heartbeat. No hold is lost as silent before that time.
	silentFrom int64
}

// clientRenewal is a client's request to renew a hold, which waits for the store.
type clientRenewal struct {
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
	l     *Lease
	s     *Session
	owner uint64
	fence uint64 // 0 when this host granted it alone, in an outage
	// end is when the hold ends, even if its lease lasts longer, because the hold is fixed, bounded by
	// MaxHold, forced or detached; 0 for none of these. maxEnd is the latest end that MaxHold allows;
	// 0 for no bound.
	end, maxEnd int64
	since       int64 // when it was granted
	inLease     links[hold]
	inSession   links[hold] // in this shard
	inTable     links[hold]
	count       uint32
	class       uint16 // the class in whose statistics it is counted
	mode        Mode
	forced      bool // lost, and its owner was told; the key stays closed until end
}

func (l *Lease) withOptional() *optionalFields {
	if l.optional == nil {
		l.optional = &optionalFields{}
	}
	return l.optional
}

// Key returns the key.
func (l *Lease) Key() string { return l.key }

// findLease applies ns to the lease of a key's lock, and returns the lease; nil when there is none.
func (t *Table) findLease(key []byte, ns *Namespace) *Lease {
	return t.withPolicy(t.locks[string(key)].lease(), ns)
}

// withPolicy applies ns to l, which may be nil, and returns l.
func (t *Table) withPolicy(l *Lease, ns *Namespace) *Lease {
	if l != nil && l.ns != ns {
		t.follow(l, ns)
	}
	return l
}

// lease returns the lease of the lock of a key, which it makes if there is none.
func (t *Table) lease(key []byte, ns *Namespace) *Lease {
	if l := t.findLease(key, ns); l != nil {
		return l
	}
	k := t.freeLocks.get()
	k.kind = k
	k.init(t, string(key), ns)
	t.locks[k.key] = k
	return &k.Lease
}

// init prepares l, which is zero, as the lease of a key.
func (l *Lease) init(t *Table, key string, ns *Namespace) {
	l.key, l.ns, l.minEnd = key, ns, Forever
	t.setStore(l, ns.Store)
}

// dropLease removes l from the table. A later event may reuse its memory: see reuseDropped.
func (t *Table) dropLease(l *Lease) {
	t.disarm(l)
	l.countMoved(-1)
	l.st.users--
	switch k := l.kind.(type) {
	case *lock:
		delete(t.locks, l.key)
	case *semaphore:
		delete(t.semaphores, l.key)
	case *permit:
		k.of.drop(k)
	}
	l.dropped = true
	if len(t.dropped) < maxFree {
		t.dropped = append(t.dropped, l)
	}
}

// reuseDropped makes the memory of dropped leases available. It is called at the beginning of
// events that may need new leases. It waits for Reroute while toAdvance may refer to dropped
// leases.
func (t *Table) reuseDropped() {
	if len(t.toAdvance) > 0 {
		return
	}
	for _, l := range t.dropped {
		l.leaseState = leaseState{}
		switch k := l.kind.(type) {
		case *lock:
			t.freeLocks.put(k)
		case *permit:
			k.of = nil
			t.freePermits.put(k)
		}
	}
	t.dropped = t.dropped[:0]
}

// deadline returns when l ends for all owners on this host.
func (t *Table) deadline(l *Lease) int64 {
	if l.state != stateHeld && l.nHolds > 0 {
		return l.optional.degradedUntil
	}
	return min(l.held.until, l.st.sessionUntil)
}

// onEnter observes the transitions of all leases; nil outside of tests.
var onEnter func(from, to state)

// enter moves l to another state with the store, and clears the fields of the state that it leaves.
func (t *Table) enter(l *Lease, s state) {
	if l.state == s {
		return
	}
	if onEnter != nil {
		onEnter(l.state, s)
	}
	switch l.state {
	case stateAsked:
		l.asked = askedFields{}
	case stateHeld:
		l.st.held--
		t.endIdle(l)
		l.held = heldFields{}
	case stateReleasing, stateClosed:
		l.releasing = releasingFields{}
	}
	if s == stateHeld {
		l.st.held++
	}
	if p := l.permit(); p != nil {
		p.of.moves(p, s)
	}
	l.state = s
}

// validUntil returns the end of the validity that may be stated for h.
func (t *Table) validUntil(h *hold) int64 {
	d := t.deadline(h.l)
	if h.end != 0 {
		d = min(d, h.end)
	}
	return d
}

// askTTL returns the TTL of the next op of l, apart from keeps. The TTL is never so short that the
// lease would end before the validity that has been stated.
func (t *Table) askTTL(l *Lease, now int64) time.Duration {
	ttl := l.ttl
	if l.state == stateHeld && l.st.renews() {
		ttl = max(ttl, ttlUntil(l.held.until, now))
	}
	return time.Duration(ttl)
}

// setTTL sets the TTL of op, the next op of its lease, and records it in maxTTL.
func (t *Table) setTTL(op *Op, now int64) {
	l := op.Ref
	op.TTL = t.askTTL(l, now)
	if keep := time.Duration(l.keepTTL(now)); keep > 0 {
		op.TTL, op.Stated = keep, op.TTL
		if l.st.renews() {
			op.TTL = max(op.TTL, op.Stated)
		}
	}
	l.maxTTL = max(l.maxTTL, int64(op.TTL))
}

// sorted returns every lease in order. Advancing one permit of a semaphore may drop others of the
// list.
func (t *Table) sorted() []*Lease {
	ls := make([]*Lease, 0, t.Len())
	for l := range t.all() {
		ls = append(ls, l)
	}
	inOrder(ls)
	return ls
}

// inOrder sorts leases so that a run of the simulator can be repeated.
func inOrder(ls []*Lease) {
	slices.SortFunc(ls, func(a, b *Lease) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.rank(), b.rank()),
			cmp.Compare(a.token, b.token), cmp.Compare(a.permitPlace(), b.permitPlace()))
	})
}

// heldLeases returns every lease that is held at a store, in order.
func (t *Table) heldLeases(st *storeRecord) []*Lease {
	ls := make([]*Lease, 0, st.held)
	for l := range t.all() {
		if l.state == stateHeld && l.st == st {
			ls = append(ls, l)
		}
	}
	inOrder(ls)
	return ls
}

// jitter returns d, changed at random by up to a fifth.
func (t *Table) jitter(d time.Duration) int64 {
	x := t.cfg.Seed + t.gen*0x9e3779b97f4a7c15 + uint64(t.cfg.Shard)
	x ^= x >> 29
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 32
	return int64(d)*4/5 + int64(x%1024)*int64(d)*2/5/1024
}

// newToken returns the next token. The tokens of a shard are congruent modulo the number of shards,
// so no two shards share one.
func (t *Table) newToken() uint64 {
	t.token += uint64(max(1, t.cfg.Shards))
	return t.token
}
