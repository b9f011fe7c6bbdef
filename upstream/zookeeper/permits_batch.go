package zookeeper

import (
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
)

// semaphoreAcquires has all acquires of one semaphore in a batch. One reading serves all of them.
type semaphoreAcquires struct {
	key      string
	sem      *semaphore // set once this session makes a node
	acquires []*acquire
	reading
	err error
}

func (t *semaphoreAcquires) fresh() bool {
	return slices.ContainsFunc(t.acquires, func(l *acquire) bool { return l.fresh })
}

func (b *batch) planPermit(l *acquire) {
	i := slices.IndexFunc(b.semaphores, func(t *semaphoreAcquires) bool {
		return t.key == l.op.Key
	})
	if i < 0 {
		i = len(b.semaphores)
		b.semaphores = append(b.semaphores, &semaphoreAcquires{key: l.op.Key})
	}
	l.group = b.semaphores[i]
	l.group.acquires = append(l.group.acquires, l)
	if l.node != nil {
		l.group.sem = l.node.permit.sem
		b.joining(l.node, l.op.Limit)
	}
}

// answerFullSemaphores answers tries of semaphores that were full a moment ago, if they still
// are, without making nodes.
func (b *batch) answerFullSemaphores() {
	var candidates []*semaphoreAcquires
	for _, t := range b.semaphores {
		if t.fresh() && b.busy.has(b.store.permitsOf(t.key)) {
			candidates = append(candidates, t)
		}
	}
	queues, errs := each(candidates, func(t *semaphoreAcquires) ([]node, error) {
		return b.permits(b.ctx, b.store.permitsOf(t.key))
	})
	for i, t := range candidates {
		n := len(queues[i])
		for _, l := range slices.Clone(t.acquires) {
			switch {
			case !l.fresh || l.op.Kind != cache.OpTry:
			case errs[i] != nil:
				b.fail(l.i, errs[i], false)
				b.drop(l)
			case n >= int(l.op.Limit):
				b.end(l.i, cache.Busy, nil)
				b.drop(l)
			default:
				n++
			}
		}
	}
}

// makePermits adds the making of permits' nodes to the writes. The id of a transaction is the fence
// base of the nodes that it makes, so each transaction makes at most one node of a semaphore.
func (b *batch) makePermits() {
	b.semaphores = slices.DeleteFunc(b.semaphores, func(t *semaphoreAcquires) bool {
		return len(t.acquires) == 0
	})
	for _, t := range b.semaphores {
		round := 0
		for _, l := range t.acquires {
			if l.fresh {
				l.node = b.addPermit(l.op)
				t.sem = l.node.permit.sem
				b.write(round, &write{i: l.i, kind: making, node: l.node, acquire: l})
				round++
			}
		}
	}
}

// readSemaphore reads a semaphore for all its acquires. It also watches it, unless all of them
// repeat a join without having been told that they may be granted.
func (b *batch) readSemaphore(t *semaphoreAcquires) {
	b.session.mu.Lock()
	watch := t.fresh() || t.sem.held > 0 || t.sem.next
	for _, l := range t.acquires {
		watch = watch || l.node.permit.notices > 0
	}
	b.session.mu.Unlock()
	t.reading, t.err = b.readPermits(b.ctx, t.sem, watch)
}

// readSemaphoresAgain repeats the readings that came before all nodes existed.
func (b *batch) readSemaphoresAgain() {
	var again []*semaphoreAcquires
	for _, t := range b.semaphores {
		if t.err != nil && len(t.acquires) > 0 || slices.ContainsFunc(t.acquires, func(l *acquire) bool {
			_, there := t.mine[l.op.Token]
			return l.fresh && !there
		}) {
			again = append(again, t)
		}
	}
	together(len(again), func(i int) { b.readSemaphore(again[i]) })
}

// decideSemaphore answers the acquires of a semaphore.
func (b *batch) decideSemaphore(t *semaphoreAcquires) {
	open := slices.Clone(t.acquires)
	unseen := false // the last reading has not been applied
	for range attempts {
		if t.err != nil {
			for _, l := range open {
				b.failAcquire(l, t.err)
			}
			return
		}
		open = slices.DeleteFunc(open, func(l *acquire) bool { return b.decidePermit(t, l) })
		var err error
		if unseen, err = b.processReading(b.ctx, t.sem, &t.reading); err != nil || !unseen {
			break // the waiters are in the queue; a later check finds the nodes before them
		}
	}
	b.session.mu.Lock()
	defer b.session.mu.Unlock()
	if unseen || t.sem.dirty && len(open) > 0 {
		b.markSemaphoreLocked(t.sem, unseen)
	}
}

// decidePermit answers one acquire. It returns false for one that waits.
func (b *batch) decidePermit(t *semaphoreAcquires, l *acquire) bool {
	at, there := t.mine[l.op.Token]
	b.session.mu.Lock()
	held := l.node.held
	b.session.mu.Unlock()
	switch {
	case !there:
		b.vanished(l)
	case b.noFence(l):
		b.setPermitQueued(l.node, false)
		b.outOfRange(l)
	case held || at < int(l.op.Limit):
		b.grantPermit(t, l, at)
	case l.op.Kind == cache.OpJoin:
		b.setPermitQueued(l.node, true)
		b.queued(l, t.contended)
		return false
	default:
		b.setPermitQueued(l.node, false)
		b.busyNow(l)
	}
	return true
}

// grantPermit grants a permit, if the session's deadline has not passed.
func (b *batch) grantPermit(t *semaphoreAcquires, l *acquire, at int) {
	until, live := b.deadline()
	if !live {
		b.failAcquire(l, errNotConfirmed)
		return
	}
	b.enterPermit(l.node, t.behind(at))
	b.granted(l, t.contended, until)
}

// checkSemaphores checks the semaphores of permits that are to be renewed, if they have changed. It
// returns the error of each check.
func (b *batch) checkSemaphores() map[*semaphore]error {
	of := map[*semaphore]error{}
	b.session.mu.Lock()
	for _, i := range b.renewals {
		if b.ops[i].Mode != cache.Permit {
			continue
		}
		if g := b.lockNodes[idOf(&b.ops[i])]; g != nil && (g.permit.sem.dirty || !g.permit.sem.armed) {
			of[g.permit.sem] = nil
		}
	}
	b.session.mu.Unlock()
	sems := slices.Collect(maps.Keys(of))
	_, errs := each(sems, func(sem *semaphore) (any, error) {
		return nil, b.checkSemaphore(b.ctx, sem)
	})
	for i, sem := range sems {
		of[sem] = errs[i]
	}
	return of
}
