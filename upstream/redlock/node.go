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

// lane is one of the lanes to a node. Each has a limited number of jobs in flight.
type lane uint8

const (
	laneMain       lane = iota
	laneRenew           // renewals alone
	laneBackground      // calls without a waiting caller: pending releases, healing
	lanes
)

var maxRunning = [lanes]int{laneMain: 2, laneRenew: 1, laneBackground: 1}

// The bounds of the pause before a node that is down is asked again.
const (
	pauseMin = 10 * time.Millisecond
	pauseMax = time.Second
)

// node is one server. Store.mu guards the fields that change.
type node struct {
	i     int
	host  string
	store upstream.Store
	runID func() string // the id of the server's present run; "" if it is unknown

	running         []*job
	queue           []*job // jobs that have not been sent
	pendingReleases []*lease

	votedAs   string // the run id of the server at its last vote
	failures  int
	downUntil int64 // it is not asked before; 0 while it is up
	err       error // why it is down
}

// job is one call to a node.
type job struct {
	n      *node
	call   *call // the call that waits for it; nil if there is none any more
	lane   lane
	waited bool // the call has waited for it long enough

	ops     []upstream.Op
	parts   []part // of each op
	results []upstream.Result
	err     error
	down    bool                // the node is down
	keys    map[string]struct{} // set when no call waits for it any more
}

// part belongs to an op of a job.
type part struct {
	lease *lease // nil if it is not known
	at    int32  // the op's place in the call's batch
	stage stage  // of the vote that it is for
}

func (j *job) put(op upstream.Op, p part) { j.ops, j.parts = append(j.ops, op), append(j.parts, p) }

// abandonLocked marks j as a job that no call waits for.
func (j *job) abandonLocked() {
	j.call = nil
	j.keys = make(map[string]struct{}, len(j.ops))
	for i := range j.ops {
		j.keys[j.ops[i].Key] = struct{}{}
	}
}

// jobsLocked returns the calls to the node that are in flight or queued.
func (n *node) jobsLocked() []*job { return slices.Concat(n.running, n.queue) }

// busyKeysLocked returns the keys of the calls that jobsLocked returns.
func (n *node) busyKeysLocked() map[string]bool {
	keys := map[string]bool{}
	for _, j := range n.jobsLocked() {
		for i := range j.ops {
			keys[j.ops[i].Key] = true
		}
	}
	return keys
}

// canSendLocked reports whether j can be sent now. Its lane must have room, and it must have no key
// in common with an abandoned job in flight, so that ops of one key arrive in order.
func (n *node) canSendLocked(j *job) bool {
	flying := 0
	for _, r := range n.running {
		if r.lane == j.lane {
			flying++
		}
	}
	if flying >= maxRunning[j.lane] {
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

// submitLocked sends j now or queues it. A node that is down refuses at once.
func (s *Store) submitLocked(j *job, now int64) {
	j.results = make([]upstream.Result, len(j.ops))
	for _, p := range j.parts {
		if p.lease != nil {
			p.lease.jobs++
		}
	}
	if s.closed || now < j.n.downUntil {
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
	if j.n.canSendLocked(j) {
		s.startLocked(j, now)
	} else {
		j.n.queue = append(j.n.queue, j)
	}
}

func (s *Store) startLocked(j *job, now int64) {
	j.n.running = append(j.n.running, j)
	s.noteSendLocked(j, now)
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
			// If the op was carried out, the twin counts it.
			if j.results[i].Status != cache.Unknown {
				j.results[i] = upstream.Result{Status: cache.Refused, Left: -1, Err: j.err}
			}
		}
	}
	s.healthLocked(j, now)
	s.doneLocked(j, now)
	s.nextLocked(j.n, now)
}

// dropLocked removes a job that was not sent. It returns false if the job was sent.
func (s *Store) dropLocked(j *job) bool {
	i := slices.Index(j.n.queue, j)
	if i < 0 {
		return false
	}
	j.n.queue = slices.Delete(j.n.queue, i, i+1)
	for _, p := range j.parts {
		if p.lease != nil {
			p.lease.jobs--
		}
	}
	return true
}

// doneLocked passes on j's results to the call that waits for them.
func (s *Store) doneLocked(j *job, now int64) {
	s.noteAnswersLocked(j, now)
	if j.call != nil {
		j.call.arrived = append(j.call.arrived, j)
		j.call.wake()
	}
}

// nextLocked sends the queued jobs of n that can be sent.
func (s *Store) nextLocked(n *node, now int64) {
	for i := 0; i < len(n.queue); {
		j := n.queue[i]
		if !n.canSendLocked(j) {
			i++
			continue
		}
		n.queue = slices.Delete(n.queue, i, i+1)
		s.startLocked(j, now)
	}
	if len(n.pendingReleases) > 0 {
		s.wakeReleaser()
	}
	s.idleLocked()
}

// healthLocked records whether a node is up. The pause before a node that is down is asked again
// grows with each failure.
func (s *Store) healthLocked(j *job, now int64) {
	n := j.n
	if !j.down {
		if n.failures > 0 {
			n.failures, n.downUntil, n.err = 0, 0, nil
			s.log.Info("node votes again", zap.String("node", n.host))
		}
		return
	}
	n.err = j.err
	if first := j.results[0].Err; first != nil {
		n.err = first
	}
	if n.failures == 0 && !s.closed {
		s.log.Warn("node does not vote", zap.String("node", n.host), zap.Error(n.err))
	}
	pause := min(pauseMin<<min(n.failures, 10), pauseMax)
	n.failures++
	n.downUntil = now + int64(pause/2) + s.rand.Int64N(int64(pause/2))
}

// twinLocked returns another node that is the same server as n and has its vote: the one that was
// first known to lead there.
func (s *Store) twinLocked(n *node) *node {
	id := n.runID()
	if id == "" {
		return nil
	}
	for _, other := range s.nodes {
		if other != n && other.votedAs == id && other.runID() == id {
			return other
		}
	}
	n.votedAs = id
	return nil
}
