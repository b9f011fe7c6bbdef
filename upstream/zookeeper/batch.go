package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// batch is one call of Apply.
type batch struct {
	*session
	ctx     context.Context
	ops     []upstream.Op
	results []upstream.Result

	rounds     [][]*write           // the writes, one transaction for each element
	acquires   []*acquire           // acquires of locks
	semaphores []*semaphoreAcquires // acquires of permits, by semaphore
	peeks      []int
	renewals   []int      // renewals, and downgrades that have been written
	rejected   []*acquire // tries that found the lock held
}

// write is one change of a node.
type write struct {
	i       int // index of the op
	kind    writeKind
	node    *lockNode
	acquire *acquire // the acquire that a making is for
	err     error    // its outcome
	zxid    int64    // of the transaction
	name    string   // of the node that was made
}

type writeKind uint8

const (
	making writeKind = iota
	deleting
	sharing // a downgrade
)

// acquire is a try or join: a node of ours, and the nodes before it.
type acquire struct {
	i     int
	op    *upstream.Op
	node  *lockNode
	fresh bool // this batch makes the node
	queue []node
	err   error
	group *semaphoreAcquires // for a permit
}

// Apply carries out one batch in one round trip if possible. All changes go in one transaction. The
// queues of the acquired locks are read directly behind it on the same connection. One more round
// trip sets watches or deletes the nodes of failed tries. If the transaction fails because of one
// op, each op gets its own transaction.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	for i := range results {
		results[i] = upstream.Result{Left: -1}
	}
	se, err := s.session()
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrNothingSent, ctx.Err())
	}
	b := &batch{session: se, ctx: ctx, ops: ops, results: results}
	if err != nil {
		for i := range ops {
			b.end(i, cache.Refused, err)
		}
		return err
	}
	b.resolve()
	b.plan()
	b.answerBusyTries()
	b.answerFullSemaphores()
	b.change()
	b.decide()
	b.deleteRejected()
	b.renew()
	b.peek()
	for i := range results {
		if results[i].Err != nil {
			return results[i].Err
		}
	}
	return nil
}

// answer gives op i its result. It touches nothing else, so different goroutines may call it for
// different ops.
func (b *batch) answer(i int, r upstream.Result) {
	r.Left = -1
	b.results[i] = r
}

// end gives op i a result with the given status.
func (b *batch) end(i int, st cache.Status, err error) {
	b.answer(i, upstream.Result{Status: st, Err: err})
}

// endAbsent answers a release or withdrawal whose node does not exist.
func (b *batch) endAbsent(i int) {
	if b.ops[i].Kind == cache.OpRelease {
		b.end(i, cache.NotHeld, nil)
	} else {
		b.end(i, cache.Done, nil)
	}
}

// write adds w to a transaction.
func (b *batch) write(round int, w *write) {
	if round == len(b.rounds) {
		b.rounds = append(b.rounds, nil)
	}
	b.rounds[round] = append(b.rounds[round], w)
}

// fail answers op i with an error. wrote means that the request that failed could have changed
// something.
func (b *batch) fail(i int, err error, wrote bool) {
	st := cache.Refused
	if v := outcome(err); wrote && v == driverkit.Unknown {
		st = cache.Unknown
	}
	b.end(i, st, b.store.cfg.explain(err))
}

// plan sorts the ops by the requests that they need, and answers the ops that need none.
func (b *batch) plan() {
	for i := range b.ops {
		op := &b.ops[i]
		if err := valid(op); err != nil {
			b.end(i, cache.Refused, err)
			continue
		}
		g := b.lockNode(idOf(op))
		switch op.Kind {
		case cache.OpPeek:
			b.peeks = append(b.peeks, i)
		case cache.OpRenew, cache.OpDowngrade:
			switch {
			case g == nil || !b.holds(g):
				b.end(i, cache.NotHeld, nil)
			case op.Kind == cache.OpDowngrade:
				b.write(0, &write{i: i, kind: sharing, node: g})
			default:
				b.renewals = append(b.renewals, i)
			}
		default:
			switch acquires := op.Kind == cache.OpTry || op.Kind == cache.OpJoin; {
			case g != nil && g.name == "":
				b.end(i, cache.Unknown, b.store.cfg.explain(errUnresolved))
			case acquires && op.Mode == cache.Permit:
				b.planPermit(&acquire{i: i, op: op, node: g, fresh: g == nil})
			case acquires:
				b.acquires = append(b.acquires, &acquire{i: i, op: op, node: g, fresh: g == nil})
			case g == nil:
				b.endAbsent(i)
			default:
				b.session.leave(g, true)
				b.write(0, &write{i: i, kind: deleting, node: g})
			}
		}
	}
}

