package cache

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// The snapshot of a table has its whole state, as bytes, for a process that takes over from this
// one. Times are of the boot clock, which both processes read.

// Links writes and reads references to objects outside a table: a snapshot has numbers and names
// where a table has pointers. Each method with a Coder writes or reads, as the Coder does.
type Links interface {
	// Store never sets nil: if the store does not exist, it records an error and sets another store.
	Store(c *Coder, s **StoreTraits)
	Session(c *Coder, s **Session) // may be nil
	Lives(s *Session) bool         // whether the session has not ended
	InternalReply(c *Coder, re *Request)
	Class(c *Coder, class *uint16)
	Classes() []uint16                        // all classes, in the same order in every process
	Lease(c *Coder, l *Lease, s *StoreTraits) // the renewer's part of a lease at s
	Policy(key string) *Namespace             // the namespace to which key is routed now
}

// snapshotCoder writes or reads one table.
type snapshotCoder struct {
	*Coder
	t     *Table
	x     Links
	holds []*hold   // all holds that were read
	waits []*waiter // all waiters that were read
}

// Snapshot writes the whole state of t, or reads it into t, which has to be empty. c.Err reports
// whether that went well; a table that was read in part is of no use.
func (t *Table) Snapshot(c *Coder, x Links) {
	m := &snapshotCoder{Coder: c, t: t, x: x}
	Num(c, &t.token)
	Num(c, &t.gen)
	m.stores()
	m.stats()
	n := t.Len()
	if m.Len(&n); c.Reading {
		t.locks = make(map[string]*lock, n)
		t.freeLocks.free, t.freeHolds.free = spare[lock](n), spare[hold](n)
	}
	m.leases()
	m.habits()
	if c.Reading {
		m.chain()
	}
}

// byToken returns every lock and semaphore, in an order that depends only on their tokens, kinds
// and keys. It leaves out permits, which their semaphores have.
func (t *Table) byToken() []*Lease {
	type entry struct {
		token uint64 // copied, because comparisons that read the leases would take most of the time
		lease *Lease
	}
	all := make([]entry, 0, t.Len())
	for l := range t.heads() {
		all = append(all, entry{l.token, l})
	}
	slices.SortFunc(all, func(a, b entry) int {
		if a.token != b.token {
			return cmp.Compare(a.token, b.token)
		}
		return cmp.Or(cmp.Compare(a.lease.rank(), b.lease.rank()),
			cmp.Compare(a.lease.key, b.lease.key))
	})
	leases := make([]*Lease, len(all))
	for i := range all {
		leases[i] = all[i].lease
	}
	return leases
}

func (m *snapshotCoder) leases() {
	all := m.t.byToken()
	List(m.Coder, &all, func(p **Lease) {
		var key string
		var sem bool
		if !m.Reading {
			key, sem = (*p).key, !(*p).isLock()
		}
		m.String(&key)
		m.Bool(&sem)
		switch {
		case !m.Reading:
		case sem:
			*p = m.t.semaphore([]byte(key), m.x.Policy(key)).lease()
		default:
			*p = m.t.lease([]byte(key), m.x.Policy(key))
		}
		m.lease(*p)
		if sem {
			m.semaphore((*p).semaphore())
		}
		m.waitersOf(*p)
		if m.Reading && !(*p).queue().empty() {
			// The process that wrote the snapshot may have had another policy for the key.
			m.t.advanceLater(*p)
		}
	})
}

// leaseStore writes or reads the store where l is.
func (m *snapshotCoder) leaseStore(l *Lease) {
	s := l.st.StoreTraits
	if m.x.Store(m.Coder, &s); m.Reading {
		m.t.setStore(l, s)
	}
	epoch := l.epoch
	Num(m.Coder, &epoch)
	if l.epoch = epoch; m.Reading && !l.moved() {
		l.epoch = max(epoch, l.ns.Epoch) // a successor's configuration may raise it
	}
}

