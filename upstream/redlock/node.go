package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// lane is one of the ways to a node. Each carries a few jobs at a time, whoever
// waits for them.
type lane uint8

const (
	laneMain  lane = iota
	laneRenew      // renewals alone
	laneBack       // calls that nobody waits for: pending releases, healing
	lanes
)

var most = [lanes]int{laneMain: 2, laneRenew: 1, laneBack: 1}

// The pauses after which a node that is down is asked again.
const (
	pauseMin = 10 * time.Millisecond
	pauseMax = time.Second
)

// node is one server. What can change is guarded by Store.mu.
type node struct {
	i     int
	host  string
	store upstream.Store

	running         []*job
	queue           []*job // none of it has been sent
	pendingReleases []*lease

	votes string // the run of a server, with whose vote it was last heard
	fails int
	until int64 // not to be asked before; 0 while it is up
	err   error // why
}

// job is one call to a node.
type job struct {
	n      *node
	call   *call // who waits for it; nil when nobody does, or does no longer
	lane   lane
	waited bool // the call has given it its time

	ops     []upstream.Op
	parts   []part // of each op
	results []upstream.Result
	err     error
	down    bool                // the node is
	keys    map[string]struct{} // once nobody waits for it
}

// part is what belongs to an op of a job.
type part struct {
	g     *lease // nil when it is not known
	at    int32  // the op's place in the call's batch
	stage stage  // of the vote that it is for
}

func (j *job) put(op upstream.Op, p part) { j.ops, j.parts = append(j.ops, op), append(j.parts, p) }

// abandonLocked marks j as one that nobody waits for.
func (j *job) abandonLocked() {
	j.call = nil
	j.keys = make(map[string]struct{}, len(j.ops))
	for i := range j.ops {
		j.keys[j.ops[i].Key] = struct{}{}
	}
}

// usedLocked adds the keys that the node is being asked about.
func (n *node) usedLocked(keys map[string]bool) {
	for _, js := range [][]*job{n.running, n.queue} {
		for _, j := range js {
			for i := range j.ops {
				keys[j.ops[i].Key] = true
			}
		}
	}
}

// mayLocked says whether j can be sent now: there is room in its lane, and what the
// node was sent before and nobody waits for any longer has no key in common with
// it, so that ops of one key arrive in their order.
func (n *node) mayLocked(j *job) bool {
	flying := 0
	for _, r := range n.running {
		if r.lane == j.lane {
			flying++
		}
	}
	if flying >= most[j.lane] {
		return false
	}
	if j.lane == laneRenew {
		return true
	}
	for _, r := range n.running {
		if r.keys == nil || r.lane == laneRenew {
			continue
		}
		for i := range j.ops {
			if _, ok := r.keys[j.ops[i].Key]; ok {
				return false
			}
		}
	}
	return true
}

// submitLocked sends j, now or when its turn comes. A node that is down refuses at
// once.
func (s *Store) submitLocked(j *job, now int64) {
	j.results = make([]upstream.Result, len(j.ops))
	for _, p := range j.parts {
		if p.g != nil {
			p.g.flying++
		}
	}
	if s.closed || now < j.n.until {
		j.err, j.down = j.n.err, true
		if s.closed {
			j.err = errClosed
		}
		for i := range j.results {
			j.results[i] = upstream.Result{Status: cache.Refused, Left: -1, Err: j.err}
		}
		s.doneLocked(j, now)
		return
	}
	if j.n.mayLocked(j) {
		s.startLocked(j, now)
	} else {
		j.n.queue = append(j.n.queue, j)
	}
}

func (s *Store) startLocked(j *job, now int64) {
	j.n.running = append(j.n.running, j)
	s.sendingLocked(j, now)
	s.wg.Go(func() { s.run(j) })
}

func (s *Store) run(j *job) {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Timeout)
	err := j.n.store.Apply(ctx, j.ops, j.results)
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	j.n.running = slices.DeleteFunc(j.n.running, func(r *job) bool { return r == j })
	j.err, j.down = err, errors.Is(err, upstream.ErrDown)
	if twin := s.twinLocked(j.n); twin != nil {
		j.err, j.down = fmt.Errorf("%w: %s and %s", ErrSameServer, twin.host, j.n.host), true
		for i := range j.results {
			if j.results[i].Status != cache.Unknown { // it stands at the twin if it stands
				j.results[i] = upstream.Result{Status: cache.Refused, Left: -1, Err: j.err}
			}
		}
	}
	s.healthLocked(j, now)
	s.doneLocked(j, now)
	s.nextLocked(j.n, now)
}

// dropLocked takes back what was not sent; false when it was.
func (s *Store) dropLocked(j *job) bool {
	i := slices.Index(j.n.queue, j)
	if i < 0 {
		return false
	}
	j.n.queue = slices.Delete(j.n.queue, i, i+1)
	for _, p := range j.parts {
		if p.g != nil {
			p.g.flying--
		}
	}
	return true
}

// doneLocked gives j's answers to whoever waits for them.
func (s *Store) doneLocked(j *job, now int64) {
	s.noteLocked(j, now)
	if j.call != nil {
		j.call.arrived = append(j.call.arrived, j)
		j.call.tell()
	}
}

// nextLocked sends what waits for its turn at n.
func (s *Store) nextLocked(n *node, now int64) {
	for i := 0; i < len(n.queue); {
		j := n.queue[i]
		if !n.mayLocked(j) {
			i++
			continue
		}
		n.queue = slices.Delete(n.queue, i, i+1)
		s.startLocked(j, now)
	}
	if len(n.pendingReleases) > 0 {
		s.kick()
	}
	s.idleLocked()
}

// healthLocked keeps account of whether a node is up. One that is not is left in
// peace for a while, longer each time.
func (s *Store) healthLocked(j *job, now int64) {
	n := j.n
	if !j.down {
		if n.fails > 0 {
			n.fails, n.until, n.err = 0, 0, nil
			s.log.Info("node votes again", zap.String("node", n.host))
		}
		return
	}
	n.err = j.err
	if first := j.results[0].Err; first != nil {
		n.err = first
	}
	if n.fails == 0 && !s.closed {
		s.log.Warn("node does not vote", zap.String("node", n.host), zap.Error(n.err))
	}
	pause := min(pauseMin<<min(n.fails, 10), pauseMax)
	n.fails++
	n.until = now + int64(pause/2) + s.rand.Int64N(int64(pause/2))
}

// Identified is a member that can tell which server it leads to.
type Identified interface {
	// RunID is the id of the server's present run, empty when not known.
	RunID() string
}

func (n *node) runID() string {
	if x, ok := n.store.(Identified); ok {
		return x.RunID()
	}
	return ""
}

// twinLocked is another node that is the same server as n, and has its vote: the first of them that
// was known to lead there.
func (s *Store) twinLocked(n *node) *node {
	id := n.runID()
	if id == "" {
		return nil
	}
	for _, other := range s.nodes {
		if other != n && other.votes == id && other.runID() == id {
			return other
		}
	}
	n.votes = id
	return nil
}
