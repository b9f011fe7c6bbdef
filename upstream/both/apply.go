package both

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// step is a batch for one of the stores, with its results.
type step struct {
	at      []int // the index of each op in the whole batch
	ops     []upstream.Op
	results []upstream.Result
}

func (p *step) add(i int, op upstream.Op) {
	p.at = append(p.at, i)
	p.ops = append(p.ops, op)
}

// run carries out the step at st. It takes at most the timeout of st, because the other store needs
// time too.
func (p *step) run(ctx context.Context, st upstream.Store) error {
	if len(p.ops) == 0 {
		return nil
	}
	if limit := st.Info().Timeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	p.results = make([]upstream.Result, len(p.ops))
	return st.Apply(ctx, p.ops, p.results)
}

// Apply carries out a batch. Ops that end leases go to the new store first, and all others to the
// old store first. An acquire takes one round trip to each store, and usually one more: to raise
// the old store's counter, or to read the note while the old store decides.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	var oldFirst, newFirst step
	for i, op := range ops {
		results[i] = upstream.Result{Left: -1}
		switch op.Kind {
		case cache.OpRelease, cache.OpWithdraw:
			newFirst.add(i, op)
		default:
			op.Rebase = false // as Info declares
			oldFirst.add(i, op)
		}
	}
	return errors.Join(s.newFirst(ctx, &newFirst, results), s.oldFirst(ctx, &oldFirst, results))
}

// newFirst carries out ops that end leases and waits.
func (s *Store) newFirst(ctx context.Context, p *step, results []upstream.Result) error {
	old := step{at: p.at, ops: p.ops}
	err := errors.Join(p.run(ctx, s.new), old.run(ctx, s.old))
	s.endLost(0, old.results)
	s.endLost(1, p.results)
	for n, i := range p.at {
		if ended(p.results[n]) {
			s.setTokenState(&p.ops[n], absent)
		}
		results[i] = worse(old.results[n], p.results[n])
		if p.results[n].Status == cache.NotHeld && old.results[n].Status == cache.Done {
			results[i].Status = cache.Done // it was held in one of the two stores
		}
		if results[i].Status == cache.Unknown {
			endedNew, endedOld := ended(p.results[n]), ended(old.results[n])
			results[i].Partly = endedNew || endedOld
			results[i].Expires = endedNew && ttls(s.old.Info()) || endedOld && ttls(s.new.Info())
		}
	}
	return err
}

// endLost makes results of ops that end tokens NotHeld if the store has lost its session and has no
// other one. Whatever the store still has of the tokens ends with that session. Without this, a
// store that is down for good would keep the leases of the pair forever.
func (s *Store) endLost(i int, results []upstream.Result) {
	s.mu.Lock()
	lost := s.sessional[i] && s.known[i].No > 1 && s.known[i].Until == 0
	s.mu.Unlock()
	for n := range results {
		if r := &results[n]; lost && !ended(*r) {
			*r = upstream.Result{Status: cache.NotHeld, Left: -1}
		}
	}
}

// ended reports whether the store has nothing under the token any more, as its result r states.
func ended(r upstream.Result) bool { return r.Status == cache.Done || r.Status == cache.NotHeld }

// rank orders statuses: a higher one promises less.
var rank = [...]int{cache.Done: 1, cache.NotHeld: 2, cache.Refused: 3, cache.Unknown: 4}

// worse returns the result of an op that both stores must carry out. It is Done only if both are.
func worse(a, b upstream.Result) upstream.Result {
	r := a
	if rank[b.Status] > rank[a.Status] {
		r = b
	}
	if r.Status == cache.Refused && (a.Status != cache.Refused || b.Status != cache.Refused) {
		r.Status = cache.Unknown // the other store may have done it
	}
	r.Contended = a.Contended || b.Contended
	return r
}

