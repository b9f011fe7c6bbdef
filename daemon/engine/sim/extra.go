package sim

import (
	"math/rand/v2"
	"slices"
)

// This file has further features of runs. Each draws from dice of its own, as newPairProfile does.

// extraDice returns the dice of one further feature.
func extraDice(seed, feature uint64) (pick func(n int) int) {
	dice := rand.New(rand.NewPCG(seed, feature))
	return func(n int) int { return int(dice.Uint64N(uint64(n))) }
}

// newExtras gives some runs further features.
func newExtras(p *Profile, seed uint64) {
	if pick := extraDice(seed, 0x6d616e7902); p.Local && !p.Stalls && pick(4) == 0 {
		p.Many, p.ManyApart = []int{50, 200}[pick(2)], true
	}
	if pick := extraDice(seed, 0x616e796f66); p.Keys > 1 && !p.Stalls && pick(4) == 0 {
		p.Any = []int{100, 400}[pick(2)]
	}
	if pick := extraDice(seed, 0x71756575650f); p.Faults[hostTakeover] > 0 && pick(4) == 0 {
		p.Queued = true
	}
	if pick := extraDice(seed, 0x6c696d697410); slices.ContainsFunc(p.Semaphores, severalPermits) &&
		pick(4) == 0 {
		p.Limits = true
	}
	if pick := extraDice(seed, 0x717565727933); pick(6) == 0 {
		p.Queries = true
	}
	if pick := extraDice(seed, 0x65706f6368); p.Move && p.More[0] == likeEtcd && pick(4) > 0 {
		p.Epoch = true
	}
	if pick := extraDice(seed, 0x636861696e); p.Store == likeEtcd && !p.Rebase && p.Namespaces == 0 &&
		p.MaxHolds == 1<<40 && p.Tenure == 0 && !p.Local && !p.OneShard && pick(2) == 0 {
		p.Chain = true
	}
	newKeepProfile(p, extraDice(seed, 0x6b656570a1))
	if pick := extraDice(seed, 0x726174658c); !p.Chain && !p.Stalls && pick(6) == 0 {
		p.Rate = []int{5, 20, 50}[pick(3)]
		p.Faults[clientFlood] = 0 // the rate limit would bound the flood
	}
	if pick := extraDice(seed, 0x737465707313); p.Faults[hostReload] > 0 && pick(3) == 0 {
		p.Steps = true
		if !p.Stalls && pick(3) == 0 { // holds in several shards, and limits that they reach
			p.NamespaceLimit, p.Keys, p.Hold, p.OneShard = 1+pick(2), max(p.Keys, 5), 300*ms, false
			p.Faults[hostReload] = sec
		}
	}
	if pick := extraDice(seed, 0x7365737369); p.has(likeEtcd.String()) && pick(5) == 0 {
		p.Short, p.Session, p.TTLs = true, 2*sec, append(p.TTLs, 15_000)
	}
	if !p.Calm && !p.Stalls && !p.Pairs && !p.Move {
		newFrequentFaults(p, extraDice(seed, 0x6f6674656e))
	}
}

// newFrequentFaults makes some faults so frequent in some runs that few seeds show all their
// consequences.
func newFrequentFaults(p *Profile, pick func(n int) int) {
	if p.Store == likeRedis && pick(3) == 0 { // grants are read after the store has forgotten them
		p.Faults[storeFlush], p.Faults[clientPause] = 10*sec, 5*sec
	}
	if p.Keep > 0 && pick(2) == 0 { // daemons end, and leave what their stores keep
		p.Faults[hostKill] = 20 * sec
		if p.Namespaces > 0 {
			p.Users = max(p.Users, 2)
		}
	}
	if p.Rate == 0 && pick(4) == 0 { // clients do not read as much as they ask for
		p.Out = 256 << pick(4)
		p.Faults[clientFlood] = 20 * sec
	}
}

func severalPermits(permits int) bool { return permits > 1 }
