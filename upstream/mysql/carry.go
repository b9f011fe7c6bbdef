package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// packetSize bounds the text of one packet's statements, except for its last op.
const packetSize = 256 << 10

// request has the fields that ops about locks and ops about permits in progress have in common.
type request struct {
	at    int // its index in the batch
	op    *upstream.Op
	name  string // of the rows that it is about
	reads bool   // it writes nothing
	done  bool   // it has its result
	dirty bool   // an earlier turn may have left a row or an entry of its token
}

func (r *request) base() *request { return r }

// carrier carries out the ops of one batch about locks, or the ops about permits. T is *item or
// *permit.
type carrier[T interface{ base() *request }] struct {
	store   *Store
	results []upstream.Result
	err     error // the first failure, for logs; one that is ErrDown precedes others
	todo    []T   // of this turn
	later   []T   // they do not fit into the packet of this turn
	stuck   *driverkit.Stuck
	exchanger[T]
}

// exchanger is the part of a carrier that differs between locks and permits.
type exchanger[T any] interface {
	// ready checks the table on a connection that the batch has taken.
	ready(ctx context.Context, conn *sql.Conn) error
	// size estimates the text of one op in the next packet.
	size(it T) int
	// exchange sends the ops in one packet and gives results to those that are finished. Fence
	// bases must be above floor. When it fails, proof means that the packet has done nothing.
	exchange(ctx context.Context, conn *sql.Conn, items []T, floor uint64) (proof bool, err error)
	// writes returns the ops that wrote in the last exchange.
	writes() []T
	// addRows adds a query for the names and tokens of the rows that items lock. The caller adds
	// its end.
	addRows(t *text, items []T)
	// tableError returns the error to report if err is about the table alone, else nil.
	tableError(err error) error
}

// apply carries out items, in as few packets as they fit into.
func (c *carrier[T]) apply(ctx context.Context, items []T) {
	conn, err := c.store.conn(ctx)
	if err != nil {
		c.refuse(items, c.store.reason(ErrNothingSent, err))
		return
	}
	defer func() { _ = conn.Close() }()
	if err := c.ready(ctx, conn); err != nil {
		c.refuse(items, err)
		return
	}
	for rest := items; len(rest) > 0; {
		n := c.packetful(rest)
		if conn, err = c.carry(ctx, conn, rest[:n]); err != nil {
			c.refuse(rest[n:], err)
			return
		}
		rest = rest[n:]
	}
}

// packetful returns how many of items go into one packet.
func (c *carrier[T]) packetful(items []T) int {
	size := 0
	for n, it := range items {
		if size > packetSize {
			return n
		}
		size += c.size(it)
	}
	return len(items)
}

// carry repeats exchanges until all items have results. It returns an error if the connection,
// which it may have replaced, cannot be used any more. The items have results then, too.
func (c *carrier[T]) carry(ctx context.Context, conn *sql.Conn, items []T) (*sql.Conn, error) {
	fresh := false
	for turn := 0; ; turn++ {
		c.later, c.todo = nil, slices.DeleteFunc(append(c.todo[:0], items...), func(it T) bool {
			return it.base().done
		})
		if len(c.todo) == 0 {
			return conn, nil
		}
		if err := pause(ctx, turn); err != nil {
			return conn, c.fail(conn, err, true)
		}
		if c.endStuck(ctx, conn) {
			continue
		}
		n := c.packetful(c.todo) // an op may need more room than in the turn before
		c.todo, c.later = c.todo[:n], c.todo[n:]
		// The floor is read after the connection is taken, because a failover can lead to a new
		// connection, which raises the floor.
		proof, err := c.exchange(ctx, conn, c.todo, c.store.fences.Floor())
		switch {
		case err == nil:
		case nothingSent(err) && !fresh: // the connection was closed before anything was sent
			fresh = true
			_ = conn.Close()
			next, err := c.store.conn(ctx)
			if err != nil {
				return conn, c.fail(conn, err, true)
			}
			conn = next
		case proof && slices.Contains(repeatable, number(err)):
		case proof && number(err) == erLockWait:
			// The ops whose rows are locked end, and the other ops continue. If no locked row is found, all
			// ops are repeated.
			c.endLocked(ctx, conn, c.writes(), fmt.Errorf("%w: %w", errLocked, err))
		default:
			return conn, c.fail(conn, err, proof)
		}
	}
}

// pause waits before a turn. The wait grows with the number of turns.
func pause(ctx context.Context, turn int) error {
	switch {
	case ctx.Err() != nil && turn == 0:
		return ctx.Err()
	case ctx.Err() != nil:
		return errOutOfTime
	case turn < 3:
		return nil
	}
	limit := min(time.Duration(turn)*time.Millisecond, 20*time.Millisecond)
	if !driverkit.Sleep(ctx, limit/4+rand.N(limit)) {
		return errOutOfTime
	}
	return nil
}

// fail ends all unfinished ops with err, which may be proof that this turn has done nothing. It
// returns the error for ops that were not sent.
func (c *carrier[T]) fail(conn *sql.Conn, err error, proof bool) error {
	refused, unknown := c.store.reason(ErrRefused, err), c.store.reason(ErrNoAnswer, err)
	tableErr := c.tableError(err)
	switch {
	case tableErr != nil:
		refused, unknown = tableErr, tableErr
	case number(err) == 0:
		refused = c.store.reason(ErrNothingSent, err)
	}
	if tableErr != nil || isReadOnly(err) || number(err) != 0 && isDown(err) {
		discard(conn) // the next connection is checked, and may lead to another server
	}
	if !proof {
		c.store.dropIdle(err)
	}
	for i, it := range slices.Concat(c.todo, c.later) {
		switch r := it.base(); {
		case r.done:
		case r.reads, (proof || i >= len(c.todo)) && !r.dirty:
			c.end(r, cache.Refused, refused)
		default:
			c.end(r, cache.Unknown, unknown)
		}
	}
	return refused
}

func (c *carrier[T]) refuse(items []T, err error) {
	for _, it := range items {
		c.end(it.base(), cache.Refused, err)
	}
}

func (c *carrier[T]) end(r *request, st cache.Status, err error) {
	r.done = true
	c.results[r.at] = upstream.Result{Status: st, Left: -1, Err: err}
	c.err = worse(c.err, err)
}

// worse returns a, or b if b matters more in a log.
func worse(a, b error) error {
	if a == nil || errors.Is(b, upstream.ErrDown) && !errors.Is(a, upstream.ErrDown) {
		return b
	}
	return a
}

var errAnswer = errors.New("the answer is malformed")

// nextRows moves to the next answer that has rows.
func nextRows(rows *sql.Rows) error {
	if rows.NextResultSet() {
		return nil
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return errAnswer
}
