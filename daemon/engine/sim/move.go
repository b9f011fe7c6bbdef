package sim

import (
	"math/rand/v2"
	"slices"
)

// This file has the move of all keys from one store to another, in the three rollouts of
// docs/operate/stores.md: the old store, both, the new one. Then the keys move back in the same
// way, and so on. A rollout begins when the one before it is finished on every host. In some runs
// the new store orders its bases itself, as etcd and ZooKeeper do. Then the hosts use both stores
// first without and then with a fence_epoch, by the note in the new store, and the keys do not move
// back.

// fenceEpoch is above all bases of the old store.
const fenceEpoch = 4_000_000_000_000_000

// newMove makes the stores of the rollouts.
func (w *World) newMove() {
	from, to := w.stores[0], w.stores[1]
	if w.p.Epoch {
		raised := w.newPair(from, to)
		to.epoch, raised.epoch = fenceEpoch, fenceEpoch
		w.stages = []*simStore{from, w.newPair(from, to), raised, to}
		return
	}
	w.stages = []*simStore{from, w.newPair(from, to), to, w.newPair(to, from)}
}

// stageStore returns the store of all keys after the given number of rollouts.
func (w *World) stageStore(stage int) *simStore { return w.stages[stage%len(w.stages)] }

// move returns the configuration of the next rollout if that may begin. Otherwise it returns the
// present one with another policy.
func (w *World) move() *conf {
	c := w.conf
	next := &conf{namespaces: slices.Clone(c.namespaces), classes: c.classes, limits: c.limits,
		stage: c.stage}
	if w.p.Epoch && c.stage == len(w.stages)-1 || !w.moved() || w.chance(300) {
		i := w.pick(len(next.namespaces))
		next.namespaces[i].Namespace = w.policy(next.namespaces[i].Prefix)
		return next
	}
	next.stage++
	for i := range next.namespaces {
		next.namespaces[i].at = w.stageStore(next.stage)
	}
	w.counts.Tallies[rollouts]++
	w.say(nil, "rollout %d begins: %s", next.stage, w.stageStore(next.stage).name)
	return next
}

// moved reports whether the present rollout is finished. On every host, no lease is left that was
// taken before it, not even one that an earlier daemon may have left behind. And fences of the next
// store will be higher.
func (w *World) moved() bool {
	at := w.stageStore(w.conf.stage)
	for _, h := range w.hosts {
		if !h.up || h.passing || h.conf.stage != w.conf.stage || w.now < h.started+w.longest()*11/10 ||
			slices.ContainsFunc(h.links, func(l *link) bool { return l.of != at }) {
			return false
		}
	}
	return at.kind != likeBoth || w.p.Epoch || at.leaves[1].passed(at.leaves[0])
}

// passed reports whether all bases that s gives from now on are above the bases of the old store. A
// key has been locked in both, or the clock of s has passed the bases of old.
func (s *simStore) passed(old *simStore) bool {
	if s.kind == likeEtcd {
		return s.etcd.revision > old.highest
	}
	return max(s.redis.last, uint64(s.clock()/us)) > old.highest
}

// newPairProfile gives some runs two stores at once. It draws from dice of its own, so that the
// draws of all other runs stay the same.
func newPairProfile(p *Profile, seed uint64) {
	dice := rand.New(rand.NewPCG(seed, 0x74776f73746f7265))
	pick := func(n int) int { return int(dice.Uint64N(uint64(n))) }
	if p.Namespaces == 0 || p.Store == likeEmbedded {
		return
	}
	switch kinds := []storeKind{likeRedis, likeRedis, likeEtcd}; {
	case p.Store == likeRedis && pick(4) == 0:
		p.Move, p.Foreign, p.More = true, 0, []storeKind{kinds[pick(3)]}
		p.Faults[hostReload] = []int64{300 * ms, 2 * sec}[pick(2)]
	case pick(4) == 0:
		p.Pairs = true
		if p.More = append(p.More, likeRedis); p.Store != likeRedis { // two have bases that can be raised
			p.More = append(p.More, likeRedis)
		}
	}
}
