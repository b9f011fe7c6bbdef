package cache

import (
	"iter"

	"github.com/locksidecar/locksidecar/protocol"
)

// The queue of a key on this host.

// Acquire is a request for a key. Times are in nanoseconds. A Wait of 0 means a try, and Forever
// means a wait without bound. The table copies Key if it keeps it.
type Acquire struct {
	Re    Request
	NS    *Namespace // of the key
	Key   []byte
	Owner uint64
	Mode  Mode
	Wait  int64
	TTL   int64
	Fixed bool
	Keep  int64  // for how long after the grant the key stays closed: see detach.go
	Limit uint32 // Mode Permit: how many permits the semaphore has, from 1
	// Draining makes the table refuse everything except re-entry.
	Draining bool
	// TryUntil is for a try that is part of a larger request with a bounded wait. It is the end of
	// that wait, at which the try is answered with timeout. It is 0 for any other try.
	TryUntil int64
}

// waiter is a queued acquire.
type waiter struct {
	l        *Lease // the lock or the semaphore; its namespace applies
	req      Request
	owner    uint64
	ttl      int64
	deadline int64 // the end of the wait; Forever when it has none
	since    int64
	keep     int64
	//lint:ignore U1000 see waitsInQueue
	inQueue   links[waiter]
	inSession links[waiter] // in this shard
	inTable   links[waiter]
	timerIdx  int32
	mode      Mode
	fixed     bool
	try       bool
	hadToWait bool // the key was held, or others waited for it
}

// waitQueue is the queue of a key on this host. It alone knows the queue discipline: waiters are
// served first come, first served.
//
// Other code asks for the front, for the waits of one owner, or for the waiters that are tries. It
// also asks whether a new request would wait or be the front. The embedded list has the order of
// service. admits, in grant.go, decides whether the front may hold the key now. Some methods have
// arguments that only other disciplines need, such as the one in engine/sim/variants.
type waitQueue struct {
	list[waiter, waitsInQueue]
	n       int32
	tries   int32              // waiters that are tries
	writers int32              // waiters for an exclusive hold
	byOwner map[ownerKey]int32 // number of waits of each owner; nil until the queue becomes long
}

func (q *waitQueue) empty() bool { return q.first == nil }

// front returns the waiter that is served next; nil if the queue is empty.
func (q *waitQueue) front() *waiter { return q.first }

// blocks reports whether a new request would have to wait for a waiter of the queue. Readers do not
// have to wait for other readers.
func (q *waitQueue) blocks(a *Acquire) bool {
	return !q.empty() && (a.Mode == Exclusive || q.writers > 0)
}

// comesFirst reports whether a new request would be the front of the queue.
func (q *waitQueue) comesFirst(_ *Acquire) bool { return q.empty() }

// place returns the place in the queue, from 1, of a waiter that a scan visits. The scan visits the
// waiters of all keys in order of arrival, or in the opposite order if newest is true. visited is
// how many waiters of this queue it has visited before. The queue has the same order, so a count
// suffices.
func (q *waitQueue) place(_ *waiter, visited int32, newest bool) int32 {
	n := min(visited+1, q.n) // some may have left since
	if newest {
		n = q.n - n + 1
	}
	return n
}

// allTries yields the waiters that are tries. The loop may remove the waiter that it has got.
func (q *waitQueue) allTries() iter.Seq[*waiter] {
	return func(yield func(*waiter) bool) {
		for w := q.first; w != nil && q.tries > 0; {
			next := q.next(w)
			if w.try && !yield(w) {
				return
			}
			w = next
		}
	}
}

// of yields the waits of an owner. The loop may remove the waiter that it has got.
func (q *waitQueue) of(owner ownerKey) iter.Seq[*waiter] {
	return func(yield func(*waiter) bool) {
		if q.byOwner != nil && q.byOwner[owner] == 0 {
			return
		}
		for w := range q.all() {
			if w.ownerKey() == owner && !yield(w) {
				return
			}
		}
	}
}

// add puts w into the queue.
func (q *waitQueue) add(w *waiter) {
	q.insert(w, q.last)
	q.n++
	q.count(w, 1)
	q.indexOwner(w)
}

func (q *waitQueue) remove(w *waiter) {
	q.list.remove(w)
	q.n--
	q.count(w, -1)
	q.unindexOwner(w)
}

// count adds n to the counts of the kinds of w. The counts make a search through the queue
// unnecessary.
func (q *waitQueue) count(w *waiter, n int32) {
	if w.try {
		q.tries += n
	}
	if w.mode == Exclusive {
		q.writers += n
	}
}

