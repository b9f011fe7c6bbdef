package sim

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// This file has the queue and the readers of one key of the model.

// reads reports whether t has a shared lease.
func (s *script) reads(k *redisKey, t token) bool {
	return slices.ContainsFunc(k.readers, func(x reader) bool { return x.t == t && x.ends > s.now })
}

// reader returns t's place among the readers; -1 if it has none. A reader whose time is up keeps
// its place while others read.
func (k *redisKey) reader(t token) int {
	return slices.IndexFunc(k.readers, func(x reader) bool { return x.t == t })
}

// read gives t a shared lease, or extends it.
func (s *script) read(k *redisKey, t token, ttl int64) {
	if k.kind == keyShared {
		k.exp = max(k.exp, s.now+ttl)
	} else {
		s.set(k, keyShared, token{}, ttl)
	}
	ends := s.now + ttl
	k.readers = slices.DeleteFunc(k.readers, func(x reader) bool {
		if x.t == t {
			ends = max(ends, x.ends)
		}
		return x.t == t
	})
	k.readers = append(k.readers, reader{t: t, ends: ends})
	slices.SortFunc(k.readers, func(a, b reader) int {
		return cmp.Or(cmp.Compare(a.ends, b.ends), cmp.Compare(a.t.inst, b.t.inst),
			cmp.Compare(a.t.n, b.t.n))
	})
	if len(k.readers) == 1 || k.readExp < s.now+ttl+1000 {
		k.readExp = s.now + ttl + 1000
	}
}

// older removes readers' leases of the same instance whose release is pending.
func (s *script) older(k *redisKey, t token) bool {
	n := len(k.readers)
	k.readers = slices.DeleteFunc(k.readers, func(x reader) bool {
		return x.t.inst == s.me && x.t.n < t.n
	})
	return len(k.readers) < n
}

// shrink updates the key after readers have left. The lock ends with the last of them.
func (s *script) shrink(k *redisKey) {
	k.readers = slices.DeleteFunc(k.readers, func(x reader) bool { return x.ends <= s.now })
	if n := len(k.readers); n > 0 {
		k.exp = k.readers[n-1].ends
		return
	}
	s.del(k)
}

func (k *redisKey) waiting(p place) int {
	return slices.IndexFunc(k.waiters, func(x reader) bool { return x.t == p.t && x.mode == p.mode })
}

func (k *redisKey) drop(p place) bool {
	at := slices.Index(k.queue, p)
	if at >= 0 {
		k.queue = slices.Delete(k.queue, at, at+1)
	}
	if at := k.waiting(p); at >= 0 {
		k.waiters = slices.Delete(k.waiters, at, at+1)
	}
	return at >= 0
}

// queued reports whether there is a queue for k, even if the time of all its waiters is up.
func (s *script) queued(k *redisKey) bool { return len(k.queue) > 0 && s.marked }

// bury drops waiters whose time is up from the queue.
func (s *script) bury(k *redisKey) {
	for _, x := range slices.Clone(k.waiters) {
		if x.ends <= s.now {
			k.drop(place{x.t, x.mode})
		}
	}
}

// first drops waiters whose time is up, and older places of t's instance, at the head of the queue.
// It returns the first place that is left.
func (s *script) first(k *redisKey, t *token) (p place, any bool) {
	for len(k.queue) > 0 {
		p = k.queue[0]
		older := t != nil && p.t != *t && p.t.inst == s.me && p.t.n < t.n
		if at := k.waiting(p); !older && at >= 0 && k.waiters[at].ends > s.now {
			return p, true
		}
		k.drop(p)
	}
	return place{}, false
}

// wake sends hints to the waiters that can have k now: the first in the queue, or all readers
// before the first writer.
func (s *script) wake(k *redisKey) {
	first, any := s.first(k, nil)
	if !any || k.kind != keyFree && k.kind != keyShared {
		return
	}
	if first.mode == cache.Exclusive {
		if k.kind == keyFree {
			s.m.hint(first.t.inst, cache.HintAvailable, k.name)
		}
		return
	}
	s.bury(k)
	for _, p := range k.queue {
		if p.mode == cache.Exclusive {
			return
		}
		s.m.hint(p.t.inst, cache.HintAvailable, k.name)
	}
}

// contended reports whether a host queues for k.
func (s *script) contended(k *redisKey) bool {
	return slices.ContainsFunc(k.waiters, func(x reader) bool { return x.ends > s.now })
}