// spare returns pointers to n zero values, allocated in small groups. In one large allocation, a
// single value that stays in use would keep the memory of all others.
func spare[T any](n int) []*T {
	const some = 32
	all := make([]*T, 0, n)
	for len(all) < n {
		few := make([]T, min(some, n-len(all)))
		for i := range few {
			all = append(all, &few[i])
		}
	}
	return all
}

func (m *snapshotCoder) lease(l *Lease) {
	c, was := m.Coder, l.state
	m.leaseStore(l)
	for _, n := range []*uint64{&l.token, &l.held.base, &l.held.fence, &l.opGen, &l.held.renewGen} {
		Num(c, n)
	}
	for _, n := range []*int64{&l.held.until, &l.held.since, &l.ttl, &l.maxTTL, &l.retryAt,
		&l.releasing.endsAt, &l.minEnd, &l.asked.tryUntil, &l.held.kept, &l.held.keptFor} {
		Num(c, n)
	}
	Num(c, &l.held.handoff)
	Num(c, &l.state)
	Num(c, &l.mode)
	Num(c, &l.heldMode)
	Num(c, &l.op)
	Num(c, &l.asked.early)
	for _, b := range []*bool{&l.asked.queued, &l.asked.shortLived, &l.asked.unanswered,
		&l.releasing.granted, &l.held.contended, &l.held.downgrade, &l.held.rebase, &l.tracked,
		&l.held.starved, &l.held.doubt, &l.held.unkept, &l.orphan} {
		c.Bool(b)
	}
	m.x.Lease(c, l, l.st.StoreTraits)
	if s := l.releaser.Session; s != nil && !m.x.Lives(s) {
		l.releaser = Request{}
	}
	m.request(&l.releaser)
	m.lastReleased(l)
	m.optional(l)
	m.holdsOf(l)
	at := Forever
	if l.timerIdx != 0 {
		at = m.t.timers.At(int(l.timerIdx)).at
	}
	Num(c, &at)
	heartbeat := l.ns.Heartbeat // a successor's configuration may require another
	Num(c, &heartbeat)
	if m.Reading {
		m.t.arm(l, at)
		to := l.state
		l.state = was
		m.t.enter(l, to)
		m.t.delayHeartbeat(l, heartbeat)
	}
}

func (m *snapshotCoder) semaphore(sem *semaphore) {
	Num(m.Coder, &sem.limit)
	permits := slices.Clone(sem.permits)
	List(m.Coder, &permits, func(p **permit) {
		if m.Reading {
			*p = m.t.newPermit(sem)
		}
		m.lease(&(*p).Lease)
	})
	asks := slices.Clone(sem.requested)
	List(m.Coder, &asks, func(p **permit) {
		place := int32(-1)
		if !m.Reading {
			place = (*p).place
		}
		Num(m.Coder, &place)
		if m.Reading && (place < 0 || int(place) >= len(permits)) {
			m.Fail(errSnapshot)
		} else if m.Reading {
			*p = permits[place]
		}
	})
	if m.Reading {
		sem.requested = asks
	}
}

func (m *snapshotCoder) optional(l *Lease) {
	has := l.optional != nil
	if m.Bool(&has); !has {
		return
	}
	r := l.withOptional()
	if !m.Reading {
		r.peeks = slices.DeleteFunc(r.peeks, func(re Request) bool { return m.ended(re.Session) })
		r.clientRenewals = slices.DeleteFunc(r.clientRenewals,
			func(e clientRenewal) bool { return m.ended(e.req.Session) })
	}
	List(m.Coder, &r.peeks, func(re *Request) {
		m.request(re)
		m.awaits(re)
	})
	List(m.Coder, &r.clientRenewals, func(e *clientRenewal) {
		m.request(&e.req)
		m.awaits(&e.req)
		Num(m.Coder, &e.owner)
		Num(m.Coder, &e.fence)
		Num(m.Coder, &e.ttl)
	})
	times := []*int64{&r.failSince, &r.contendedAt, &r.degradedUntil, &r.idleUntil, &r.silentFrom,
		&r.keepLatest}
	for _, n := range times {
		Num(m.Coder, n)
	}
	Num(m.Coder, &r.fails)
	Num(m.Coder, &r.handoffs)
	m.Error(&r.err)
}

