package cache

import "iter"

// links are the neighbours of an entry in a list.
type links[E any] struct{ prev, next *E }

// linker finds an entry's links in lists of one kind. Each kind of list that an entry can be in
// has its own.
type linker[E any] interface{ links(*E) *links[E] }

// list is an intrusive list: the entries contain their links.
type list[E any, L linker[E]] struct{ first, last *E }

func (l *list[E, L]) links(e *E) *links[E] {
	var of L
	return of.links(e)
}

func (l *list[E, L]) next(e *E) *E { return l.links(e).next }
func (l *list[E, L]) prev(e *E) *E { return l.links(e).prev }

// insert puts e after prev; at the front if prev is nil.
func (l *list[E, L]) insert(e, prev *E) {
	at := l.links(e)
	at.prev, at.next = prev, l.first
	if prev != nil {
		at.next = l.links(prev).next
		l.links(prev).next = e
	} else {
		l.first = e
	}
	if at.next != nil {
		l.links(at.next).prev = e
	} else {
		l.last = e
	}
}

func (l *list[E, L]) remove(e *E) {
	at := l.links(e)
	if at.prev != nil {
		l.links(at.prev).next = at.next
	} else {
		l.first = at.next
	}
	if at.next != nil {
		l.links(at.next).prev = at.prev
	} else {
		l.last = at.prev
	}
	*at = links[E]{}
}

// all yields the entries from the first to the last. The loop may remove the entry that it has got.
func (l *list[E, L]) all() iter.Seq[*E] {
	return func(yield func(*E) bool) {
		for e := l.first; e != nil; {
			next := l.next(e)
			if !yield(e) {
				return
			}
			e = next
		}
	}
}

// chain is a list of a table's entries in order of arrival. At most one scan at a time goes
// through it, in pieces. An entry that leaves the chain meanwhile moves the scan on.
type chain[E any, L linker[E]] struct {
	list[E, L]
	at   *E   // where the scan continues; nil when it has ended
	back bool // the scan goes from the newest to the oldest
}

func (c *chain[E, L]) add(e *E) { c.insert(e, c.last) }

func (c *chain[E, L]) remove(e *E) {
	if c.at == e {
		c.step()
	}
	c.list.remove(e)
}

// begin starts a scan at the oldest entry, or at the newest.
func (c *chain[E, L]) begin(newest bool) {
	c.at, c.back = c.first, newest
	if newest {
		c.at = c.last
	}
}

// step moves the scan to the next entry.
func (c *chain[E, L]) step() {
	if c.back {
		c.at = c.prev(c.at)
	} else {
		c.at = c.next(c.at)
	}
}

// The lists that holds are in: of their lease and of their session, the newest first, and of all
// holds of the table.
type (
	holdsOfLease   struct{}
	holdsOfSession struct{}
	holdsOfTable   struct{}
)

func (holdsOfLease) links(h *hold) *links[hold]   { return &h.inLease }
func (holdsOfSession) links(h *hold) *links[hold] { return &h.inSession }
func (holdsOfTable) links(h *hold) *links[hold]   { return &h.inTable }

// The lists that waiters are in: their queue, the waiters of their session, the newest first, and
// all waiters of the table.
type (
	//lint:ignore U1000 staticcheck does not see the list that waitQueue embeds
	waitsInQueue   struct{}
	waitsOfSession struct{}
	waitsOfTable   struct{}
)

//lint:ignore U1000 see waitsInQueue
func (waitsInQueue) links(w *waiter) *links[waiter]   { return &w.inQueue }
func (waitsOfSession) links(w *waiter) *links[waiter] { return &w.inSession }
func (waitsOfTable) links(w *waiter) *links[waiter]   { return &w.inTable }