func (s *script) leave(k *redisKey, p place) bool {
	return slices.Contains(k.queue, p) && k.drop(p)
}

// join puts p at the end of the queue, or keeps its place, and tells the holders.
func (s *script) join(k *redisKey, p place, brief bool) {
	news := !slices.Contains(k.queue, p)
	if news {
		k.queue = append(k.queue, p)
	}
	ends := s.now + s.m.lease
	at := k.waiting(p)
	fresh := at < 0
	if !fresh {
		k.waiters[at].ends = ends
	} else {
		k.waiters = append(k.waiters, reader{p.t, p.mode, ends})
	}
	if len(k.queue) == 1 && news || k.queExp < ends {
		k.queExp = ends + s.m.lease
	}
	if len(k.waiters) == 1 && fresh || k.waitExp < ends {
		k.waitExp = ends + s.m.lease
	}
	s.m.mark(ends)
	if k.kind == keyFree {
		s.wake(k) // an earlier waiter may have missed its hint
		return
	}
	if !news {
		if first, _ := s.first(k, &p.t); first.t != p.t {
			return
		}
	}
	what := cache.HintContended
	if brief {
		what = cache.HintTried
	}
	switch k.kind {
	case keyShared:
		for _, x := range k.readers {
			if x.ends > s.now {
				s.m.hint(x.t.inst, what, k.name)
			}
		}
	case keyExclusive:
		s.m.hint(k.token.inst, what, k.name)
	}
}

// mark records that the key is contended until ends.
func (m *redisModel) mark(ends int64) {
	if m.queued < ends {
		m.queued = ends + m.lease
	}
}

// writer reports whether a writer queues for k, before p if p has a place.
func (s *script) writer(k *redisKey, any, joins bool, p place) bool {
	if !any {
		return false
	}
	before := k.queue
	if at := slices.Index(k.queue, p); joins && at >= 0 {
		before = k.queue[:at]
	}
	return slices.ContainsFunc(before, func(x place) bool { return x.mode == cache.Exclusive })
}

// Plain lockers: SET key token NX PX, and compare-and-delete.

func (m *redisModel) foreignTake(name string, n uint64, ttl int64) bool {
	s := &script{m: m, now: m.clock() / 1000}
	k := s.at(name)
	if k.kind != keyFree {
		return false
	}
	s.set(k, keyForeign, token{n: n}, ttl)
	return true
}

func (m *redisModel) foreignGive(name string, n uint64) {
	s := &script{m: m, now: m.clock() / 1000}
	if k := s.at(name); k.kind == keyForeign && k.token.n == n {
		s.del(k)
	}
}

// ends returns all times, in ms, at which a key or an entry ends by itself.
func (m *redisModel) ends() (all []int64) {
	for _, k := range m.keys {
		if k.kind != keyFree {
			all = append(all, k.exp)
		}
		for _, x := range slices.Concat(k.readers, k.waiters) {
			all = append(all, x.ends)
		}
		if len(k.readers) > 0 {
			all = append(all, k.readExp)
		}
	}
	for _, p := range m.permits {
		for _, x := range slices.Concat(p.held, p.queue) {
			all = append(all, x.ends)
		}
	}
	return append(all, m.queueEnds()...)
}

// queueEnds returns the times, in ms, at which queues, or the mark that there are any, end by
// themselves.
func (m *redisModel) queueEnds() (all []int64) {
	for _, k := range m.keys {
		if len(k.queue) > 0 {
			all = append(all, k.queExp)
		}
		if len(k.waiters) > 0 {
			all = append(all, k.waitExp)
		}
	}
	if m.queued > 0 {
		all = append(all, m.queued)
	}
	return all
}

// turns returns all times, in ms, at which the outcome of an op changes. These are the ends, and
// the times from which on a host that joins makes a queue end later.
func (m *redisModel) turns() []int64 {
	all := m.ends()
	for _, end := range m.queueEnds() {
		all = append(all, end-m.lease)
	}
	return all
}

// residue returns the number of keys that are held or have a queue.
func (m *redisModel) residue() (n int) {
	s := &script{m: m, now: m.clock() / 1000}
	for name := range m.keys {
		k := s.at(name)
		if k.kind != keyFree || len(k.queue) > 0 || len(k.waiters) > 0 {
			n++
		}
	}
	for name := range m.permits {
		if p := s.permitsOf(name); len(p.held)+len(p.queue) > 0 {
			n++
		}
	}
	return n
}
