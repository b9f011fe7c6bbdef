package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/cache"
)

var errLocked = errors.New("another client keeps the row locked in a transaction at the server")

// endStuck ends the ops whose rows were found locked not long ago and still are. It reports whether
// there were any.
func (c *carrier[T]) endStuck(ctx context.Context, conn *sql.Conn) bool {
	var some []T
	for _, it := range c.todo {
		if r := it.base(); !r.reads && c.stuck.Has(r.name) {
			some = append(some, it)
		}
	}
	return len(some) > 0 && c.endLocked(ctx, conn, some, errLocked)
}

// endLocked ends the items whose rows are locked now, and reports whether there were any.
func (c *carrier[T]) endLocked(
	ctx context.Context, conn *sql.Conn, items []T, err error,
) (ended bool) {
	locked, lerr := c.locked(ctx, conn, items)
	if lerr != nil {
		return false // the server is too old to answer, or gone: the next turn shows which
	}
	for _, it := range items {
		r := it.base()
		if !locked[r.name] {
			continue
		}
		c.stuck.Put(r.name)
		status, what := cache.Refused, ErrRefused
		if r.dirty {
			status, what = cache.Unknown, ErrNoAnswer
		}
		c.end(r, status, fmt.Errorf("%w at %s: %w", what, c.store.cfg.Addr(), err))
		ended = true
	}
	return ended
}

// locked returns the names whose rows are locked now. Such a row exists, and a locking read that
// skips locked rows does not return it. A read of committed rows finds a row that another
// transaction is deleting. A read of uncommitted rows finds one that a transaction is inserting.
func (c *carrier[T]) locked(
	ctx context.Context, conn *sql.Conn, items []T,
) (map[string]bool, error) {
	var t text
	c.addRows(&t, items)
	t.add(";SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;") // of the next statement
	c.addRows(&t, items)
	t.add(";")
	c.addRows(&t, items)
	t.add(" FOR UPDATE SKIP LOCKED")
	rows, err := conn.QueryContext(ctx, string(t))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	type id struct{ name, token string }
	unseen := map[id]bool{}
	read := func(do func(id)) error {
		for rows.Next() {
			var at id
			if err := rows.Scan(&at.name, &at.token); err != nil {
				return err
			}
			do(at)
		}
		return rows.Err()
	}
	for range 2 {
		if err := read(func(at id) { unseen[at] = true }); err != nil {
			return nil, err
		}
		if err := nextRows(rows); err != nil {
			return nil, err
		}
	}
	if err := read(func(at id) { delete(unseen, at) }); err != nil {
		return nil, err
	}
	locked := map[string]bool{}
	for at := range unseen {
		locked[at.name] = true
	}
	return locked, nil
}
