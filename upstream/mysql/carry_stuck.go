package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// stuckFor is how long the store remembers that another client keeps a row locked.
const stuckFor = 10 * time.Second

var errLocked = errors.New("another client keeps the row locked in a transaction at the server")

// stuck remembers rows that another client keeps locked in a transaction at the server. They must
// not delay the other ops of a batch, which the same packet writes.
type stuck struct {
	mu    sync.Mutex
	until map[string]time.Time // by name; guarded by mu
}

func (s *stuck) put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[string]time.Time{}
	}
	now := time.Now()
	maps.DeleteFunc(s.until, func(_ string, end time.Time) bool { return now.After(end) })
	s.until[name] = now.Add(stuckFor)
}

// has reports whether name was found locked in the last stuckFor.
func (s *stuck) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.until[name]
	return ok && !time.Now().After(end)
}

// endStuck ends the ops whose rows were found locked not long ago and still are. It reports whether
// there were any.
func (c *carrier[T]) endStuck(ctx context.Context, conn *sql.Conn) bool {
	var some []T
	for _, it := range c.todo {
		if r := it.base(); !r.reads && c.stuck.has(r.name) {
			some = append(some, it)
		}
	}
	return len(some) > 0 && c.endLocked(ctx, conn, some, errLocked)
}

// endLocked ends those of items whose rows are locked now, and reports whether there were any.
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
		c.stuck.put(r.name)
		status, what := cache.Refused, ErrRefused
		if r.dirty {
			status, what = cache.Unknown, ErrNoAnswer
		}
		c.end(r, status, fmt.Errorf("%w at %s: %w", what, c.store.cfg.Addr(), err))
		ended = true
	}
	return ended
}

// locked finds the names of which rows are locked now: rows that exist, and that a locking read
// which skips locked rows does not return. A read of committed rows finds a row that another
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
