package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// simStore is an upstream system that the hosts share, or the embedded store of one of them. Each
// has its own clock and its own faults.
type simStore struct {
	w        *World
	no       int
	name     string
	kind     storeKind
	rebase   bool   // it can give a held lease a new base
	epoch    uint64 // fence_epoch, which raises its bases; of a pair, the bases of the new store
	note     note
	off      int64 // what its clock showed at epoch; faults change it
	ppm      int64
	net      int         // rises when all connections break
	paused   int64       // it carries nothing out before this true time
	full     int64       // it has no free memory before this true time
	readOnly int64       // it refuses writes before this true time
	highest  uint64      // the highest base that it has given out
	losses   []loss      // how often it has ended leases before their time
	leaves   []*simStore // where its leases are: at itself, or at both stores of a pair, the old first

	redis *redisModel
	etcd  *etcdModel
	saved onDisk // of an embedded one
}

// loss is an event that ends leases before their time. Until the time given, an earlier holder that
// has not been told may hold together with a new one. A best-effort store cannot promise more.
type loss struct {
	host  *host  // whose leases ended; nil for all hosts
	base  uint64 // the highest base of these leases
	until int64  // true time, see above
}

func (w *World) newStore(kind storeKind) *simStore {
	s := &simStore{w: w, no: w.nStores, kind: kind,
		rebase: w.p.Rebase && !w.p.Epoch || kind != likeEtcd,
		off:    1_700_000_000*sec + w.between(0, sec), ppm: w.between(-drift, drift+1)}
	s.leaves = []*simStore{s}
	w.nStores++
	s.name = fmt.Sprintf("%v%d", kind, s.no)
	switch kind {
	case likeRedis:
		s.redis = newRedisModel(func() int64 { return s.clock() / us }, w.hint)
	case likeEtcd:
		s.etcd = newEtcdModel(s)
	}
	return s
}

// clock returns the time of the store's clock.
func (s *simStore) clock() int64 {
	d := s.w.now - epoch
	return s.off + d + d*s.ppm/1_000_000
}

func (s *simStore) info() upstream.Info {
	i := upstream.Info{Name: s.kind.String(), Safety: "best-effort", MinTTL: 100 * time.Millisecond,
		Rebase:  s.rebase,
		Permits: true, Queue: true, Timeout: time.Duration(s.w.p.Timeout)}
	if s.kind != likeEtcd {
		i.Keeps = time.Hour
	}
	if s.kind != likeRedis {
		i.Safety, i.Session = "linearizable", time.Duration(s.w.p.Session)
		if s.w.p.Short && s.kind == likeEtcd { // the news of the session have the TTL that it has
			i.Session *= 8
		}
	}
	return i
}

var errRefused = errors.New("OOM command not allowed when used memory > 'maxmemory'")

// carryOut carries out the ops of one script now.
func (s *simStore) carryOut(l *link, inst uint32, session int, ops []*cache.Op,
	res []*cache.Result) {
	w := s.w
	for _, op := range ops {
		w.counts.Ops[op.Kind]++
		w.counts.Modes[op.Mode]++
		if op.ShortLived {
			w.counts.Tallies[briefJoins]++
		}
		if w.load != nil {
			w.load.carriedOut(l.h, op)
		}
		w.key(op.Key).uses(l.h)
		w.note(kindOp, w.key(op.Key), uint64(inst)<<8|uint64(op.Kind), op.Token)
	}
	if s.refuses(ops[0].Kind) {
		for _, r := range res {
			r.Status, r.Err = cache.Refused, errRefused
		}
		return
	}
	switch s.kind {
	case likeRedis:
		s.redis.run(inst, ops, res)
	case likeEtcd:
		s.etcd.run(inst, session, ops, res)
	case likeEmbedded:
		l.disk(ops, res)
	}
	for i, op := range ops {
		if r := res[i]; r.Base > 0 {
			s.highest = max(s.highest, r.Base)
			if op.Kind == cache.OpRenew {
				w.counts.Tallies[rebases]++
			}
		}
		w.say(w.key(op.Key), "store %s: host %d.%d %v %v %d ttl %v: %v base %d", s.name, l.h.id, inst,
			op.Kind, op.Mode, op.Token, op.TTL, res[i].Status, res[i].Base)
	}
}

func (s *simStore) refuses(k cache.OpKind) bool {
	if s.w.now < s.readOnly {
		return k != cache.OpPeek
	}
	return s.w.now < s.full && refusedWhenFull(k)
}