// ended reports whether a session has ended. If so, its request is not written, and ended subtracts
// it from the requests that a store has to answer.
func (m *snapshotCoder) ended(s *Session) bool {
	lives := m.x.Lives(s)
	if !lives {
		s.addAsks(-1)
	}
	return !lives
}

// awaits counts a request, which was read, as one that a store has to answer.
func (m *snapshotCoder) awaits(re *Request) {
	switch {
	case !m.Reading:
	case re.Session == nil:
		m.Fail(errSnapshot)
	default:
		re.Session.addAsks(1)
	}
}

func (m *snapshotCoder) request(re *Request) {
	if m.x.Session(m.Coder, &re.Session); re.Session == nil {
		return
	}
	Num(m.Coder, &re.ID)
	m.x.InternalReply(m.Coder, re)
}

// holdsOf writes or reads the holds of l, in their order.
func (m *snapshotCoder) holdsOf(l *Lease) {
	all := slices.Collect(l.holds.all())
	List(m.Coder, &all, func(p **hold) {
		if m.Reading {
			*p = m.t.freeHolds.get()
			(*p).l = l
		}
		h := *p
		m.hold(h)
		switch {
		case !m.Reading:
		case h.s == nil:
			m.Fail(errSnapshot)
		default:
			l.holds.insert(h, l.holds.last)
			l.nHolds++
			if !h.forced {
				m.t.indexOwner(l, h)
			}
			m.held(h)
		}
	})
}

func (m *snapshotCoder) hold(h *hold) {
	c := m.Coder
	m.x.Session(c, &h.s)
	Num(c, &h.owner)
	Num(c, &h.fence)
	Num(c, &h.end)
	Num(c, &h.maxEnd)
	Num(c, &h.since)
	Num(c, &h.count)
	Num(c, &h.mode)
	c.Bool(&h.forced)
	m.x.Class(c, &h.class)
	keep := h.l.keepOf(h)
	Num(c, &keep)
	if m.Reading && keep != 0 {
		h.l.setKeep(h, keep)
	}
}

// lastReleased writes or reads the hold of l that was released last, if its session has not ended.
func (m *snapshotCoder) lastReleased(l *Lease) {
	has := l.lastReleased != nil && m.x.Lives(l.lastReleased.s)
	if m.Bool(&has); !has {
		return
	}
	if m.Reading {
		l.lastReleased = m.t.freeReleased.get()
	}
	c, h := m.Coder, l.lastReleased
	m.x.Session(c, &h.s)
	Num(c, &h.owner)
	Num(c, &h.fence)
	Num(c, &h.since)
	Num(c, &h.releasedAt)
	Num(c, &h.leaseDeadline)
	m.x.Class(c, &h.class)
	Num(c, &h.mode)
	if h.s == nil {
		m.Fail(errSnapshot)
		return
	}
	m.t.statsOf(&Namespace{Class: h.class})
}

// held adds a hold that was read to the counts of present holds. The counters of grants are a part
// of the snapshot.
func (m *snapshotCoder) held(h *hold) {
	m.t.addToSession(h)
	m.t.markShard(h.s)
	if h.forced {
		m.t.forced++
	} else {
		m.t.statsOf(&Namespace{Class: h.class}).Holds++
	}
	m.holds = append(m.holds, h)
}

