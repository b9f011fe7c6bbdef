package both

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// step is a batch for one of the stores, with what it answers.
type step struct {
	at      []int // of the ops here among those of the whole batch
	ops     []upstream.Op
	results []upstream.Result
}

func (p *step) add(i int, op upstream.Op) {
	p.at = append(p.at, i)
	p.ops = append(p.ops, op)
}

// run carries out the step at st, which gets no more time than a daemon gives it alone: the other store needs some, too.
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

// Apply carries out a batch: what takes something in the old store first, what
// gives something up in the new one first. An acquire takes a trip to each, and mostly one more: to raise the
// old store's fence, or to read the note while the old store decides.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	var take, give step
	for i, op := range ops {
		results[i] = upstream.Result{Left: -1}
		switch op.Kind {
		case cache.OpRelease, cache.OpWithdraw:
			give.add(i, op)
		default:
			op.Rebase = false // Info says that there is none
			take.add(i, op)
		}
	}
	return errors.Join(s.give(ctx, &give, results), s.take(ctx, &take, results))
}

// give ends leases and places in queues, in the new store and then in the old one.
func (s *Store) give(ctx context.Context, p *step, results []upstream.Result) error {
	old := step{at: p.at, ops: p.ops}
	err := errors.Join(p.run(ctx, s.new), old.run(ctx, s.old))
	for n, i := range p.at {
		if ended(p.results[n]) {
			s.setStanding(&p.ops[n], absent)
		}
		results[i] = worse(old.results[n], p.results[n])
		if p.results[n].Status == cache.NotHeld && old.results[n].Status == cache.Done {
			results[i].Status = cache.Done // one of the two is enough to have been held
		}
		if results[i].Status == cache.Unknown {
			news, olds := ended(p.results[n]), ended(old.results[n])
			results[i].Partly = news || olds
			results[i].Expires = news && ttls(s.old.Info()) || olds && ttls(s.new.Info())
		}
	}
	return err
}

// ended reports whether r says that nothing stands under the token any more.
func ended(r upstream.Result) bool { return r.Status == cache.Done || r.Status == cache.NotHeld }

// rank orders the ends of what both have to do by how little they promise.
var rank = [...]int{cache.Done: 1, cache.NotHeld: 2, cache.Refused: 3, cache.Unknown: 4}

// worse is the result of two stores together: done is what both have done.
func worse(a, b upstream.Result) upstream.Result {
	r := a
	if rank[b.Status] > rank[a.Status] {
		r = b
	}
	if r.Status == cache.Refused && (a.Status != cache.Refused || b.Status != cache.Refused) {
		r.Status = cache.Unknown // one of them may have done it
	}
	r.Contended = a.Contended || b.Contended
	return r
}

// take asks the old store, and the new one about what the old one has granted or
// done.
func (s *Store) take(ctx context.Context, p *step, results []upstream.Result) error {
	var ask, next, leave step
	for n, i := range p.at {
		if op := p.ops[n]; acquires(&op) && s.standing(&op) == leaves {
			leave.add(i, withdraw(&op))
		} else {
			ask.add(i, op)
		}
	}
	err := ask.run(ctx, s.old)
	var olds []upstream.Result
	for n, i := range ask.at {
		op, r := ask.ops[n], ask.results[n]
		on := r.Status == cache.Granted || r.Status == cache.Done
		if op.Kind == cache.OpRenew || op.Kind == cache.OpDowngrade {
			on = true // whatever one says, the other's has to live as long as it can
		}
		if !on {
			results[i] = r
			results[i].Session, results[i].SessionNo = 0, 0
			if (r.Status == cache.Queued || r.Status == cache.Busy) && s.standing(&op) == waits {
				leave.add(i, withdraw(&op))
			}
			continue
		}
		if acquires(&op) {
			op.Floor = max(op.Floor, r.Base-1) // the same base will do
			if s.order != nil {
				op.Floor = 0 // its bases are lifted afterwards, if at all
			}
		}
		next.add(i, op)
		olds = append(olds, r)
	}
	err = errors.Join(err, s.leave(ctx, &leave, results), next.run(ctx, s.new))
	wrong := s.setBases(ctx, &next, olds)
	var undo, raise step
	for n, i := range next.at {
		op, a, b := next.ops[n], olds[n], next.results[n]
		switch {
		case op.Kind == cache.OpPeek:
			results[i] = b
			results[i].Session, results[i].SessionNo = 0, 0
		case op.Kind == cache.OpRenew || op.Kind == cache.OpDowngrade:
			results[i] = worse(a, b)
			results[i].Base = 0
			s.session(&results[i], &a, &b)
		default:
			s.acquired(&results[i], &op, &a, &b, wrong[n])
			switch r := &results[i]; {
			case r.Status == cache.Busy || r.Status == cache.Refused:
				undo.add(i, withdraw(&op))
			case r.Status == cache.Granted && r.Base > a.Base && s.order == nil:
				raise.add(i, upstream.Op{Kind: cache.OpRenew, Mode: op.Mode, Key: op.Key, Token: op.Token, TTL: op.TTL,
					Rebase: true, Floor: r.Base - 1})
			}
		}
	}
	err = errors.Join(err, s.raise(ctx, &raise, results))
	for n, i := range next.at { // behind the raise, which may not have been answered
		if op := &next.ops[n]; acquires(op) {
			is := absent
			if st := results[i].Status; st == cache.Queued || st == cache.Unknown {
				is = waits
			}
			s.setStanding(op, is)
		}
	}
	return errors.Join(err, s.undo(ctx, &undo, results))
}

func acquires(op *upstream.Op) bool { return op.Kind == cache.OpTry || op.Kind == cache.OpJoin }

