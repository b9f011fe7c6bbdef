package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// redisModel does to plain data what the scripts of the redis driver do to a Redis, in the same
// steps. Its times are milliseconds of the server's clock, as in Redis. A key still exists in the
// millisecond of its end; a member of a set that the scripts check does not. TestModelIsRedis
// compares the model with a real server.
type redisModel struct {
	clock   func() int64 // µs
	hint    func(inst uint32, kind cache.HintKind, key string)
	keys    map[string]*redisKey
	permits map[string]*redisPermits
	last    uint64 // the fence base given out last; 0 when it was lost
	lease   int64  // how long a place in the queue lasts, ms
	queued  int64  // a host may queue for some key until then
}

// token names one lease: an instance of a daemon, and a number of that instance.
type token struct {
	inst uint32
	n    uint64
}

// keyKind says how the key of a lock is held.
type keyKind uint8

const (
	keyFree      keyKind = iota
	keyExclusive         // by one exclusive lease
	keyShared            // by shared leases
	keyForeign           // by a plain locker
)

type redisKey struct {
	name    string
	kind    keyKind
	token   token // the holder of keyExclusive or keyForeign
	exp     int64
	readers []reader // by ends; meaningful only while kind is keyShared
	readExp int64
	queue   []place // in their order
	queExp  int64
	waiters []reader // by place
	waitExp int64
}

type reader struct {
	t    token
	mode cache.Mode // of a waiter
	ends int64
}

type place struct {
	t    token
	mode cache.Mode
}

func newRedisModel(clock func() int64, hint func(uint32, cache.HintKind, string)) *redisModel {
	return &redisModel{clock: clock, hint: hint, keys: make(map[string]*redisKey),
		permits: make(map[string]*redisPermits), lease: 3000}
}

// flush is FLUSHALL, or a restart without persistence.
func (m *redisModel) flush() {
	m.keys, m.permits, m.last, m.queued = make(map[string]*redisKey),
		make(map[string]*redisPermits), 0, 0
}

// script is one call of one script.
type script struct {
	m      *redisModel
	now    int64
	me     uint32
	marked bool // at the beginning of the script, a host might queue for some key
}

// run carries out the ops of one script. All are acquires in one mode, or all are releases and
// withdrawals, and so on.
func (m *redisModel) run(inst uint32, ops []*cache.Op, res []*cache.Result) {
	s := &script{m: m, now: m.clock() / 1000, me: inst}
	s.marked = s.now <= m.queued
	if ops[0].Mode == cache.Permit {
		s.runPermits(ops, res)
		return
	}
	switch ops[0].Kind {
	case cache.OpTry, cache.OpJoin:
		base := m.reserve(len(ops), ops)
		for i, op := range ops {
			if op.Mode == cache.Shared {
				s.share(op, res[i], base+uint64(i))
			} else {
				s.acquire(op, res[i], base+uint64(i))
			}
		}
	case cache.OpRelease, cache.OpWithdraw:
		for i, op := range ops {
			s.release(op, res[i])
		}
	case cache.OpRenew:
		s.renew(ops, res)
	case cache.OpDowngrade:
		for i, op := range ops {
			s.downgrade(op, res[i])
		}
	case cache.OpPeek:
		for i, op := range ops {
			s.peek(op, res[i])
		}
	}
}

// reserve reserves n bases. The floor is the highest base that any of the ops knows.
func (m *redisModel) reserve(n int, ops []*cache.Op) uint64 {
	base := max(m.last+1, uint64(m.clock()))
	for _, op := range ops {
		base = max(base, op.Floor+1)
	}
	m.last = base + uint64(n) - 1
	return base
}

// at returns the present state of a key, without expired entries.
func (s *script) at(name string) *redisKey {
	k := s.m.keys[name]
	if k == nil {
		k = &redisKey{name: name}
		s.m.keys[name] = k
	}
	if k.kind != keyFree && s.now > k.exp {
		k.kind, k.token = keyFree, token{}
	}
	if s.now > k.readExp {
		k.readers = k.readers[:0]
	}
	if s.now > k.queExp {
		k.queue = k.queue[:0]
	}
	if s.now > k.waitExp {
		k.waiters = k.waiters[:0]
	}
	return k
}

func (s *script) set(k *redisKey, g keyKind, t token, ttl int64) {
	if k.kind == g && k.token == t {
		ttl = max(ttl, k.exp-s.now) // a late request must not shorten what a later one was given
	}
	k.kind, k.token, k.exp = g, t, s.now+ttl
}

func (s *script) del(k *redisKey) { k.kind, k.token = keyFree, token{} }

// millisOf rounds up, as the driver does.
func millisOf(op *cache.Op) int64 { return max(1, (int64(op.TTL)+ms-1)/ms) }

func (s *script) left(k *redisKey) int64 {
	if k.kind == keyFree {
		return -1
	}
	return max(0, k.exp-s.now) * ms
}