// indexOwner counts w among its owner's waits. It makes the index when the queue has become long.
func (q *waitQueue) indexOwner(w *waiter) {
	switch {
	case q.byOwner != nil:
		q.byOwner[w.ownerKey()]++
	case q.n > indexFrom:
		q.byOwner = make(map[ownerKey]int32, 2*indexFrom)
		for o := range q.all() {
			q.byOwner[o.ownerKey()]++
		}
	}
}

func (q *waitQueue) unindexOwner(w *waiter) {
	if q.byOwner == nil {
		return
	}
	k := w.ownerKey()
	if q.byOwner[k]--; q.byOwner[k] == 0 {
		delete(q.byOwner, k)
	}
	if q.empty() {
		q.byOwner = nil
	}
}

// markHadToWait records for each waiter that it has to wait.
func (q *waitQueue) markHadToWait() {
	for w := range q.all() {
		w.hadToWait = true
	}
}

func (w *waiter) ownerKey() ownerKey { return ownerKey{w.req.Session, w.owner} }

// code writes or reads w, apart from its request.
func (w *waiter) code(c *Coder) {
	Num(c, &w.owner)
	Num(c, &w.ttl)
	Num(c, &w.deadline)
	Num(c, &w.since)
	Num(c, &w.keep)
	Num(c, &w.mode)
	for _, b := range []*bool{&w.fixed, &w.try, &w.hadToWait} {
		c.Bool(b)
	}
}

// enqueue makes a waiter of q and puts it into the queue of l's key. It refuses q if the session of
// q has ended.
func (t *Table) enqueue(l *Lease, q *Acquire, now int64, out *Effects) {
	w := t.freeWaits.get()
	*w = waiter{l: l, req: q.Re, owner: q.Owner, ttl: q.TTL, mode: q.Mode, fixed: q.Fixed,
		try: q.Wait == 0, deadline: Forever, since: now, keep: q.Keep,
		hadToWait: l.nHolds > 0 || !l.queue().empty()}
	switch {
	case w.try && q.TryUntil != 0:
		w.deadline = q.TryUntil
	case !w.try && q.Wait < Forever-now:
		w.deadline = now + q.Wait
	}
	t.addWaiter(w)
	// Ended is read after the shard has been marked: if the session ends later, its end finds w.
	if q.Re.Session.Ended.Load() {
		t.dismiss(w, protocol.Draining, -1, nil, now, out)
	}
}

// addWaiter adds w to the queue of its key, to its session and to the table, and counts it.
func (t *Table) addWaiter(w *waiter) {
	l := w.l
	if w.deadline != Forever {
		t.timers.Push(timer{at: w.deadline, w: w})
	}
	l.queue().add(w)
	s := w.req.Session
	s.Waiters.Add(1)
	s.User.addWaiters(1)
	l.ns.Use.addWaiters(1)
	t.statsOf(l.ns).Waiters++
	t.waits.add(w)
	s.index[t.cfg.Shard].waits.insert(w, nil)
	t.markShard(s)
}

// shortenWait ends the wait of w at deadline, if it would end later.
func (t *Table) shortenWait(w *waiter, deadline int64) {
	if deadline >= w.deadline {
		return
	}
	w.deadline = deadline
	if w.timerIdx != 0 {
		t.timers.Remove(int(w.timerIdx))
	}
	t.timers.Push(timer{at: deadline, w: w})
}

// markShard sets the bit of this shard in s.Shards if the shard has holds or waiters of s, and
// clears it otherwise.
func (t *Table) markShard(s *Session) {
	x := &s.index[t.cfg.Shard]
	bit := uint64(1) << t.cfg.Shard
	if x.holds.first != nil || x.waits.first != nil {
		if s.Shards.Load()&bit == 0 {
			s.Shards.Or(bit)
		}
	} else {
		s.Shards.And(^bit)
	}
}

// dropWaiter undoes addWaiter, and makes the memory of w available. The caller has answered w.
func (t *Table) dropWaiter(w *waiter) {
	l, s := w.l, w.req.Session
	if w.timerIdx != 0 {
		t.timers.Remove(int(w.timerIdx))
	}
	l.queue().remove(w)
	t.waits.remove(w)
	s.Waiters.Add(-1)
	s.User.addWaiters(-1)
	l.ns.Use.addWaiters(-1)
	c := t.statsOf(l.ns)
	if c.Waiters--; w.hadToWait && !w.try {
		c.Contended++
	}
	s.index[t.cfg.Shard].waits.remove(w)
	t.markShard(s)
	*w = waiter{}
	t.freeWaits.put(w)
}
