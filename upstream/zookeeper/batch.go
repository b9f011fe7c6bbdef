package zookeeper

import (
	"context"
	"fmt"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// batch is one Apply on its way.
type batch struct {
	*session
	ctx     context.Context
	ops     []upstream.Op
	results []upstream.Result
	err     error // the first thing that went wrong, for logs

	writes []write
	looks  []*look // acquires of locks
	turns  []*turn // those of permits
	peeks  []int
	keeps  []int // renewals and downgrades whose leases stand
	leaves []*look
}

// write is something to be changed.
type write struct {
	i    int // index of the op
	kind writeKind
	node *lockNode
	look *look  // of a making
	err  error  // how it ended
	zxid int64  // of the transaction
	name string // of the node that was made
}

type writeKind uint8

const (
	making writeKind = iota
	deleting
	sharing // a downgrade
)

// look is an acquire: a node of ours, and those before it.
type look struct {
	i     int
	op    *upstream.Op
	node  *lockNode
	fresh bool // the node is being made by this batch
	queue []node
	err   error
	turn  *turn // of a permit
}

// Apply carries out one batch. All that changes something goes in one transaction,
// and right behind it go the readings that show who is before us: one round trip.
// One more takes what has to be watched or taken back. Where the transaction
// fails for one op, each goes in a transaction of its own.
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
	b.settle()
	b.plan()
	b.avoid()
	b.avoidPermits()
	b.change()
	b.decide()
	b.giveUp()
	b.keep()
	b.peek()
	return b.err
}

// end gives op i its end. The first error is kept for logs.
func (b *batch) end(i int, st cache.Status, err error) {
	b.results[i] = upstream.Result{Status: st, Left: -1, Err: err}
	if b.err == nil && err != nil {
		b.err = err
	}
}

// fail gives op i the end that err makes of it. wrote says that a request that
// could have changed something is the one that failed.
func (b *batch) fail(i int, err error, wrote bool) {
	st := cache.Refused
	if v := judge(err); wrote && v == unknown {
		st = cache.Unknown
	}
	b.end(i, st, b.store.cfg.explain(err))
}

// together calls f for 0 to n-1 at once: the library's calls wait for their answers,
// so this is what a pipeline is.
func together(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}

// plan sorts the ops, and answers those that need nothing.
func (b *batch) plan() {
	for i := range b.ops {
		op := &b.ops[i]
		if err := valid(op); err != nil {
			b.end(i, cache.Refused, err)
			continue
		}
		g := b.lockNode(idOf(op))
		switch op.Kind {
		case cache.OpTry, cache.OpJoin:
			b.planAcquire(i, op, g)
		case cache.OpPeek:
			b.peeks = append(b.peeks, i)
		case cache.OpRelease, cache.OpWithdraw:
			switch {
			case g != nil && g.name == "":
				b.end(i, cache.Unknown, b.store.cfg.explain(fmt.Errorf("%w: it is not known what became of it", ErrNoAnswer)))
			case g != nil:
				b.session.leave(g, true)
				b.writes = append(b.writes, write{i: i, kind: deleting, node: g})
			case op.Kind == cache.OpRelease:
				b.end(i, cache.NotHeld, nil)
			default:
				b.end(i, cache.Done, nil)
			}
		case cache.OpRenew, cache.OpDowngrade:
			switch {
			case g == nil || !b.holds(g):
				b.end(i, cache.NotHeld, nil)
			case op.Kind == cache.OpDowngrade:
				b.writes = append(b.writes, write{i: i, kind: sharing, node: g})
			default:
				b.keeps = append(b.keeps, i)
			}
		}
	}
}

func (se *session) holds(g *lockNode) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	return g.held && !g.gone
}

func (b *batch) planAcquire(i int, op *upstream.Op, g *lockNode) {
	l := &look{i: i, op: op, node: g}
	switch {
	case g == nil:
		l.fresh = true
	case g.name == "":
		b.end(i, cache.Unknown, b.store.cfg.explain(fmt.Errorf("%w: it is not known what became of it", ErrNoAnswer)))
		return
	}
	if op.Mode == cache.Permit {
		b.planPermit(l)
		return
	}
	b.looks = append(b.looks, l)
}

// avoid finds tries busy without making a node, where the lock was held a moment
// ago: a node costs the quorum two writes and the holder a reading.
func (b *batch) avoid() {
	var risky []*look
	for _, l := range b.looks {
		if l.fresh && l.op.Kind == cache.OpTry && b.lately(l.op.Key) {
			risky = append(risky, l)
		}
	}
	together(len(risky), func(i int) {
		l := risky[i]
		l.queue, l.err = b.queue(b.ctx, b.store.parentOf(l.op.Key), false)
	})
	for _, l := range risky {
		if l.err != nil {
			b.fail(l.i, l.err, false)
			b.drop(l)
		} else if before, unsure := blocker(l.queue, len(l.queue), l.op.Mode); before >= 0 && !unsure {
			b.end(l.i, cache.Busy, nil)
			b.drop(l)
		}
	}
}

// drop takes a look out of the batch.
func (b *batch) drop(l *look) {
	if l.turn != nil {
		l.turn.drop(l)
		return
	}
	for i := range b.looks {
		if b.looks[i] == l {
			b.looks = append(b.looks[:i], b.looks[i+1:]...)
			return
		}
	}
}

// change carries out all that changes something, and reads the queues of all
// acquires behind it.
func (b *batch) change() {
	for _, l := range b.looks {
		if l.fresh {
			l.node = b.add(idOf(l.op), b.store.parentOf(l.op.Key), l.op.Mode, l.op.Kind == cache.OpTry || l.op.ShortLived)
			b.writes = append(b.writes, write{i: l.i, kind: making, node: l.node, look: l})
		}
	}
	first, further := b.makePermits()
	if len(b.writes) == 0 {
		b.readAll()
		return
	}
	b.makeParents(first)
	b.session.mu.Lock()
	out := b.wire
	b.session.mu.Unlock()
	count, next := out.written()
	// The readings come behind the transactions as soon as these have gone out. Where
	// they were another's, or a new connection's, they are made again.
	over, reading := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reading)
		if len(b.looks)+len(b.turns) > 0 {
			out.await(count, next, 1+len(further), over)
		}
		b.readAll()
	}()
	b.transact(first, further)
	close(over)
	<-reading
	for i := range b.writes {
		b.wrote(&b.writes[i])
	}
	b.readAgain()
}

func (b *batch) readAll() {
	locks := len(b.looks)
	if locks+len(b.turns) == 0 {
		return
	}
	together(locks+len(b.turns), func(i int) {
		if i < locks {
			b.read(b.looks[i])
		} else {
			b.readTurn(b.turns[i-locks])
		}
	})
}

func (b *batch) read(l *look) {
	l.queue, l.err = b.queue(b.ctx, l.node.parent, l.fresh)
}

// readAgain reads what was read before the node was there.
func (b *batch) readAgain() {
	var again []*look
	for _, l := range b.looks {
		if l.fresh && (l.err != nil || place(l.queue, b.id, l.op.Token) < 0) {
			again = append(again, l)
		}
	}
	together(len(again), func(i int) { b.read(again[i]) })
	b.readTurnsAgain()
}