// oldFirst carries out ops that get or keep leases. It sends to the new store only the ops that the
// old store has granted or done.
func (s *Store) oldFirst(ctx context.Context, p *step, results []upstream.Result) error {
	var next, leave step
	olds, err := s.askOld(ctx, p, &next, &leave, results)
	err = errors.Join(err, s.leave(ctx, &leave, results), next.run(ctx, s.new))
	baseErrs := s.setBases(ctx, &next, olds)
	var undo, raise step
	for n, i := range next.at {
		op, a, b := next.ops[n], olds[n], next.results[n]
		r := &results[i]
		s.combine(r, &op, &a, &b, baseErrs[n])
		switch {
		case !acquires(&op):
		case r.Status == cache.Busy || r.Status == cache.Refused:
			undo.add(i, withdraw(&op))
		case r.Status == cache.Granted && r.Base > a.Base && s.order == nil:
			raise.add(i, upstream.Op{
				Kind:   cache.OpRenew,
				Mode:   op.Mode,
				Key:    op.Key,
				Token:  op.Token,
				TTL:    op.TTL,
				Rebase: true,
				Floor:  r.Base - 1,
			})
		}
	}
	err = errors.Join(err, s.raise(ctx, &raise, results))
	for n, i := range next.at { // after raise, which may leave acquires Unknown
		if op := &next.ops[n]; acquires(op) {
			state := absent
			if st := results[i].Status; st == cache.Queued || st == cache.Unknown {
				state = queued
			}
			s.setTokenState(op, state)
		}
	}
	return errors.Join(err, s.undo(ctx, &undo, results))
}

// askOld carries out the ops of p in the old store. It adds the ops that the new store must carry
// out as well to next, and returns the old store's results for them. It adds the withdrawals of
// tokens that must leave the queues to leave.
func (s *Store) askOld(
	ctx context.Context, p, next, leave *step, results []upstream.Result,
) (olds []upstream.Result, err error) {
	var ask step
	for n, i := range p.at {
		if op := p.ops[n]; acquires(&op) && s.tokenState(&op) == withdrawn {
			leave.add(i, withdraw(&op))
		} else {
			ask.add(i, op)
		}
	}
	err = ask.run(ctx, s.old)
	for n, i := range ask.at {
		op, r := ask.ops[n], ask.results[n]
		switch {
		case op.Kind == cache.OpRenew || op.Kind == cache.OpDowngrade:
			// The new store's lease must last as long as possible, whatever the old store answers.
		case r.Status == cache.Granted || r.Status == cache.Done:
		default:
			results[i] = r
			results[i].Session, results[i].SessionNo = 0, 0
			if (r.Status == cache.Queued || r.Status == cache.Busy) && s.tokenState(&op) == queued {
				leave.add(i, withdraw(&op))
			}
			continue
		}
		if acquires(&op) {
			op.Floor = max(op.Floor, r.Base-1) // the same base is enough
			if s.order != nil {
				op.Floor = 0 // the new store's bases cannot be raised
			}
		}
		next.add(i, op)
		olds = append(olds, r)
	}
	return olds, err
}

func acquires(op *upstream.Op) bool { return op.Kind == cache.OpTry || op.Kind == cache.OpJoin }

func withdraw(op *upstream.Op) upstream.Op {
	return upstream.Op{Kind: cache.OpWithdraw, Mode: op.Mode, Key: op.Key, Token: op.Token}
}

// leave withdraws tokens that have lost the old store's lease. If they stayed in the new store's
// queue, the next holder of that lease would wait for them, and they for it.
func (s *Store) leave(ctx context.Context, p *step, results []upstream.Result) error {
	for n, i := range p.at {
		results[i] = upstream.Result{Status: cache.Busy, Left: -1}
		s.setTokenState(&p.ops[n], absent)
	}
	return s.undo(ctx, p, results)
}

// setBases replaces the bases of grants of both stores by the pair's bases. The result has an error
// for each op of p that has no base.
func (s *Store) setBases(ctx context.Context, p *step, olds []upstream.Result) []error {
	errs := make([]error, len(p.ops))
	var grants []bases
	var of []int
	for n := range p.ops {
		if op, b := &p.ops[n], &p.results[n]; acquires(op) && b.Status == cache.Granted {
			grants, of = append(grants, bases{op.Key, olds[n].Base, b.Base}), append(of, n)
		}
	}
	switch {
	case len(grants) == 0:
	case s.order != nil:
		decided, undecided := s.order.decide(ctx, grants)
		for i, n := range of {
			p.results[n].Base, errs[n] = decided[i], undecided[i]
		}
	default:
		for i, n := range of {
			if g := &grants[i]; g.new < g.old {
				errs[n] = fmt.Errorf("%w: the new store's fence base is %d, and the old store's "+
					"is already %d",
					ErrFences, g.new, g.old)
			}
		}
	}
	return errs
}

