package sim

import (
	"math/rand/v2"
	"slices"
)

// Further features of runs. Each draws from dice of its own, as newPairProfile does.

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
	if pick := extraDice(seed, 0x65706f6368); p.Move && p.More[0] == likeEtcd && pick(2) == 0 {
		p.Epoch = true
	}
	newKeepProfile(p, extraDice(seed, 0x6b656570a1))
	if pick := extraDice(seed, 0x726174658c); !p.Chain && !p.Stalls && pick(6) == 0 {
		p.Rate = []int{5, 20, 50}[pick(3)]
		p.Faults[clientFlood] = 0 // the rate limit would bound the flood
	}
	if pick := extraDice(seed, 0x737465707313); p.Faults[hostReload] > 0 && pick(3) == 0 {
		p.Steps = true
	}
}

func severalPermits(permits int) bool { return permits > 1 }