// refusedWhenFull reports whether a store without memory refuses an op.
func refusedWhenFull(k cache.OpKind) bool { return k == cache.OpTry || k == cache.OpJoin }

// lost records that leases have ended early. No validity that has been stated, or is on its way,
// lasts longer than the longest TTL, approximately.
func (s *simStore) lost(h *host) {
	longest := s.w.p.Session
	if s.kind == likeRedis {
		longest = 0
		for _, ttl := range s.w.p.TTLs {
			longest = max(longest, ttl*ms)
		}
		if s.w.p.Foreign > 0 {
			longest = max(longest, foreignTTL*ms)
		}
	}
	longest = max(longest, s.w.p.longestKeep())
	s.losses = append(s.losses, loss{h, s.highest, s.w.now + longest + longest/50 + sec})
	s.w.say(nil, "store %s: leases up to base %d have ended early", s.name, s.highest)
}

// waives reports whether the store's safety class allows two holders of a key, or the order of
// their fences. It does so if the lease of the old hold ended early and the young hold has a newer
// lease.
func waives(old, young *hold) bool {
	share := old.at.shares(young.at)
	for _, s := range old.at.leaves { // each that both are at would have kept them apart
		if (!share || slices.Contains(young.at.leaves, s)) && !s.waives(old, young, share) {
			return false
		}
	}
	return true
}

// waives is the part of the function waives for one store.
func (s *simStore) waives(old, young *hold, share bool) bool {
	for _, l := range s.losses {
		if s.own(old.fence) > l.base || s.w.now >= l.until {
			continue
		}
		if l.host == old.k.h || l.host == nil && (!share || l.base < s.own(young.fence)) {
			return true
		}
	}
	return false
}

// own returns the base of a fence as s has given it, without the fence_epoch.
func (s *simStore) own(fence uint64) uint64 {
	if base := fence >> 10; s.kind != likeEtcd || base < s.epoch {
		return base
	}
	return fence>>10 - s.epoch
}

// shares reports whether a lease at s excludes every lease at o.
func (s *simStore) shares(o *simStore) bool {
	return slices.ContainsFunc(s.leaves, func(x *simStore) bool {
		return slices.Contains(o.leaves, x)
	})
}

// apart reports whether o and p need not exclude each other: they hold leases at different stores,
// and different daemons have granted them. One daemon grants a key nowhere until all holds that it
// has granted elsewhere are over. In a move from one store to another all holds exclude each other.
func (h *hold) apart(o *hold) bool {
	return !h.sameDaemon(o) && (h.degraded || o.degraded || !h.c.w.p.Move && !h.at.shares(o.at))
}

func (h *hold) sameDaemon(o *hold) bool { return h.k.h == o.k.h && h.k.gen == o.k.gen }

// baseOf identifies a lease on a host.
type baseOf struct {
	key  *key
	base uint64
}

// gave records the link through which a host has got a base.
func (l *link) gave(k *key, r *cache.Result) {
	base := r.Base
	if base > 0 && l.s.kind == likeEtcd {
		base += l.s.epoch
	}
	if base > 0 {
		l.h.bases[baseOf{k, base}] = l
	}
}

// where returns the store that has given the base of a fence, and the host's link to it. The link
// is nil if the host has granted the hold alone.
func (h *host) where(k *key, fence uint64) (*simStore, *link) {
	if l := h.bases[baseOf{k, fence >> 10}]; l != nil {
		return l.s, l
	}
	return h.site(h.conf.of(k.name).at), nil
}

// hint sends a store's hint to an instance.
func (w *World) hint(inst uint32, what cache.HintKind, name string) {
	l := w.owner[inst]
	if l == nil || l.inst != inst {
		return
	}
	n := 1
	x := upstream.Hint{Kind: what, Key: name}
	if w.key(name).permits > 0 {
		x.Mode = cache.Permit
	}
	delay := w.skewed(w.p.Latency)
	if !w.calm {
		switch {
		case w.chance(int(w.p.Faults[hintLost])):
			w.counts.Faults[hintLost]++
			n = 0
		case w.chance(int(w.p.Faults[hintLate])):
			w.counts.Faults[hintLate]++
			delay += w.skewed(sec)
		case w.chance(int(w.p.Faults[hintDoubled])):
			w.counts.Faults[hintDoubled]++
			n = 2
		}
		if l.cutOff > w.now {
			n = 0
		}
	}
	for range n {
		l.after(delay, func() { l.hint(x) })
		delay += w.skewed(10 * ms)
	}
}