func withdraw(op *upstream.Op) upstream.Op {
	return upstream.Op{Kind: cache.OpWithdraw, Mode: op.Mode, Key: op.Key, Token: op.Token}
}

// leave ends places in the queues of both stores. They belong to tokens that have lost the old store's lease. If
// they stayed in the new one, the next one that has that lease would wait for them, and they for it.
func (s *Store) leave(ctx context.Context, p *step, results []upstream.Result) error {
	for n, i := range p.at {
		results[i] = upstream.Result{Status: cache.Busy, Left: -1}
		s.setStanding(&p.ops[n], absent)
	}
	return s.undo(ctx, p, results)
}

// setBases replaces the bases of what both stores have granted by those of the pair. It returns, by the ops
// of p, why there is none.
func (s *Store) setBases(ctx context.Context, p *step, olds []upstream.Result) []error {
	wrong := make([]error, len(p.ops))
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
		results, errs := s.order.decide(ctx, grants)
		for i, n := range of {
			p.results[n].Base, wrong[n] = results[i], errs[i]
		}
	default:
		for i, n := range of {
			if g := &grants[i]; g.new < g.old {
				wrong[n] = fmt.Errorf("%w: the new store's fence base is %d, and the old store's is %d already", ErrFences, g.new, g.old)
			}
		}
	}
	return wrong
}

// acquired is what becomes of an acquire that the old store has granted. wrong is why there is no base.
func (s *Store) acquired(r *upstream.Result, op *upstream.Op, a, b *upstream.Result, wrong error) {
	*r = *b
	r.Session, r.SessionNo = 0, 0
	switch {
	case errors.Is(wrong, ErrFences):
		*r = upstream.Result{Status: cache.Refused, Left: -1, Err: wrong}
	case wrong != nil:
		*r = upstream.Result{Status: cache.Unknown, Left: -1, Err: wrong}
	case b.Status == cache.Granted:
		r.Contended = a.Contended || b.Contended
		s.session(r, a, b)
	case b.Status == cache.Queued || b.Status == cache.Busy:
		r.Contended = r.Contended || a.Contended
	case b.Status == cache.Refused && op.Kind == cache.OpJoin: // it stands in the old store, and will be asked for again
		r.Status = cache.Unknown
	}
}

// How a permit gets a base that both stores have given: see raise.
const (
	raises  = 9       // of one permit, at the most
	headway = 100_000 // of the first base that is ahead of both stores' clocks, in µs; each later one has twice as much
)

// raise lifts the old store's counter to the bases that are about to be granted. It may be past a
// lock's by then: nobody else has got the lock. Other hosts get permits meanwhile, so a permit's
// base has to be one that both stores have given in answer to this batch. While it is not, the new
// store is asked for one that is ahead of both, and then the old one for the same.
func (s *Store) raise(ctx context.Context, p *step, results []upstream.Result) (err error) {
	for round := 0; len(p.ops) > 0; round++ {
		at := []upstream.Store{s.old, s.new}[round%2]
		ahead := uint64(0)
		if at == s.new {
			ahead = headway << (round / 2)
		}
		given := p.level(results, ahead)
		err = errors.Join(err, p.run(ctx, at))
		var next step
		for n, i := range p.at {
			op, r := p.ops[n], p.results[n]
			switch {
			case r.Status != cache.Done:
				results[i] = upstream.Result{Status: cache.Unknown, Left: -1, Err: fmt.Errorf("raise the fence: %w", reason(r))}
			case op.Mode != cache.Permit:
			case given[keyBase{op.Key, r.Base}]:
				results[i].Base = r.Base
			case round == raises-1:
				results[i] = upstream.Result{Status: cache.Unknown, Left: -1, Err: fmt.Errorf(
					"%w: other hosts get permits too fast to find one that neither store has given", ErrFences)}
			default:
				results[i].Base = r.Base
				next.add(i, op)
			}
		}
		p = &next
	}
	return err
}

// keyBase is a fence base of a key.
type keyBase struct {
	key string
	of  uint64
}

// level has a store asked for the bases that the other one has given to the permits of p, which it
// returns, or for ones that are so far ahead of all of those. A store counts up within a batch,
// from the largest floor.
func (p *step) level(results []upstream.Result, ahead uint64) map[keyBase]bool {
	given, least, most := make(map[keyBase]bool), uint64(math.MaxUint64), uint64(0)
	for n, i := range p.at {
		if p.ops[n].Mode == cache.Permit {
			b := results[i].Base
			given[keyBase{p.ops[n].Key, b}] = true
			least, most = min(least, b), max(most, b)
		}
	}
	floor := least - 1
	if ahead > 0 {
		floor = most + ahead
	}
	for n := range p.ops {
		if p.ops[n].Mode == cache.Permit {
			p.ops[n].Floor = floor
		}
	}
	return given
}

// undo withdraws tokens from both stores: what a try has got in one store alone, or a place. While that is not
// answered, the result is unknown.
func (s *Store) undo(ctx context.Context, p *step, results []upstream.Result) error {
	if len(p.ops) == 0 {
		return nil
	}
	ends := make([]upstream.Result, len(results))
	err := s.give(ctx, p, ends)
	for n, i := range p.at {
		if e := ends[i]; ended(e) {
			results[i].Gone = results[i].Status == cache.Refused
		} else {
			s.setStanding(&p.ops[n], leaves)
			results[i] = upstream.Result{Status: cache.Unknown, Left: -1, Err: fmt.Errorf("give back what one of two stores has granted: %w", reason(e))}
		}
	}
	return err
}

func reason(r upstream.Result) error {
	if r.Err != nil {
		return r.Err
	}
	return errors.New(r.Status.String())
}