// waitersOf writes or reads the queue of l.
func (m *snapshotCoder) waitersOf(l *Lease) {
	all := slices.Collect(l.queue().all())
	List(m.Coder, &all, func(p **waiter) {
		if m.Reading {
			*p = &waiter{l: l}
		}
		w := *p
		m.request(&w.req)
		w.code(m.Coder)
		switch {
		case !m.Reading:
		case w.req.Session == nil:
			m.Fail(errSnapshot)
		default:
			m.t.addWaiter(w)
			m.waits = append(m.waits, w)
		}
	})
}

// chain puts the holds and waiters that were read into order of arrival.
func (m *snapshotCoder) chain() {
	slices.SortStableFunc(m.holds, func(a, b *hold) int { return cmp.Compare(a.since, b.since) })
	for _, h := range m.holds {
		m.t.holds.add(h)
	}
	slices.SortStableFunc(m.waits, func(a, b *waiter) int { return cmp.Compare(a.since, b.since) })
	for _, w := range m.waits {
		m.t.waits.remove(w)
		m.t.waits.add(w)
	}
}

// SnapshotOp writes or reads an op that has yet to be sent.
func (t *Table) SnapshotOp(c *Coder, op *Op) {
	Num(c, &op.Kind)
	Num(c, &op.Mode)
	Num(c, &op.Limit)
	c.Bool(&op.Rebase)
	c.Bool(&op.ShortLived)
	c.String(&op.Key)
	Num(c, &op.Token)
	Num(c, &op.TTL)
	Num(c, &op.Stated)
	Num(c, &op.Floor)
	Num(c, &op.Until)
	Num(c, &op.Gen)
	if c.Reading {
		op.Ref = t.refOf(op)
	}
}

// refOf returns the lease that waits for the answer to an op. If none does, refOf returns a new
// Lease. The lease may no longer have the token of the op: it ends with the store session, for
// example.
func (t *Table) refOf(op *Op) *Lease {
	for l := range t.named(op.Key) {
		if l.opGen == op.Gen || l.held.renewGen == op.Gen {
			return l
		}
	}
	if l := t.semaphores[op.Key].lease(); l != nil && l.opGen == op.Gen {
		return l
	}
	return new(Lease)
}

// FailingFrom counts each store that is down, and each request that has failed, as failing from now
// on. It is for a table that was read from a snapshot. The store did not answer the earlier
// process; no waiter is to be refused before this process has asked the store.
func (t *Table) FailingFrom(now int64) {
	for _, st := range t.stores {
		if st != nil && st.downAt != 0 {
			st.downAt = max(now, 1)
		}
	}
	for l := range t.all() {
		if r := l.optional; r != nil && r.failSince != 0 {
			r.failSince = max(now, 1)
		}
	}
}

// NotTakenOver tells the table that this host's leases at a store could not be taken over. The
// holds there are lost, and the table acquires the keys anew for the waiters. The earlier store
// session keeps the keys closed at that store until it ends. But a reload may move the keys to a
// store that does not know of that session. So this table also keeps each key closed until the
// validity stated to its holders ends.
func (t *Table) NotTakenOver(s *StoreTraits, now int64, out *Effects) {
	st := t.store(s)
	for _, l := range t.heldLeases(st) {
		until := t.statedUntil(l, now)
		t.loseLease(l, protocol.LostSession, now, out)
		if until > now && !st.Pair {
			t.close(l, until)
		}
	}
	t.sessionLost(st, now, out)
	if st.Session {
		st.sessionNo, st.sessionUntil = 0, 0
	}
}

// Shortest returns the shortest TTL of all leases and the shortest validity that is stated to their
// holders, in nanoseconds. It returns Forever for both without leases.
func (t *Table) Shortest() (ttl, validity int64) {
	ttl, validity = Forever, Forever
	for l := range t.all() {
		if l.ttl == 0 {
			continue
		}
		ttl, validity = min(ttl, l.ttl), min(validity, t.lifetime(l))
		if l.ns.Heartbeat > 0 {
			validity = min(validity, int64(l.ns.Heartbeat))
		}
	}
	return ttl, validity
}
