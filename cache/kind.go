package cache

import "iter"

// A lease is for one of three things: a lock, a semaphore, or one permit of a semaphore. Each is a
// type that embeds Lease, which has what they share.

// kind is the lock, semaphore or permit that embeds a lease.
type kind interface {
	// queue returns the queue whose waiters the lease serves.
	queue() *waitQueue
	// needed reports whether a hold or a waiter on this host needs the lease.
	needed() bool
	// claims returns the leases that can be held for the key: the lock's lease, or the leases of
	// the semaphore's permits.
	claims() []*Lease
	// rank orders the leases of one key: lock, semaphore, permits.
	rank() int
}

// lock is a key that is held exclusively or shared.
type lock struct {
	Lease
	waits waitQueue
}

// semaphore is a key with several permits. Its own lease is never requested: see semaphore.go.
type semaphore struct {
	Lease
	waits   waitQueue
	limit   uint32    // number of permits on all hosts, as the latest acquire said
	permits []*permit // all of this host
	// requested are the permits that are requested, and neither held nor to be released, the oldest
	// first.
	requested []*permit
	taken     int              // permits in stateHeld or stateClosed
	byFence   map[uint64]*hold // the holds of all permits
}

// permit is one permit of a semaphore. It serves the semaphore's waiters.
type permit struct {
	Lease
	of    *semaphore
	place int32 // its index among the semaphore's permits
}

func (k *lock) queue() *waitQueue { return &k.waits }
func (k *lock) needed() bool      { return !k.waits.empty() || k.nHolds > 0 }
func (k *lock) claims() []*Lease  { return []*Lease{&k.Lease} }
func (k *lock) rank() int         { return 0 }

func (k *semaphore) queue() *waitQueue { return &k.waits }
func (k *semaphore) needed() bool      { return !k.waits.empty() || len(k.permits) > 0 }
func (k *semaphore) claims() []*Lease {
	ls := make([]*Lease, len(k.permits))
	for i, p := range k.permits {
		ls[i] = &p.Lease
	}
	return ls
}
func (k *semaphore) rank() int { return 1 }

func (k *permit) queue() *waitQueue { return &k.of.waits }
func (k *permit) needed() bool      { return k.of.surplus() <= 0 }
func (k *permit) claims() []*Lease  { return []*Lease{&k.Lease} }
func (k *permit) rank() int         { return 2 }

// lease returns the lease of k; nil if k is nil.
func (k *lock) lease() *Lease {
	if k == nil {
		return nil
	}
	return &k.Lease
}

// lease returns the lease of k; nil if k is nil.
func (k *semaphore) lease() *Lease {
	if k == nil {
		return nil
	}
	return &k.Lease
}

// isLock reports whether l is the lease of a lock.
func (l *Lease) isLock() bool {
	_, is := l.kind.(*lock)
	return is
}

// semaphore returns the semaphore whose own lease l is; nil if l is something else.
func (l *Lease) semaphore() *semaphore {
	k, _ := l.kind.(*semaphore)
	return k
}

// permit returns the permit whose lease l is; nil if l is something else.
func (l *Lease) permit() *permit {
	k, _ := l.kind.(*permit)
	return k
}

// permitPlace returns the place of l among the permits of its semaphore; 0 if l is no permit's.
func (l *Lease) permitPlace() int32 {
	if p := l.permit(); p != nil {
		return p.place
	}
	return 0
}

// head returns the own lease of a key's lock, or of its semaphore; nil when the table has none.
func (t *Table) head(key string, semaphore bool) *Lease {
	if semaphore {
		return t.semaphores[key].lease()
	}
	return t.locks[key].lease()
}

// heads yields the leases of all locks, and the semaphores' own.
func (t *Table) heads() iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		for _, k := range t.locks {
			if !yield(&k.Lease) {
				return
			}
		}
		for _, k := range t.semaphores {
			if !yield(&k.Lease) {
				return
			}
		}
	}
}

// all yields every lease: of locks, of semaphores, and of their permits.
func (t *Table) all() iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		for l := range t.heads() {
			if !yield(l) {
				return
			}
			sem := l.semaphore()
			if sem == nil {
				continue
			}
			for _, p := range sem.permits {
				if !yield(&p.Lease) {
					return
				}
			}
		}
	}
}

// named yields the leases that can be held for a key: the lock's lease, and the leases of the
// semaphore's permits.
func (t *Table) named(key string) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		if l := t.locks[key].lease(); l != nil && !yield(l) {
			return
		}
		sem := t.semaphores[key]
		if sem == nil {
			return
		}
		for _, p := range sem.permits {
			if !yield(&p.Lease) {
				return
			}
		}
	}
}
