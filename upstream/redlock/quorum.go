package redlock

import (
	"math/bits"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// set is a set of nodes, by their positions in the URL.
type set uint32

func setOf(n int) set           { return 1 << n }
func allNodes(n int) set        { return 1<<n - 1 }
func (s set) has(n int) bool    { return s>>n&1 != 0 }
func (s set) count() int        { return bits.OnesCount32(uint32(s)) }
func (s *set) add(n int)        { *s |= setOf(n) }
func (s *set) drop(n int)       { *s &^= setOf(n) }
func (s set) quorum(n int) bool { return s.count() > n/2 }

// stage is the stage of the vote on one op.
type stage uint8

const (
	asking  stage = iota // the nodes carry out the op itself
	writing              // the highest base is written back
	undoing              // the grants of a minority are released
	ended
)

// outcome is the outcome of a stage.
type outcome uint8

const (
	undecided outcome = iota // The nodes that have not answered decide.
	yes                      // A quorum said yes.
	no                       // So many said no that no quorum can say yes.
	noQuorum                 // Too few nodes gave a useful answer.
)

// vote counts the answers of the nodes to one op.
type vote struct {
	stage  stage
	result outcome // once it has ended
	kind   cache.OpKind
	nodes  int    // of the store; odd
	lease  *lease // nil for a peek, or an unknown token

	asked, sent, answered set // in this stage

	yes     set // granted, done, or free
	no      set // busy, or not held
	refused set // nothing was done there
	unknown set // no answer

	bases     []uint64 // by node
	lefts     []int64  // by node
	base      uint64   // the highest base that a node of yes gave
	have      set      // nodes of yes with a counter at base or above while they had our token
	shared    set      // the nodes of no that readers keep busy
	contended bool
	tooLate   bool // see call.tooLate
}

// outcome returns the outcome of the present stage. The number of nodes is odd, so that the nodes
// outside a quorum are never a quorum.
func (v *vote) outcome() outcome {
	wait := v.asked &^ v.answered
	// decide returns yes if favor is a quorum, and otherwise if it cannot become one any more.
	decide := func(favor set, otherwise outcome) outcome {
		switch {
		case favor.quorum(v.nodes):
			return yes
		case !(favor | wait).quorum(v.nodes):
			return otherwise
		}
		return undecided
	}
	switch v.stage {
	case writing:
		return decide(v.have, no)
	case undoing, ended:
		return yes // Nothing depends on it.
	}
	against := v.no
	switch v.kind {
	case cache.OpTry, cache.OpJoin:
		return decide(v.yes, no)
	case cache.OpRelease, cache.OpWithdraw:
		return decide(v.yes|v.no, noQuorum)
	case cache.OpPeek:
		against = v.yes | v.no // With so many answers and no quorum in favor, the key is held.
	}
	favor := decide(v.yes, no)
	if favor != no {
		return favor
	}
	if denied := decide(against, noQuorum); denied != yes {
		return denied
	}
	return no
}

// count counts the answer of node n.
func (v *vote) count(n int, r *upstream.Result) {
	v.answered.add(n)
	v.contended = v.contended || r.Contended
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
		v.bases[n] = r.Base
		v.lefts[n] = 0
	case cache.Busy, cache.Queued, cache.NotHeld:
		v.no.add(n)
		if r.Left >= 0 {
			v.lefts[n] = r.Left
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

// highest sets the base of a vote that was won, and the nodes that have it already. Only the nodes
// that are counted here count in the write-back: a later one may have given a larger base.
func (v *vote) highest() {
	v.base, v.have = 0, 0
	for n, b := range v.bases {
		if v.yes.has(n) && b > v.base {
			v.base, v.have = b, 0
		}
		if v.yes.has(n) && b == v.base {
			v.have.add(n)
		}
	}
}

// soonest returns the time until a quorum of nodes will be free if nothing changes, or -1 if it is
// not known. It sorts v.lefts.
func (v *vote) soonest() int64 {
	slices.Sort(v.lefts)
	if l := v.lefts[len(v.lefts)/2]; l != cache.Forever {
		return l
	}
	return -1
}
