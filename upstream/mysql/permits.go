package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// permit is one op about a permit on its way.
type permit struct {
	at    int // its index in the batch
	op    *upstream.Op
	floor uint64 // a new base must be above it
	name  string
	token string
	stage stage
	over  bool // it has its result
	dirty bool // an earlier turn has been carried out

	had   bool // stage release: it stood there before
	found bool // it stands there now
	row   permitRow
	sem   semRow
}

// stage is when an op has its turn among those of its semaphore: what gives
// permits back comes before what takes them.
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

// permitRow is a permit, or a place in the queue.
type permitRow struct {
	place int64 // 0 when it is held
	fence int64
}

// semRow is a semaphore as it is after a packet.
type semRow struct {
	fence     int64
	queue     bool  // somebody queues
	contended bool  // another host does, and has no permit free to take
	ends      int64 // stage peek: when its first permit ends, 0 when none is held
}

// permits is that part of a batch which is about permits.
type permits struct {
	store   *Store
	results []upstream.Result
	err     error // the first thing that went wrong, for logs
	items   []*permit
	todo    []*permit
	x       permitExchange
}

// applyPermits carries out those of ops whose indices are in which, in one round
// trip. They are in one transaction, but for those that do not fit into its packet.
func (s *Store) applyPermits(ctx context.Context, ops []upstream.Op, results []upstream.Result, which []int) error {
	b := &permits{store: s, results: results, x: permitExchange{store: s}}
	for _, i := range which {
		op := &ops[i]
		b.items = append(b.items, &permit{at: i, op: op, floor: op.Floor, name: s.cfg.Prefix + op.Key, stage: stageOf(op),
			token: string(appendToken(nil, s.instance, op.Token))})
	}
	slices.SortFunc(b.items, func(a, c *permit) int {
		return cmp.Or(strings.Compare(a.name, c.name), cmp.Compare(a.stage, c.stage), cmp.Compare(a.at, c.at))
	})
	conn, err := s.conn(ctx)
	if err != nil {
		b.refuse(b.items, s.reason(ErrNothingSent, err))
		return b.err
	}
	defer func() { _ = conn.Close() }()
	if err := s.permitsReady(ctx, conn); err != nil {
		b.refuse(b.items, err)
		return b.err
	}
	for rest := b.items; len(rest) > 0; {
		n := permitsPacketful(rest)
		if conn, err = b.carry(ctx, conn, rest[:n]); err != nil {
			b.refuse(rest[n:], err)
			break
		}
		rest = rest[n:]
	}
	s.notePermits(b.items, results)
	return b.err
}

// permitsPacketful says how many of items go into one packet.
func permitsPacketful(items []*permit) int {
	size := 0
	for n, it := range items {
		if size > packetSize {
			return n
		}
		size += 10*len(it.name) + 1300
	}
	return len(items)
}

// carry brings items to their ends, as batch's does.
func (b *permits) carry(ctx context.Context, conn *sql.Conn, items []*permit) (*sql.Conn, error) {
	fresh := false
	for turn := 0; ; turn++ {
		b.todo = slices.DeleteFunc(append(b.todo[:0], items...), func(it *permit) bool { return it.over })
		if len(b.todo) == 0 {
			return conn, nil
		}
		if err := pause(ctx, turn); err != nil {
			return conn, b.fail(conn, err, true)
		}
		if b.unstick(ctx, conn) {
			continue
		}
		floor := b.store.fences.Floor() // as for locks
		for _, it := range b.todo {
			it.floor = max(it.floor, floor)
		}
		b.x.begin(b.todo)
		err := b.x.run(ctx, conn)
		if err == nil {
			b.x.ask(ctx, conn)
			b.read()
			continue
		}
		proof := unsent(err) || number(err) != 0 && !b.x.divided
		b.x.rollBack(conn, err)
		switch {
		case unsent(err) && !fresh:
			fresh = true
			_ = conn.Close()
			next, err := b.store.conn(ctx)
			if err != nil {
				return conn, b.fail(conn, err, true)
			}
			conn = next
		case proof && slices.Contains(repeatable, number(err)):
		case proof && number(err) == erLockWait:
			b.stick(ctx, conn, err)
		default:
			return conn, b.fail(conn, err, proof)
		}
	}
}

// fail ends all that is not over with err, which may be proof that nothing has been
// done.
func (b *permits) fail(conn *sql.Conn, err error, proof bool) error {
	s := b.store
	refused, unknown := s.reason(ErrRefused, err), s.reason(ErrNoAnswer, err)
	switch {
	case aboutTable(err): // the locks' table may be as it should be
		dismiss(conn) // the next one looks at the table again
		err = fmt.Errorf("%w at %s: %w", ErrRefused, s.cfg.Addr(), s.permitsAdvice(err))
		refused, unknown = err, err
	case number(err) == 0:
		refused = s.reason(ErrNothingSent, err)
	case isReadOnly(err) || isDown(err):
		dismiss(conn)
	}
	for _, it := range b.todo {
		switch {
		case it.over:
		case it.stage == stagePeek, proof && !it.dirty:
			b.end(it, cache.Refused, refused)
		default:
			b.end(it, cache.Unknown, unknown)
		}
	}
	return refused
}

func (b *permits) refuse(items []*permit, err error) {
	for _, it := range items {
		b.end(it, cache.Refused, err)
	}
}

func (b *permits) end(it *permit, st cache.Status, err error) {
	it.over = true
	b.results[it.at] = upstream.Result{Status: st, Left: -1, Err: err}
	b.err = worse(b.err, err)
}

// worse is a, or b if that is what a log has to have.
func worse(a, b error) error {
	if a == nil || errors.Is(b, upstream.ErrDown) && !errors.Is(a, upstream.ErrDown) {
		return b
	}
	return a
}

// read gives the items their results. What stands in the table under a token is
// true whoever put it there: only the token's own Store does.
func (b *permits) read() {
	for _, it := range b.todo {
		r := &b.results[it.at]
		r.Contended = it.sem.contended
		held := it.found && it.row.place == 0
		switch it.stage {
		case stagePeek:
			r.Status, r.Contended = cache.Done, false
			if it.sem.ends > 0 {
				r.Status, r.Mode, r.Left = cache.Busy, cache.Permit, max(0, (it.sem.ends-b.x.now)*1000)
			}
		case stageRelease:
			r.Status, r.Contended = cache.Done, false
			if !it.had && it.op.Kind == cache.OpRelease {
				r.Status = cache.NotHeld
			}
		case stageRenew, stageRebase:
			r.Status = cache.NotHeld
			if held {
				r.Status = cache.Done
			}
			if held && it.stage == stageRebase {
				r.Base = uint64(it.row.fence)
			}
		default:
			b.acquired(it, r, held)
		}
		switch {
		case r.Base > cache.MaxBase, (r.Status == cache.Granted || it.stage == stageRebase && held) && r.Base <= it.op.Floor:
			b.end(it, cache.Refused, fmt.Errorf("%w at %s: %w", ErrRefused, b.store.cfg.Addr(), errUsedUp))
		case r.Status == cache.Unknown: // once more
			it.dirty = true
		default:
			it.over = true
		}
	}
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
