package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// packetSize bounds the text of one packet's statements, but for its last op's.
const packetSize = 256 << 10

// batch is one Apply on its way. It is reused.
type batch struct {
	store   *Store
	ops     []upstream.Op
	results []upstream.Result
	err     error // the first thing that went wrong, for logs; one that is ErrDown goes before others
	all     []item
	items   []*item
	todo    []*item
	permits []int // the ops that are about permits
	buf     []byte
	x       exchange
}

func newBatch(s *Store) *batch {
	return &batch{store: s, x: exchange{store: s, items: map[string]*item{}}}
}

// Apply carries out one batch: mostly in one round trip, and in two a turn for
// those ops that meet others. See doc.go.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	b := s.batches.Get().(*batch)
	defer s.batches.Put(b)
	b.begin(ops, results)
	defer b.sawBases()
	if len(b.permits) == 0 {
		return b.locks(ctx)
	}
	if len(b.items) == 0 {
		return worse(b.err, s.applyPermits(ctx, ops, results, b.permits))
	}
	var wg sync.WaitGroup
	var err error
	wg.Go(func() { err = s.applyPermits(ctx, ops, results, b.permits) }) // not behind the locks, nor they behind it
	lerr := b.locks(ctx)
	wg.Wait()
	return worse(lerr, err)
}

// sawBases records the fence bases that the server has given.
func (b *batch) sawBases() {
	last := uint64(0)
	for i := range b.results {
		last = max(last, b.results[i].Base)
	}
	if last > 0 {
		b.store.fences.SawBase(last)
	}
}

// locks carries out the ops that are about locks.
func (b *batch) locks(ctx context.Context) error {
	s := b.store
	if len(b.items) == 0 {
		return b.err
	}
	conn, err := s.conn(ctx)
	if err != nil {
		b.refuseAll(b.items, s.reason(ErrNothingSent, err))
		return b.err
	}
	defer func() { _ = conn.Close() }()
	for rest := b.items; len(rest) > 0; {
		n := packetful(rest)
		if conn, err = b.carry(ctx, conn, rest[:n]); err != nil {
			b.refuseAll(rest[n:], err)
			break
		}
		rest = rest[n:]
	}
	s.note(b.items, b.results)
	return b.err
}

// begin makes the items, in the order in which their rows are locked.
func (b *batch) begin(ops []upstream.Op, results []upstream.Result) {
	b.ops, b.results, b.err = ops, results, nil
	if cap(b.all) < len(ops) {
		b.all = make([]item, 0, max(len(ops), 16))
	}
	clear(b.all[:cap(b.all)])
	b.all, b.items, b.permits = b.all[:0], b.items[:0], b.permits[:0]
	for i := range ops {
		results[i] = upstream.Result{Left: -1}
		if err := b.store.valid(&ops[i]); err != nil {
			b.end(&item{at: i, op: &ops[i]}, cache.Refused, err)
			continue
		}
		if ops[i].Mode == cache.Permit {
			b.permits = append(b.permits, i)
			continue
		}
		b.all = append(b.all, b.item(i, &ops[i]))
		b.items = append(b.items, &b.all[len(b.all)-1])
	}
	slices.SortFunc(b.items, func(a, c *item) int { return strings.Compare(a.name, c.name) })
}

func (b *batch) item(i int, op *upstream.Op) item {
	s := b.store
	it := item{at: i, op: op, name: s.cfg.Prefix + op.Key, kind: kindOf(op), clean: true}
	b.buf = append(b.buf[:0], it.kind)
	b.buf = appendToken(b.buf, s.instance, op.Token)
	b.buf = append(b.buf, '.')
	b.buf = appendPadded(b.buf, s.requests.Add(1), 36, numberLen)
	it.last = string(b.buf)
	it.ask = ask{token: it.last[1 : 1+tokenLen], mode: op.Mode, join: op.Kind == cache.OpJoin, ttl: micros(op.TTL),
		lease: micros(s.cfg.WaiterLease), floor: int64(op.Floor), apart: int64(i)}
	return it
}

// micros rounds up: the store must not end a lease before we do.
func micros(d time.Duration) int64 {
	return max(0, int64((d+time.Microsecond-1)/time.Microsecond))
}

// packetful says how many of items go into one packet.
func packetful(items []*item) int {
	size := 0
	for n, it := range items {
		if size > packetSize {
			return n
		}
		size += 4*len(it.name) + 300
	}
	return len(items)
}

// carry brings items to their ends. It fails when nothing more can be asked of
// the connection, which it may have replaced; the items have their results then
// too.
func (b *batch) carry(ctx context.Context, conn *sql.Conn, items []*item) (*sql.Conn, error) {
	fresh := false
	for turn := 0; ; turn++ {
		b.todo = b.todo[:0]
		for _, it := range items {
			if !it.over {
				b.todo = append(b.todo, it)
			}
		}
		if len(b.todo) == 0 {
			return conn, nil
		}
		if err := pause(ctx, turn); err != nil {
			return conn, b.fail(conn, err, true)
		}
		if b.unstick(ctx, conn) {
			continue
		}
		// The floor is read with a connection at hand: a failover on the way to it raises the floor.
		floor := int64(b.store.fences.Floor())
		for _, it := range b.todo {
			it.ask.floor = max(it.ask.floor, floor)
		}
		b.x.begin(b.todo)
		err := b.x.run(ctx, conn)
		switch {
		case err == nil:
			b.read()
		case unsent(err) && !fresh:
			fresh = true
			if conn, err = b.another(ctx, conn); err != nil {
				return conn, b.fail(conn, err, true)
			}
		case b.x.proof && slices.Contains(repeatable, number(err)):
		case b.x.proof && number(err) == erLockWait:
			b.stick(ctx, conn, err)
		default:
			return conn, b.fail(conn, err, b.x.proof)
		}
	}
}

