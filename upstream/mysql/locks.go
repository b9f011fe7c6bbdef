package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// batch is one Apply. The store reuses it.
type batch struct {
	carrier[*item]
	all     []item
	items   []*item // they point into all, in the order of their names
	permits []int   // the ops that are about permits
	buf     []byte
	x       exchange
}

func newBatch(s *Store) *batch {
	b := &batch{carrier: carrier[*item]{store: s, stuck: &s.stuck},
		x: exchange{store: s, items: map[string]*item{}}}
	b.exchanger = b
	return b
}

// ready does nothing, because the check of the connection was enough.
func (b *batch) ready(context.Context, *sql.Conn) error { return nil }

func (b *batch) size(it *item) int {
	n := 4*len(it.name) + 300
	if it.kind == reqSwap { // it has the whole row, in hexadecimal
		n += 2 * (readerLen*len(it.decision.next.readers) + placeLen*len(it.decision.next.queue))
	}
	return n
}

func (b *batch) writes() []*item { return b.x.writes }

func (b *batch) tableError(error) error { return nil } // without its table, the whole store is down

func (b *batch) addRows(t *text, items []*item) {
	t.add("SELECT name,'' FROM `" + b.store.cfg.Table + "` FORCE INDEX (PRIMARY) WHERE name IN ")
	t.names(items)
}

func (b *batch) exchange(
	ctx context.Context, conn *sql.Conn, items []*item, floor uint64,
) (proof bool, err error) {
	for _, it := range items {
		it.ask.floor = max(it.ask.floor, int64(floor))
	}
	b.x.begin(items)
	if err := b.x.run(ctx, conn); err != nil {
		return b.x.proof, err
	}
	b.read()
	return false, nil
}

// read gives results to the items that are finished. It turns the other items into reqSwap, or
// makes the next turn read them again.
func (b *batch) read() {
	for _, it := range b.todo {
		r := &b.results[it.at]
		switch {
		case it.err != nil:
			b.end(&it.request, cache.Unknown, fmt.Errorf("%w at %s: the row of lock %q in table "+
				"%s: %w", ErrNoAnswer, b.store.cfg.Addr(), it.op.Key, b.store.cfg.Table, it.err))
		case it.kind == reqPeek:
			b.peeked(it, r)
		case it.kind == reqFree:
			it.done = true
			r.Status = cache.Done
			if !it.had && it.op.Kind == cache.OpRelease {
				r.Status = cache.NotHeld
			}
		case it.op.Kind == cache.OpRenew, it.op.Kind == cache.OpDowngrade:
			b.extended(it, r)
		default:
			b.acquired(it, r)
		}
	}
}

func (b *batch) peeked(it *item, r *upstream.Result) {
	it.done = true
	r.Status = cache.Done
	if mode, left := it.row.held(b.x.now); it.found && left > 0 {
		r.Status, r.Mode, r.Left = cache.Busy, mode, left
	}
}

// extended reads the row of a renewal or a downgrade. The row names the request as its last one if
// it was applied. If another request came between the write and the reading, this one is repeated.
func (b *batch) extended(it *item, r *upstream.Result) {
	live := it.row.live(b.x.now)
	switch {
	case it.current && !it.had, !it.current && (!it.found || !live.holds(it.ask.token)):
		it.done = true
		r.Status = cache.NotHeld
	case it.row.last == it.last:
		it.done = true
		r.Status, r.Contended = cache.Done, it.row.contended(it.ask.token, b.x.now)
		if it.kind == reqRebase {
			r.Base = uint64(it.row.fence)
		}
	default:
		it.dirty = true
	}
}

// acquired reads the row of a try or a join.
func (b *batch) acquired(it *item, r *upstream.Result) {
	it.dirty = it.found && (it.partial || it.row.has(it.ask.token))
	mine := it.found && it.row.last == it.last
	switch {
	case !it.found: // the row was purged meanwhile
		it.kind, it.last = kindOf(it.op), string(kindOf(it.op))+it.last[1:]
	case mine && it.kind == reqSwap:
		b.decided(it, r)
	case mine:
		it.done = true
		r.Status, r.Base = cache.Granted, uint64(it.row.fence)
		r.Contended = it.row.contended(it.ask.token, b.x.now)
	case it.partial: // the next turn reads the whole row, to decide by it
	default:
		it.decision = it.row.decide(&it.ask, b.x.now)
		if it.decision.change {
			it.kind, it.last = reqSwap, string(reqSwap)+it.last[1:]
		} else {
			b.decided(it, r)
		}
	}
}

// decided gives an item the result of its decision, which holds now.
func (b *batch) decided(it *item, r *upstream.Result) {
	v := &it.decision
	if v.status == cache.Refused {
		b.end(&it.request, cache.Refused, fmt.Errorf("%w at %s: %w",
			ErrRefused, b.store.cfg.Addr(), v.err))
		return
	}
	it.done = true
	r.Status, r.Contended = v.status, v.contended
	if v.status == cache.Granted {
		r.Base = uint64(it.row.fence)
	} else {
		r.Left = v.left
	}
}
