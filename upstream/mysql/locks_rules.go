package mysql

import (
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

var (
	errUsedUp  = errors.New("fence bases are used up")
	errReaders = errors.New("too many hosts read this lock at once: they have no room in its row")
	errQueue   = errors.New("too many hosts wait for this lock: they have no room in its row")
)

// ask is one host's request for a lock.
type ask struct {
	token string
	mode  cache.Mode
	join  bool  // a join; otherwise a try
	ttl   int64 // µs
	lease int64 // the length of a queue entry, µs
	floor int64
	apart int64 // keeps the bases of one batch apart
}

// decision is the answer to an ask.
type decision struct {
	status    cache.Status
	contended bool
	left      int64 // nanoseconds until the present leases end, or -1 without any
	err       error // of Refused
	// If change is set, the decision holds once the row is next. Otherwise it holds already.
	next   row
	change bool
}

// decide returns the answer to the ask at now, and the next state of the row. It has all rules by
// which a lock is granted. locks_rules_sql.go has the same rules for the plain cases.
func (r *row) decide(a *ask, now int64) decision {
	l := r.live(now)
	writes, reads := l.owner == a.token, find(l.readers, a.token) >= 0
	switch has := writes || reads; {
	case has && writes == (a.mode == cache.Exclusive): // a repeated request
	case has:
		return l.deny(a, now, false) // its lease has the other mode, and remains
	case l.newer(a.token):
		return l.deny(a, now, false) // a later token of the host has overtaken this request
	}
	dropped := l.dropOlder(a.token)
	switch {
	case writes || reads:
	case !l.free(a):
		return l.wait(a, now, dropped)
	case len(l.readers) >= maxEntries:
		return decision{status: cache.Refused, left: -1, err: errReaders}
	}
	return l.give(a, now)
}

// newer reports whether the row contains a later token of the same host.
func (r *row) newer(token string) bool {
	later := func(g entry) bool { return sameInstance(g.token, token) && g.token > token }
	return later(entry{token: r.owner}) || slices.ContainsFunc(r.readers, later) ||
		slices.ContainsFunc(r.queue, later)
}

// dropOlder removes the entries of earlier tokens of the same host: the daemon has given them up.
func (r *row) dropOlder(token string) bool {
	older := func(g entry) bool { return sameInstance(g.token, token) && g.token < token }
	found := false
	if older(entry{token: r.owner}) {
		r.owner, r.ends, found = "", 0, true
	}
	if n := len(r.readers); n > 0 {
		r.readers = slices.DeleteFunc(r.readers, older)
		if len(r.readers) < n {
			r.ends, found = latest(r.readers), true
		}
	}
	if n := len(r.queue); n > 0 {
		r.queue = slices.DeleteFunc(r.queue, older)
		if len(r.queue) < n {
			r.queued, found = latest(r.queue), true
		}
	}
	return found
}

// free reports whether the lock can be granted to a host that does not have it. A writer gets it if
// there is no holder and no queue entry before its own. A reader gets it if no writer holds the
// lock or queues before it.
func (r *row) free(a *ask) bool {
	if r.owner != "" {
		return false
	}
	if a.mode == cache.Exclusive {
		return len(r.readers) == 0 && (len(r.queue) == 0 || r.queue[0].token == a.token)
	}
	for _, g := range r.queue {
		if g.token == a.token {
			break
		}
		if g.mode == cache.Exclusive {
			return false
		}
	}
	return true
}

func (r *row) give(a *ask, now int64) decision {
	r.fence = max(r.fence+1, max(a.floor+1, now)+a.apart)
	if r.fence > int64(cache.MaxBase) {
		return decision{status: cache.Refused, left: -1, err: errUsedUp}
	}
	ends := now + a.ttl
	if a.mode == cache.Exclusive {
		r.owner, r.ends, r.readers = a.token, max(r.ends, ends), nil
	} else {
		if i := find(r.readers, a.token); i >= 0 {
			r.readers[i].ends = max(r.readers[i].ends, ends)
		} else {
			r.readers = append(r.readers, entry{cache.Shared, a.token, ends})
		}
		r.ends = latest(r.readers)
	}
	r.leave(a.token)
	return decision{status: cache.Granted, contended: len(r.queue) > 0, left: -1,
		next: *r, change: true}
}

func (r *row) leave(token string) bool {
	i := find(r.queue, token)
	if i < 0 {
		return false
	}
	r.queue = slices.Delete(r.queue, i, i+1)
	r.queued = latest(r.queue)
	return true
}

// wait answers an ask for a lock that is not free. A try leaves the queue, and a join stays in it.
func (r *row) wait(a *ask, now int64, change bool) decision {
	if !a.join {
		left := r.leave(a.token)
		return r.deny(a, now, change || left)
	}
	ends := now + a.lease
	switch i := find(r.queue, a.token); {
	case i >= 0 && r.queue[i].ends-now > a.lease*2/3: // the next join is early enough to extend it
	case i >= 0:
		r.queue[i].ends, change = max(r.queue[i].ends, ends), true
	case len(r.queue) >= maxEntries:
		return decision{status: cache.Refused, left: -1, err: errQueue}
	default:
		r.queue, change = append(r.queue, entry{a.mode, a.token, ends}), true
	}
	r.queued = latest(r.queue)
	return r.deny(a, now, change)
}

func (r *row) deny(a *ask, now int64, change bool) decision {
	v := decision{status: cache.Busy, contended: r.contended(a.token, now), left: -1, next: *r,
		change: change}
	if r.ends > now {
		v.left = (r.ends - now) * 1000
	}
	if a.join {
		v.status = cache.Queued
	}
	return v
}
