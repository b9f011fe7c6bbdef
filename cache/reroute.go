package cache

import "time"

// Keys that move to other namespaces and stores.
//
// Every lock and semaphore follows the namespace that its key is routed to now. Its claim follows
// to the store of that namespace as soon as nothing of it is, or may be, at the earlier store.

// Admit says whether a waiter may go on waiting for a key, and for how long a lease: the code of
// the refusal, and why, or CodeOK.
type Admit func(s *Session, key string, mode Mode, ttl int64) (Code, error)

// Reroute has every key follow the namespace that route gives it, and ends the waits that admit
// refuses. Whoever holds a key keeps it: at the store where it is, until it is released.
func (t *Table) Reroute(route func(key string) *Namespace, admit Admit, now int64, out *Effects) {
	var moved []*Lease
	for _, of := range []map[string]*Lease{t.leases, t.sems} {
		for key, l := range of {
			if ns := route(key); ns != l.ns {
				t.setPolicy(l, ns)
				moved = append(moved, l)
				if l.sem != nil {
					moved = append(moved, l.sem.permits...)
				}
			}
		}
	}
	for w := t.waits.oldest; w != nil; {
		next := w.chain.newer
		if code, err := admit(w.req.Session, w.l.key, w.mode, w.ttl); code != CodeOK {
			moved = append(moved, w.l)
			t.dismiss(w, code, -1, err, now, out)
		}
		w = next
	}
	inOrder(moved)
	t.advanceEach(moved, now, out)
}

// setPolicy has l follow ns from now on, with what is counted in a namespace.
func (t *Table) setPolicy(l *Lease, ns *Namespace) {
	was := l.ns
	l.ns = ns
	t.heartbeatFrom(l, was.Heartbeat)
	was.Use.addHolds(-int64(l.nHolds))
	ns.Use.addHolds(int64(l.nHolds))
	was.Use.addWaiters(-int64(l.nWaits))
	ns.Use.addWaiters(int64(l.nWaits))
	t.statsOf(was).Waiters -= int64(l.nWaits)
	t.statsOf(ns).Waiters += int64(l.nWaits)
	if l.sem != nil {
		for _, p := range l.sem.permits {
			t.setPolicy(p, ns)
		}
	}
}

// heartbeatFrom is for leases whose namespace had the heartbeat was. A shorter one ends no hold before
// what has been stated of it is over.
func (t *Table) heartbeatFrom(l *Lease, was time.Duration) {
	if is := l.ns.Heartbeat; l.nHolds > 0 && is > 0 && (was == 0 || is < was) {
		r := l.rarely()
		r.silentFrom = max(r.silentFrom, t.deadline(l))
	}
}

// moved says that l's key belongs to another store by now: l is given up as soon as nobody here
// holds it.
func (l *Lease) moved() bool { return l.ns.Store != l.st.Store }

// place makes l a user of s, and of no other store any more.
func (t *Table) place(l *Lease, s *Store) {
	if l.st != nil {
		l.st.users--
	}
	l.st = t.store(s)
	l.st.users++
}

// follow has a moved key that has nothing at its earlier store any more go to the present one.
func (t *Table) follow(l *Lease, out *Effects) {
	if !l.moved() || l.state != stateNone || l.op != 0 || l.renewGen != 0 || l.nHolds > 0 {
		return
	}
	if l.tracked {
		l.tracked = false
		out.Tracks = append(out.Tracks, Track{Lease: l, Store: l.st.ID})
	}
	t.place(l, l.ns.Store)
	t.succeed(l) // the failures were the other store's
}