func (s *script) acquire(op *cache.Op, r *cache.Result, base uint64) {
	k, t := s.at(op.Key), token{s.me, op.Token}
	queued := s.queued(k)
	if !queued && k.kind == keyFree {
		s.set(k, keyExclusive, t, millisOf(op))
		*r = cache.Result{Status: cache.Granted, Base: base}
		return
	}
	switch {
	case k.kind == keyExclusive && k.token.inst == s.me && k.token != t:
		if k.token.n > t.n {
			*r = cache.Result{Status: cache.Busy, Left: s.left(k)} // this request is the late one
			return
		}
		s.del(k) // the release of the older token is on its way: the daemon has a new token
	case k.kind == keyShared && s.reads(k, t):
		s.otherMode(k, op, r)
		return
	case k.kind == keyShared:
		if s.older(k, t) {
			s.shrink(k)
		}
	}
	var first place
	any := false
	if queued && (k.kind == keyFree || op.Kind == cache.OpTry) {
		first, any = s.first(k, &t)
	}
	if k.kind == keyExclusive && k.token == t || k.kind == keyFree &&
		(!any || first == place{t, cache.Exclusive}) {
		s.set(k, keyExclusive, t, millisOf(op))
		if queued {
			s.leave(k, place{t, cache.Exclusive})
		}
		*r = cache.Result{Status: cache.Granted, Base: base, Contended: s.contended(k)}
		return
	}
	s.later(k, op, r, place{t, cache.Exclusive}, queued, any)
}

// otherMode answers an acquire whose token holds the key in the other mode. It changes nothing.
func (s *script) otherMode(k *redisKey, op *cache.Op, r *cache.Result) {
	*r = cache.Result{Status: cache.Queued, Left: s.left(k)}
	if op.Kind == cache.OpTry {
		r.Status = cache.Busy
	}
}

// later answers a try that cannot be granted, or queues.
func (s *script) later(k *redisKey, op *cache.Op, r *cache.Result, p place, queued, any bool) {
	if op.Kind == cache.OpTry {
		if queued {
			s.leave(k, p)
		}
		if queued && k.kind == keyFree {
			s.wake(k)
		}
		*r = cache.Result{Status: cache.Busy, Contended: any, Left: s.left(k)}
		return
	}
	s.join(k, p, op.ShortLived)
	*r = cache.Result{Status: cache.Queued, Left: s.left(k)}
}

func (s *script) share(op *cache.Op, r *cache.Result, base uint64) {
	k, t := s.at(op.Key), token{s.me, op.Token}
	again := false
	switch {
	case k.kind == keyExclusive && k.token == t:
		s.otherMode(k, op, r)
		return
	case k.kind == keyExclusive && k.token.inst == s.me:
		if k.token.n > t.n {
			*r = cache.Result{Status: cache.Busy, Left: s.left(k)}
			return
		}
		s.del(k)
	case k.kind == keyShared:
		if again = s.reads(k, t); !again {
			s.older(k, t)
		}
	}
	queued, any := s.queued(k), false
	if queued {
		s.bury(k) // a reader does not wait for a writer whose time is up
		_, any = s.first(k, &t)
	}
	free := k.kind == keyFree || k.kind == keyShared
	if again || free && !s.writer(k, any, op.Kind == cache.OpJoin, place{t, cache.Shared}) {
		had := k.kind == keyShared
		if !had {
			k.readers = k.readers[:0]
		}
		s.read(k, t, millisOf(op))
		if queued {
			s.leave(k, place{t, cache.Shared})
		}
		if queued && !had {
			s.wake(k)
		}
		*r = cache.Result{Status: cache.Granted, Base: base, Contended: s.contended(k)}
		return
	}
	s.later(k, op, r, place{t, cache.Shared}, queued, any)
}

func (s *script) release(op *cache.Op, r *cache.Result) {
	k, t := s.at(op.Key), token{s.me, op.Token}
	r.Status = cache.Done
	if k.kind == keyExclusive && k.token == t {
		s.del(k)
		if s.queued(k) {
			s.wake(k)
		}
		return
	}
	found := false
	if k.kind == keyShared && k.reader(t) >= 0 {
		k.readers = slices.DeleteFunc(k.readers, func(x reader) bool { return x.t == t })
		s.shrink(k)
		found = true
	}
	if s.queued(k) {
		found = s.leave(k, place{t, cache.Exclusive}) || found
		found = s.leave(k, place{t, cache.Shared}) || found
		if found {
			s.wake(k)
		}
	}
	if !found && op.Kind == cache.OpRelease {
		r.Status = cache.NotHeld
	}
}

func (s *script) renew(ops []*cache.Op, res []*cache.Result) {
	base := uint64(0)
	if slices.ContainsFunc(ops, func(op *cache.Op) bool { return op.Rebase }) {
		base = s.m.reserve(len(ops), ops)
	}
	for i, op := range ops {
		k, t, r := s.at(op.Key), token{s.me, op.Token}, res[i]
		switch {
		case k.kind == keyExclusive && k.token == t:
			k.exp = max(k.exp, s.now+millisOf(op))
		case k.kind == keyShared && s.reads(k, t):
			s.read(k, t, millisOf(op))
		default:
			r.Status = cache.NotHeld
			continue
		}
		r.Status, r.Contended = cache.Done, s.contended(k)
		if op.Rebase {
			r.Base = base + uint64(i)
		}
	}
}

func (s *script) downgrade(op *cache.Op, r *cache.Result) {
	k, t := s.at(op.Key), token{s.me, op.Token}
	switch {
	case k.kind == keyExclusive && k.token == t:
		k.readers = k.readers[:0]
		ttl := max(millisOf(op), k.exp-s.now) // see set
		s.del(k)
		s.read(k, t, ttl)
		s.wake(k)
	case k.kind == keyShared && s.reads(k, t):
		s.read(k, t, millisOf(op))
	default:
		r.Status = cache.NotHeld
		return
	}
	r.Status, r.Contended = cache.Done, s.contended(k)
}

func (s *script) peek(op *cache.Op, r *cache.Result) {
	k := s.at(op.Key)
	if k.kind == keyFree {
		r.Status, r.Left = cache.Done, -1
		return
	}
	*r = cache.Result{Status: cache.Busy, Left: s.left(k)}
	if k.kind == keyShared {
		r.Mode = cache.Shared
	}
}
