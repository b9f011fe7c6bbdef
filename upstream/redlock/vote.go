package redlock

import (
	"math/bits"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// set is a set of nodes, by their places in the URL.
type set uint32

func only(n int) set            { return 1 << n }
func first(n int) set           { return 1<<n - 1 }
func (s set) has(n int) bool    { return s>>n&1 != 0 }
func (s set) count() int        { return bits.OnesCount32(uint32(s)) }
func (s *set) add(n int)        { *s |= only(n) }
func (s *set) drop(n int)       { *s &^= only(n) }
func (s set) quorum(n int) bool { return s.count() > n/2 }

// stage is how far the vote on one op has come.
type stage uint8

const (
	asking  stage = iota // the nodes carry out the op itself
	writing              // the highest base is written back
	undoing              // what a few nodes granted is released
	ended
)

// verdict is what a stage has come to.
type verdict uint8

const (
	open    verdict = iota // the nodes that have not answered decide
	yes                    // a quorum said yes
	no                     // so many said no that no quorum can say yes
	nothing                // too few nodes said anything
)

// vote is what the nodes have said to one op.
type vote struct {
	stage  stage
	result verdict // once it has ended
	kind   cache.OpKind
	nodes  int    // of the store; odd
	g      *lease // nil for a peek, or a token that is not known here

	asked, sent, answered set // in this stage

	yes     set // granted, done, or free
	no      set // busy, or not held
	refused set // nothing was done there
	unknown set // no answer

	base   uint64 // the highest that a node of yes gave
	have   set    // nodes whose counter is at base or above, by an answer that says that our token stood there
	shared set    // of no: busy with readers
	wanted bool
	late   bool // granted when its TTL was over, or confirmed after the end of what it renews
}

// verdict says what the present stage has come to. Quorums are of an odd number
// of nodes: what is not a quorum leaves one to the others.
func (v *vote) verdict() verdict {
	wait := v.asked &^ v.answered
	switch v.stage {
	case writing:
		switch {
		case v.have.quorum(v.nodes):
			return yes
		case !(v.have | wait).quorum(v.nodes):
			return no
		}
		return open
	case undoing, ended:
		return yes // nothing depends on it
	}
	switch v.kind {
	case cache.OpTry, cache.OpJoin:
		switch {
		case v.yes.quorum(v.nodes):
			return yes
		case !(v.yes | wait).quorum(v.nodes):
			return no
		}
		return open
	case cache.OpRelease, cache.OpWithdraw:
		switch said := v.yes | v.no; {
		case said.quorum(v.nodes):
			return yes
		case !(said | wait).quorum(v.nodes):
			return nothing
		}
		return open
	case cache.OpPeek:
		switch {
		case v.yes.quorum(v.nodes):
			return yes
		case (v.yes | v.no).quorum(v.nodes) && !(v.yes | wait).quorum(v.nodes):
			return no
		case !(v.yes | v.no | wait).quorum(v.nodes):
			return nothing
		}
		return open
	}
	switch { // renew, downgrade
	case v.yes.quorum(v.nodes):
		return yes
	case v.no.quorum(v.nodes):
		return no
	case !(v.yes | wait).quorum(v.nodes) && !(v.no | wait).quorum(v.nodes):
		return nothing
	}
	return open
}

// count takes one node's answer in. bases and lefts have a place for each node.
func (v *vote) count(n int, r *upstream.Result, bases []uint64, lefts []int64) {
	v.answered.add(n)
	v.wanted = v.wanted || r.Contended
	switch v.stage {
	case asking:
	case writing:
		if r.Status == cache.Done && r.Base >= v.base {
			v.have.add(n)
		}
		return
	default:
		return
	}
	switch r.Status {
	case cache.Granted, cache.Done:
		v.yes.add(n)
		bases[n] = r.Base
		lefts[n] = 0
	case cache.Busy, cache.Queued, cache.NotHeld:
		v.no.add(n)
		if r.Left >= 0 {
			lefts[n] = r.Left
		}
		if r.Mode == cache.Shared {
			v.shared.add(n)
		}
	case cache.Refused:
		v.refused.add(n)
	default:
		v.unknown.add(n)
	}
}

// highest sets the base of a vote that was won, and who has it already. Only the
// nodes counted in it count in the write-back: a later one may have given a
// larger base than was looked at.
func (v *vote) highest(bases []uint64) {
	v.base, v.have = 0, 0
	for n, b := range bases {
		if v.yes.has(n) && b > v.base {
			v.base, v.have = b, 0
		}
		if v.yes.has(n) && b == v.base {
			v.have.add(n)
		}
	}
}

// soonest is when a quorum of nodes will be free, if nothing changes; -1 when that
// is not known. It sorts lefts.
func soonest(lefts []int64) int64 {
	slices.Sort(lefts)
	if l := lefts[len(lefts)/2]; l != cache.Forever {
		return l
	}
	return -1
}
