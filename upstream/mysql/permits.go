package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// permit is an op about a permit in progress.
type permit struct {
	request
	floor uint64 // a new base must be above it
	token string
	stage stage

	had   bool // stage release: the row existed before
	found bool // the row exists now
	row   permitRow
	sem   semRow
}

// stage orders the ops of one semaphore: ops that give permits back precede ops that take them.
type stage uint8

const (
	stageRenew stage = iota
	stageRelease
	stageRebase
	stageAcquire
	stagePeek
)

func stageOf(op *upstream.Op) stage {
	switch op.Kind {
	case cache.OpRelease, cache.OpWithdraw:
		return stageRelease
	case cache.OpRenew:
		if op.Rebase {
			return stageRebase
		}
		return stageRenew
	case cache.OpPeek:
		return stagePeek
	}
	return stageAcquire
}

// permitRow is the row of a permit or of a queue entry.
type permitRow struct {
	place int64 // 0 if it is held
	fence int64
	lasts bool // it has not ended
}

// semRow is the state of a semaphore after a packet.
type semRow struct {
	fence     int64
	queue     bool  // a token is queued
	contended bool  // another host's token is queued and no permit is available to it
	ends      int64 // stage peek: the end of its first permit, or 0 without one
}

// permits is the part of a batch with ops about permits.
type permits struct {
	carrier[*permit]
	x permitExchange
}

func (b *permits) ready(ctx context.Context, conn *sql.Conn) error {
	return b.store.permitsReady(ctx, conn)
}

func (b *permits) size(it *permit) int { return 10*len(it.name) + 1600 }

func (b *permits) writes() []*permit { return b.x.writes }

// addRows adds a query for the rows of the semaphores and of the items.
func (b *permits) addRows(t *text, items []*permit) {
	t.add("SELECT name,token FROM " + b.store.permitsText().table + " FORCE INDEX (PRIMARY) WHERE ")
	or := ""
	semaphores(items, func(same []*permit) {
		t.add(or + "name=").hex(same[0].name).add(" AND (token='~' OR token IN ")
		t.tokens(same)
		t.add(")")
		or = " OR "
	})
}

// tableError handles errors about the table of permits. Locks work without that table.
func (b *permits) tableError(err error) error {
	if !aboutTable(err) {
		return nil
	}
	return fmt.Errorf("%w at %s: %w", ErrRefused, b.store.cfg.Addr(), b.store.permitsAdvice(err))
}

func (b *permits) exchange(
	ctx context.Context, conn *sql.Conn, items []*permit, floor uint64,
) (proof bool, err error) {
	for _, it := range items {
		it.floor = max(it.floor, floor)
	}
	b.x.begin(items)
	if err := b.x.run(ctx, conn); err != nil {
		proof = nothingSent(err) || number(err) != 0 && !b.x.divided
		b.x.rollBack(conn, err)
		return proof, err
	}
	b.x.ask(ctx, conn)
	b.read()
	return false, nil
}

// applyPermits carries out the ops at the indices in which, in one round trip. They are in one
// transaction, except those that do not fit into its packet.
func (s *Store) applyPermits(
	ctx context.Context, ops []upstream.Op, results []upstream.Result, which []int,
) error {
	b := &permits{carrier: carrier[*permit]{store: s, results: results, stuck: &s.semsStuck},
		x: permitExchange{store: s}}
	b.exchanger = b
	items := make([]*permit, 0, len(which))
	for _, i := range which {
		op := &ops[i]
		stage := stageOf(op)
		items = append(items, &permit{request: request{at: i, op: op, name: s.cfg.Prefix + op.Key,
			reads: stage == stagePeek},
			floor: op.Floor, stage: stage, token: string(appendToken(nil, s.instance, op.Token))})
	}
	slices.SortFunc(items, func(a, c *permit) int {
		return cmp.Or(strings.Compare(a.name, c.name), cmp.Compare(a.stage, c.stage),
			cmp.Compare(a.at, c.at))
	})
	b.apply(ctx, items)
	s.watch.notePermits(items, results, s.cfg.WaiterLease)
	return b.err
}

// read gives results to the items. The row of a token proves the result, because only the token's
// Store writes or deletes the row.
func (b *permits) read() {
	for _, it := range b.todo {
		r := &b.results[it.at]
		based := b.readOne(it, r)
		switch {
		case r.Base > cache.MaxBase, based && r.Base <= it.op.Floor:
			b.end(&it.request, cache.Refused, fmt.Errorf("%w at %s: %w",
				ErrRefused, b.store.cfg.Addr(), errUsedUp))
		case r.Status == cache.Unknown: // repeat it
			it.dirty = true
		default:
			it.done = true
		}
	}
}

// readOne gives a result to an item. It reports whether the result has a new base.
func (b *permits) readOne(it *permit, r *upstream.Result) (based bool) {
	held := it.found && it.row.place == 0
	switch it.stage {
	case stagePeek:
		r.Status, r.Contended = cache.Done, false
		if it.sem.ends > 0 {
			r.Status, r.Mode = cache.Busy, cache.Permit
			r.Left = max(0, (it.sem.ends-b.x.now)*1000)
		}
	case stageRelease:
		r.Status, r.Contended = cache.Done, false
		if !it.had && it.op.Kind == cache.OpRelease {
			r.Status = cache.NotHeld
		}
	case stageRenew, stageRebase:
		r.Status, r.Contended = cache.NotHeld, it.sem.contended
		if !held || !it.row.lasts {
			return false
		}
		r.Status = cache.Done
		if it.stage == stageRebase {
			r.Base = uint64(it.row.fence)
			return true
		}
	default:
		r.Contended = it.sem.contended
		b.acquired(it, r, held)
		return r.Status == cache.Granted
	}
	return false
}

// acquired reads the row of a try or a join.
func (b *permits) acquired(it *permit, r *upstream.Result, held bool) {
	usedUp := it.sem.fence+upstream.MaxBatch > int64(cache.MaxBase)
	switch {
	case held:
		r.Status, r.Base = cache.Granted, uint64(it.row.fence)
	case usedUp:
		r.Base = cache.MaxBase + 1
	case it.found && it.op.Kind == cache.OpJoin:
		r.Status = cache.Queued
	case !it.found && it.op.Kind == cache.OpTry:
		r.Status = cache.Busy
	}
}