// another puts a connection in the place of one that was closed before anything
// was sent on it.
func (b *batch) another(ctx context.Context, conn *sql.Conn) (*sql.Conn, error) {
	_ = conn.Close()
	next, err := b.store.conn(ctx)
	if err != nil {
		return conn, err
	}
	return next, nil
}

// pause comes before the turns that have to be repeated, the longer the more of
// them there have been.
func pause(ctx context.Context, turn int) error {
	switch {
	case ctx.Err() != nil && turn == 0:
		return ctx.Err()
	case ctx.Err() != nil:
		return errTurns
	case turn < 3:
		return nil
	}
	most := min(time.Duration(turn)*time.Millisecond, 20*time.Millisecond)
	t := time.NewTimer(most/4 + rand.N(most))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return errTurns
	}
}

// fail ends all that is not over with err, which may be proof that this turn has
// done nothing.
func (b *batch) fail(conn *sql.Conn, err error, proof bool) error {
	if isReadOnly(err) || number(err) != 0 && isDown(err) {
		dismiss(conn) // the next one is checked again, and may lead to another server
	}
	refused, unknown := b.store.reason(ErrRefused, err), b.store.reason(ErrNoAnswer, err)
	if number(err) == 0 {
		refused = b.store.reason(ErrNothingSent, err)
	}
	for _, it := range b.todo {
		switch {
		case it.over:
		case it.kind == reqLook, proof && it.clean:
			b.end(it, cache.Refused, refused)
		default:
			b.end(it, cache.Unknown, unknown)
		}
	}
	return refused
}

func (b *batch) refuseAll(items []*item, err error) {
	for _, it := range items {
		b.end(it, cache.Refused, err)
	}
}

func (b *batch) end(it *item, st cache.Status, err error) {
	it.over = true
	b.results[it.at] = upstream.Result{Status: st, Left: -1, Err: err}
	b.err = worse(b.err, err)
}

// read gives those items their results whose answer is plain, and makes swaps of
// the others.
func (b *batch) read() {
	for _, it := range b.todo {
		r := &b.results[it.at]
		switch {
		case it.err != nil:
			b.end(it, cache.Unknown, fmt.Errorf("%w at %s: the row of lock %q in table %s: %w", ErrNoAnswer, b.store.cfg.Addr(), it.op.Key, b.store.cfg.Table, it.err))
		case it.kind == reqLook:
			b.looked(it, r)
		case it.kind == reqFree:
			it.over = true
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

func (b *batch) looked(it *item, r *upstream.Result) {
	it.over = true
	r.Status = cache.Done
	if mode, left := it.row.held(b.x.now); it.found && left > 0 {
		r.Status, r.Mode, r.Left = cache.Busy, mode, left
	}
}

// extended reads the row of a renewal or a downgrade. It has had its way when the
// row names it as the last to change it; when another came between the write and the
// reading, it has to be said again.
func (b *batch) extended(it *item, r *upstream.Result) {
	switch {
	case it.sure && !it.had, !it.sure && (!it.found || !it.row.holds(it.ask.token)):
		it.over = true
		r.Status = cache.NotHeld
	case it.row.last == it.last:
		it.over = true
		r.Status, r.Contended = cache.Done, it.row.contended(it.ask.token, b.x.now)
		if it.kind == reqRebase {
			r.Base = uint64(it.row.fence)
		}
	default:
		it.clean = false
	}
}

// acquired reads the row of a try or a join.
func (b *batch) acquired(it *item, r *upstream.Result) {
	it.clean = !it.found || !it.partial && !it.row.has(it.ask.token)
	mine := it.found && it.row.last == it.last
	switch {
	case !it.found: // purged in between: as if it had never been there
		it.kind, it.last = kindOf(it.op), string(kindOf(it.op))+it.last[1:]
	case mine && it.kind == reqSwap:
		b.decided(it, r)
	case mine:
		it.over = true
		r.Status, r.Base = cache.Granted, uint64(it.row.fence)
		r.Contended = it.row.contended(it.ask.token, b.x.now)
	case it.partial: // nothing can be decided by it: it is looked at whole
	default:
		it.verdict = it.row.decide(&it.ask, b.x.now)
		if it.verdict.change {
			it.kind, it.last = reqSwap, string(reqSwap)+it.last[1:]
		} else {
			b.decided(it, r)
		}
	}
}

// decided gives an item what its verdict says, which holds now.
func (b *batch) decided(it *item, r *upstream.Result) {
	v := &it.verdict
	if v.status == cache.Refused {
		b.end(it, cache.Refused, fmt.Errorf("%w at %s: %w", ErrRefused, b.store.cfg.Addr(), v.err))
		return
	}
	it.over = true
	r.Status, r.Contended = v.status, v.contended
	if v.status == cache.Granted {
		r.Base = uint64(it.row.fence)
	} else {
		r.Left = v.left
	}
}