// combine sets the result r of op from the results a of the old store and b of the new one. baseErr
// is the error of setBases.
func (s *Store) combine(r *upstream.Result, op *upstream.Op, a, b *upstream.Result, baseErr error) {
	*r = *b
	r.Session, r.SessionNo = 0, 0
	switch {
	case op.Kind == cache.OpPeek:
	case op.Kind == cache.OpRenew || op.Kind == cache.OpDowngrade:
		*r = worse(*a, *b)
		if a.Status == cache.NotHeld || b.Status == cache.NotHeld {
			r.Status = cache.NotHeld // the pair's lease is lost, whatever the other store answers
		}
		r.Base = 0
		s.session(r, a, b)
	case errors.Is(baseErr, ErrFences):
		*r = upstream.Result{Status: cache.Refused, Left: -1, Err: baseErr}
	case baseErr != nil:
		*r = upstream.Result{Status: cache.Unknown, Left: -1, Err: baseErr}
	case b.Status == cache.Granted:
		r.Contended = a.Contended || b.Contended
		s.session(r, a, b)
	case b.Status == cache.Queued || b.Status == cache.Busy:
		r.Contended = r.Contended || a.Contended
	case b.Status == cache.Refused && op.Kind == cache.OpJoin:
		r.Status = cache.Unknown // the old store has granted it, and it will be requested again
	}
}

// The bounds of raise's search for a base that both stores give to a permit.
const (
	maxRaises  = 8       // attempts for all permits together, and then for each semaphore
	minHeadway = 16      // bases; see raising.headway
	maxHeadway = 1 << 19 // bases
)

// raise raises the old store's counter to the bases that are about to be granted. The counter may
// be past a lock's base already, because no other host has the lock. But other hosts can get
// permits in the meantime. So a permit's base must be one that both stores have given for this
// batch. Until there is such a base, raise requests a base from the new store that is ahead of both
// counters, and then the same base from the old store.
//
// One store may count all keys together, and the other one the keys of each slot. Then they give
// the same bases only to the permits of one semaphore. So once an attempt has found bases for some
// permits and not for all, raise continues with one semaphore at a time.
func (s *Store) raise(ctx context.Context, p *step, results []upstream.Result) error {
	r := raising{Store: s, results: results}
	began := s.wall()
	p = r.ask(ctx, s.old, p, 0)
	r.took = 2 * max(s.wall()-began, 0)
	for n := 0; n < maxRaises && len(p.ops) > 0; n++ {
		left := r.attempt(ctx, p)
		some := len(left.ops) < len(p.ops)
		if p = left; some {
			break
		}
	}
	for len(p.ops) > 0 {
		one, others := p.cutKey()
		for n := 0; n < maxRaises && len(one.ops) > 0; n++ {
			one = r.attempt(ctx, one)
		}
		for _, i := range one.at {
			results[i] = unknown("%w: other hosts get permits so fast that no base is found "+
				"which neither store has given", ErrFences)
		}
		p = others
	}
	return r.err
}

// raising is one raise.
type raising struct {
	*Store
	results []upstream.Result
	highest uint64 // base of a permit so far
	took    int64  // about the time of an attempt, in µs
	failed  int    // attempts in a row that have found no base
	err     error
}

// attempt requests bases from the new store that are ahead of both counters, and then the same
// bases from the old store. It returns the permits that have none yet.
func (r *raising) attempt(ctx context.Context, p *step) (left *step) {
	began := r.wall()
	left = r.ask(ctx, r.old, r.ask(ctx, r.new, p, r.headway(began)), 0)
	r.took = max(r.wall()-began, 0)
	r.failed++
	if len(left.ops) < len(p.ops) {
		r.failed = 0
	}
	return left
}

