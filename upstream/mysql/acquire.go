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

// ask is one host's wish for a lock.
type ask struct {
	token string
	mode  cache.Mode
	join  bool  // else try
	ttl   int64 // µs
	lease int64 // of a place in the queue, µs
	floor int64
	apart int64 // keeps the bases of one batch apart
}

// verdict is what an ask comes to.
type verdict struct {
	status    cache.Status
	contended bool
	left      int64 // nanoseconds until the present leases end, -1 when there are none
	err       error // of Refused
	// next is the row as it has to be for the verdict to hold, if change is set;
	// otherwise it holds as things are.
	next   row
	change bool
}

// decide is the whole of the rules by which a lock is given, as change.sql has
// them for the plain cases: what becomes of the ask at now, and of the row.
func (r *row) decide(a *ask, now int64) verdict {
	l := r.live(now)
	writes, reads := l.owner == a.token, find(l.readers, a.token) >= 0
	switch has := writes || reads; {
	case has && writes == (a.mode == cache.Exclusive): // it is said again
	case has:
		return l.turnDown(a, now, false) // what it has is of the other mode, and stays
	case l.newer(a.token):
		return l.turnDown(a, now, false) // we are the late one
	}
	dropped := l.dropOlder(a.token)
	switch {
	case writes || reads:
	case !l.free(a):
		return l.wait(a, now, dropped)
	case len(l.readers) >= maxEntries:
		return verdict{status: cache.Refused, left: -1, err: errReaders}
	}
	return l.give(a, now)
}

// newer says whether a later token of the same host stands in the row.
func (r *row) newer(token string) bool {
	later := func(g entry) bool { return sameInstance(g.token, token) && g.token > token }
	return later(entry{token: r.owner}) || slices.ContainsFunc(r.readers, later) || slices.ContainsFunc(r.queue, later)
}

// dropOlder takes away what earlier tokens of the same host have left behind: the
// daemon has gone on.
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

// free says whether the lock can be given to one who does not have it: to a
// writer when nobody holds it and nobody queues before; to a reader when no writer
// does either.
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

func (r *row) give(a *ask, now int64) verdict {
	r.fence = max(r.fence+1, max(a.floor+1, now)+a.apart)
	if r.fence > int64(cache.MaxBase) {
		return verdict{status: cache.Refused, left: -1, err: errUsedUp}
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
	return verdict{status: cache.Granted, contended: len(r.queue) > 0, left: -1, next: *r, change: true}
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

// wait is the end of an ask for a lock that is not free: a try goes away, a join
// stands in the queue.
func (r *row) wait(a *ask, now int64, change bool) verdict {
	if !a.join {
		left := r.leave(a.token)
		return r.turnDown(a, now, change || left)
	}
	ends := now + a.lease
	switch i := find(r.queue, a.token); {
	case i >= 0 && r.queue[i].ends-now > a.lease*2/3: // long enough to write the next time
	case i >= 0:
		r.queue[i].ends, change = max(r.queue[i].ends, ends), true
	case len(r.queue) >= maxEntries:
		return verdict{status: cache.Refused, left: -1, err: errQueue}
	default:
		r.queue, change = append(r.queue, entry{a.mode, a.token, ends}), true
	}
	r.queued = latest(r.queue)
	return r.turnDown(a, now, change)
}

func (r *row) turnDown(a *ask, now int64, change bool) verdict {
	v := verdict{status: cache.Busy, contended: r.contended(a.token, now), left: -1, next: *r, change: change}
	if r.ends > now {
		v.left = (r.ends - now) * 1000
	}
	if a.join {
		v.status = cache.Queued
	}
	return v
}