func (se *session) holds(g *lockNode) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	return g.held && !g.gone
}

// answerBusyTries answers tries of locks that were held a moment ago and still are, without making
// nodes. A node costs the quorum two writes and the holder a read.
func (b *batch) answerBusyTries() {
	var candidates []*acquire
	for _, l := range b.acquires {
		if l.fresh && l.op.Kind == cache.OpTry && b.busy.has(b.store.parentOf(l.op.Key)) {
			candidates = append(candidates, l)
		}
	}
	together(len(candidates), func(i int) {
		l := candidates[i]
		l.queue, l.err = b.queue(b.ctx, b.store.parentOf(l.op.Key), false)
	})
	for _, l := range candidates {
		if l.err != nil {
			b.fail(l.i, l.err, false)
			b.drop(l)
		} else if before, unsure := blocker(l.queue, len(l.queue), l.op.Mode); before >= 0 && !unsure {
			b.end(l.i, cache.Busy, nil)
			b.drop(l)
		}
	}
}

// drop takes an acquire out of the batch.
func (b *batch) drop(l *acquire) {
	from := &b.acquires
	if l.group != nil {
		from = &l.group.acquires
	}
	*from = slices.DeleteFunc(*from, func(x *acquire) bool { return x == l })
}

// change carries out all writes, and reads the queues of all acquires behind them.
func (b *batch) change() {
	for _, l := range b.acquires {
		if l.fresh {
			l.node = b.add(l.op)
			b.write(0, &write{i: l.i, kind: making, node: l.node, acquire: l})
		}
	}
	b.makePermits()
	if len(b.rounds) == 0 {
		b.readAll()
		return
	}
	b.makeParents(b.rounds[0])
	b.session.mu.Lock()
	out := b.wire
	b.session.mu.Unlock()
	count, next := out.written()
	// The readings are sent as soon as the transactions have been written to the connection. They are
	// repeated if those transactions belonged to another batch, or were sent on a later connection.
	over, reading := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reading)
		if len(b.acquires)+len(b.semaphores) > 0 {
			out.await(count, next, len(b.rounds), over)
		}
		b.readAll()
	}()
	together(len(b.rounds), func(i int) { b.transaction(b.rounds[i]) })
	close(over)
	<-reading
	for _, w := range slices.Concat(b.rounds...) {
		b.written(w)
	}
	b.readAgain()
}

func (b *batch) readAll() {
	locks := len(b.acquires)
	if locks+len(b.semaphores) == 0 {
		return
	}
	together(locks+len(b.semaphores), func(i int) {
		if i < locks {
			b.read(b.acquires[i])
		} else {
			b.readSemaphore(b.semaphores[i-locks])
		}
	})
}

func (b *batch) read(l *acquire) {
	l.queue, l.err = b.queue(b.ctx, l.node.parent, l.fresh)
}

// readAgain repeats the readings that came before the node existed.
func (b *batch) readAgain() {
	var again []*acquire
	for _, l := range b.acquires {
		if l.fresh && (l.err != nil || place(l.queue, b.id, l.op.Token) < 0) {
			again = append(again, l)
		}
	}
	together(len(again), func(i int) { b.read(again[i]) })
	b.readSemaphoresAgain()
}

// valid returns an error if op cannot be carried out at all.
func valid(op *upstream.Op) error {
	err := driverkit.CheckOp(op)
	switch {
	case err != nil:
	case op.Token > maxToken:
		err = fmt.Errorf("token %d is out of range", op.Token)
	case op.Key == "":
		err = errors.New("the key is empty")
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}