// headway returns how far the next bases are to be ahead of all bases so far. The old store's
// counter must not reach them meanwhile. A counter at the clock moves by one each µs, so they must
// be ahead of the clock by the time of an attempt. A counter ahead of the clock moves by one each
// grant, so a few more are enough. A larger headway would put the counters further ahead with each
// batch, and fences would fall by as much if a store lost its counter. If our clock is ahead of the
// servers', the counters get ahead by as much, but slowly. If it is behind, the headway grows after
// two failures.
func (r *raising) headway(now int64) uint64 {
	few := min(int64(minHeadway)<<(3*min(max(r.failed-1, 0), 5)), maxHeadway)
	took := min(r.took, maxHeadway/4)
	return uint64(max(few, min(now+2*took-int64(r.highest), 4*took)))
}

// ask requests new bases from the store st. They are to be the bases that the other store has given
// or, if ahead is not 0, ahead of all bases so far. ask returns the permits whose bases are not
// among those that the other store has given.
func (r *raising) ask(ctx context.Context, st upstream.Store, p *step, ahead uint64) *step {
	var left step
	if len(p.ops) == 0 {
		return &left
	}
	given := r.level(p, ahead)
	r.err = errors.Join(r.err, p.run(ctx, st))
	for n, i := range p.at {
		op, got := p.ops[n], p.results[n]
		if got.Status != cache.Done {
			r.results[i] = unknown("raise the fence: %w", reason(got))
			continue
		}
		if op.Mode == cache.Permit {
			r.results[i].Base = got.Base
			r.highest = max(r.highest, got.Base)
			if !given[keyBase{op.Key, got.Base}] {
				left.add(i, op)
			}
		}
	}
	return &left
}

// keyBase is a fence base of a key.
type keyBase struct {
	key  string
	base uint64
}

// level sets the floors of the permits of p, so that the store gives them the same bases as the
// other store. If ahead is not 0, the bases are to be ahead of all bases so far. Within a batch, a
// store counts up from the largest floor. level returns the bases that the other store has given.
func (r *raising) level(p *step, ahead uint64) map[keyBase]bool {
	given, lowest := make(map[keyBase]bool), uint64(math.MaxUint64)
	for n, i := range p.at {
		if p.ops[n].Mode == cache.Permit {
			b := r.results[i].Base
			given[keyBase{p.ops[n].Key, b}] = true
			lowest, r.highest = min(lowest, b), max(r.highest, b)
		}
	}
	floor := lowest - 1
	if ahead > 0 {
		floor = r.highest + ahead
	}
	for n := range p.ops {
		if p.ops[n].Mode == cache.Permit {
			p.ops[n].Floor = floor
		}
	}
	return given
}

// cutKey divides p into the ops of its first key and the others.
func (p *step) cutKey() (first, others *step) {
	first, others = new(step), new(step)
	for n, i := range p.at {
		if p.ops[n].Key == p.ops[0].Key {
			first.add(i, p.ops[n])
		} else {
			others.add(i, p.ops[n])
		}
	}
	return first, others
}

// undo withdraws tokens that only one store has granted or queued. If a store does not answer, the
// result is Unknown.
func (s *Store) undo(ctx context.Context, p *step, results []upstream.Result) error {
	if len(p.ops) == 0 {
		return nil
	}
	ends := make([]upstream.Result, len(results))
	err := s.newFirst(ctx, p, ends)
	for n, i := range p.at {
		if e := ends[i]; ended(e) {
			results[i].Gone = results[i].Status == cache.Refused
		} else {
			s.setTokenState(&p.ops[n], withdrawn)
			results[i] = unknown("withdraw a request from both stores: %w", reason(e))
		}
	}
	return err
}

// unknown returns a result Unknown with an error.
func unknown(format string, cause error) upstream.Result {
	return upstream.Result{Status: cache.Unknown, Left: -1, Err: fmt.Errorf(format, cause)}
}

func reason(r upstream.Result) error {
	if r.Err != nil {
		return r.Err
	}
	return errors.New(r.Status.String())
}
