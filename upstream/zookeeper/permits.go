package zookeeper

import (
	"fmt"
	"maps"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// turn is all acquires of one semaphore in a batch: one reading does for them.
type turn struct {
	key   string
	sem   *semaphore // once a node of ours is to be there
	looks []*look
	reading
	err error
}

func (t *turn) drop(l *look) {
	t.looks = slices.DeleteFunc(t.looks, func(x *look) bool { return x == l })
}

func (t *turn) fresh() bool {
	return slices.ContainsFunc(t.looks, func(l *look) bool { return l.fresh })
}

func (b *batch) planPermit(l *look) {
	i := slices.IndexFunc(b.turns, func(t *turn) bool { return t.key == l.op.Key })
	if i < 0 {
		i = len(b.turns)
		b.turns = append(b.turns, &turn{key: l.op.Key})
	}
	l.turn = b.turns[i]
	l.turn.looks = append(l.turn.looks, l)
	if l.node != nil {
		l.turn.sem = l.node.permit.sem
		b.joining(l.node, l.op.Limit)
	}
}

// avoidPermits finds tries busy without making nodes, where the semaphore was full a
// moment ago.
func (b *batch) avoidPermits() {
	if len(b.turns) > 0 {
		b.avoidFull()
	}
}

func (b *batch) avoidFull() {
	var risky []*turn
	b.session.mu.Lock()
	for _, t := range b.turns {
		if t.fresh() && recall(b.sems.full, b.store.permitsOf(t.key), busyFor) {
			risky = append(risky, t)
		}
	}
	b.session.mu.Unlock()
	errs := make([]error, len(risky))
	together(len(risky), func(i int) {
		risky[i].queue, errs[i] = b.permits(b.ctx, b.store.permitsOf(risky[i].key), false)
	})
	for i, t := range risky {
		n := len(t.queue)
		for _, l := range slices.Clone(t.looks) {
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

// makePermits adds the making of permits' nodes to the writes. The id of a
// transaction is the fence base of what it makes, so there is one node of a semaphore
// in each: further are those that cannot go with the first.
func (b *batch) makePermits() (first []write, further [][]*write) {
	if len(b.turns) == 0 {
		return b.writes, nil
	}
	b.turns = slices.DeleteFunc(b.turns, func(t *turn) bool { return len(t.looks) == 0 })
	var rounds [][]*look
	for _, t := range b.turns {
		n := 0
		for _, l := range t.looks {
			if !l.fresh {
				continue
			}
			if n == len(rounds) {
				rounds = append(rounds, nil)
			}
			l.node = b.addPermit(l.op)
			t.sem = l.node.permit.sem
			rounds[n] = append(rounds[n], l)
			n++
		}
	}
	locks := len(b.writes)
	for _, looks := range rounds {
		for _, l := range looks {
			b.writes = append(b.writes, write{i: l.i, kind: making, node: l.node, look: l})
		}
	}
	if len(rounds) == 0 {
		return b.writes, nil
	}
	at := locks + len(rounds[0])
	first = b.writes[:at]
	for _, looks := range rounds[1:] {
		further = append(further, refs(b.writes[at:at+len(looks)]))
		at += len(looks)
	}
	return first, further
}

// readTurn reads a semaphore for all who want in. It is watched from then on, unless
// they do nothing but ask for their places.
func (b *batch) readTurn(t *turn) {
	b.session.mu.Lock()
	watch := t.fresh() || t.sem.held > 0 || t.sem.next
	for _, l := range t.looks {
		watch = watch || l.node.permit.told > 0
	}
	b.session.mu.Unlock()
	t.reading, t.err = b.readPermits(b.ctx, t.sem, watch)
}

// readTurnsAgain reads what was read before all nodes were there.
func (b *batch) readTurnsAgain() {
	if len(b.turns) == 0 {
		return
	}
	var again []*turn
	for _, t := range b.turns {
		if t.err != nil && len(t.looks) > 0 || slices.ContainsFunc(t.looks, func(l *look) bool {
			_, there := t.at(l.op.Token)
			return l.fresh && !there
		}) {
			again = append(again, t)
		}
	}
	together(len(again), func(i int) { b.readTurn(again[i]) })
}

// decideTurn says of each acquire of a semaphore whether it is granted.
func (b *batch) decideTurn(t *turn) {
	open := slices.Clone(t.looks)
	unseen := false // the last reading has not been taken in
	for range attempts {
		if t.err != nil {
			for _, l := range open {
				b.bad(l, t.err)
			}
			return
		}
		open = slices.DeleteFunc(open, func(l *look) bool { return b.decidePermit(t, l) })
		var err error
		if unseen, err = b.arrange(b.ctx, t.sem, &t.reading); err != nil || !unseen {
			break // who waits stands in the queue: what we wait for is found out later
		}
	}
	b.session.mu.Lock()
	defer b.session.mu.Unlock()
	if unseen || t.sem.dirty && len(open) > 0 {
		b.soilPermitsLocked(t.sem, unseen)
	}
}

// decidePermit is false for one that waits.
func (b *batch) decidePermit(t *turn, l *look) bool {
	at, there := t.at(l.op.Token)
	b.session.mu.Lock()
	held := l.node.held
	b.session.mu.Unlock()
	switch {
	case !there:
		b.vanished(l)
	case b.noFence(l):
		b.settlePermit(l.node, false)
		b.outOfRange(l)
	case held || at < int(l.op.Limit):
		b.grantPermit(t, l, at)
	case l.op.Kind == cache.OpJoin:
		b.settlePermit(l.node, true)
		b.session.mu.Lock()
		until := b.until
		b.session.mu.Unlock()
		b.set(l.i, upstream.Result{Status: cache.Queued, Contended: t.wanted, Session: until, SessionNo: b.no})
		return false
	default:
		b.settlePermit(l.node, false)
		b.session.mu.Lock()
		remember(b.sems.full, l.node.parent)
		b.session.mu.Unlock()
		b.set(l.i, upstream.Result{Status: cache.Busy})
	}
	return true
}

// grantPermit grants, if the session still stands.
func (b *batch) grantPermit(t *turn, l *look, at int) {
	g := l.node
	until, live := b.stand()
	switch {
	case !live:
		b.bad(l, fmt.Errorf("%w: the session was not confirmed in time", ErrNoAnswer))
	default:
		b.enterPermit(g, t.behind(at))
		b.session.mu.Lock()
		delete(b.sems.full, g.parent)
		b.session.mu.Unlock()
		b.set(l.i, upstream.Result{Status: cache.Granted, Base: g.base, Contended: t.wanted, Session: until, SessionNo: b.no})
	}
}

// lookForKeeps looks at the semaphores of permits that are to be renewed, where they
// have changed. It returns what went wrong, if anything.
func (b *batch) lookForKeeps() map[*semaphore]error {
	var of map[*semaphore]error
	b.session.mu.Lock()
	for _, i := range b.keeps {
		if b.ops[i].Mode != cache.Permit {
			continue
		}
		if g := b.lockNodes[idOf(&b.ops[i])]; g != nil && (g.permit.sem.dirty || !g.permit.sem.armed) {
			if of == nil {
				of = map[*semaphore]error{}
			}
			of[g.permit.sem] = nil
		}
	}
	b.session.mu.Unlock()
	if len(of) == 0 {
		return nil
	}
	b.lookAtAll(of)
	return of
}

func (b *batch) lookAtAll(of map[*semaphore]error) {
	sems := slices.Collect(maps.Keys(of))
	errs := make([]error, len(sems))
	together(len(sems), func(i int) { errs[i] = b.lookAtPermits(b.ctx, sems[i]) })
	for i, sem := range sems {
		of[sem] = errs[i]
	}
}
