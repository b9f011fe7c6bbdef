package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listSlice is the maximum number of rows of one page, whether their locks are held or not.
const listSlice = 1000

// row is a lock as its row describes it, without leases and places that have ended.
type row struct {
	name  string
	fence int64
	now   int64 // the server's clock
	held  []entry
	queue int // places
}

// entry is a lease.
type entry struct {
	Token string `json:"token"`
	Mode  string `json:"mode"`
	Ends  int64  `json:"ends"`
	Since int64  `json:"since"`
}

func (e *entry) instance() string { return e.Token[:min(len(e.Token), instanceLen)] }

// rows reads rows without locks. of has the clauses that follow the table's name in the query.
func (s *Store) rows(ctx context.Context, c *conn, of string, params ...string) ([]row, error) {
	found, err := c.query(ctx, strings.ReplaceAll(s.names.sql("rows"), "{of}", of), params...)
	if err != nil {
		return nil, err
	}
	rows := make([]row, len(found))
	for i, v := range found {
		r := &rows[i]
		r.name, r.fence, r.now = string(v[0]), parseInt(v[1]), parseInt(v[2])
		r.queue = int(parseInt(v[4]))
		if len(v[3]) == 0 {
			continue
		}
		if err := json.Unmarshal(v[3], &r.held); err != nil {
			return nil, fmt.Errorf("%w: %w", errAnswer, err)
		}
	}
	return rows, nil
}

// List returns the locks that are held or waited for, in the order of their names. It reads at most
// 1000 rows without locks, so a page before the last may have fewer locks than limit, or none. The
// cursor is the last name read.
func (s *Store) List(
	ctx context.Context, prefix, cursor string, limit int,
) (locks []upstream.Lock, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if !validText(prefix) || !validText(cursor) {
		return nil, "", nil // no lock has such a name
	}
	prefix, limit = s.cfg.Prefix+prefix, min(max(limit, 1), listSlice)
	var rows []row
	err = s.aside(ctx, func(c *conn) error {
		op := ">"
		if cursor == "" {
			op, cursor = ">=", prefix
		}
		of := fmt.Sprintf("WHERE name %s $1 ORDER BY name LIMIT %d", op, listSlice)
		rows, err = s.rows(ctx, c, of, cursor)
		return err
	})
	if err != nil {
		return nil, "", s.reason(fmt.Errorf("list locks: %w", ErrNoAnswer), err)
	}
	for i := range rows {
		r := &rows[i]
		if !strings.HasPrefix(r.name, prefix) {
			return locks, "", nil
		}
		if len(r.held) > 0 || r.queue > 0 {
			locks = append(locks, s.lock(r))
		}
		if len(locks) == limit {
			return locks, r.name, nil
		}
	}
	if len(rows) == listSlice {
		next = rows[len(rows)-1].name
	}
	return locks, next, nil
}

// lock describes a row.
func (s *Store) lock(r *row) upstream.Lock {
	l := upstream.Lock{Key: strings.TrimPrefix(r.name, s.cfg.Prefix),
		Name: fmt.Sprintf("%s in %s, name %q", s.names.locks, s.cfg.Database, r.name),
		Left: -1, Waiters: r.queue, Base: uint64(max(0, r.fence))}
	const most = 3
	var holders []string
	for i := range r.held {
		e := &r.held[i]
		if e.Mode == "s" {
			l.Mode = cache.Shared
		}
		l.Left = max(l.Left, (e.Ends-r.now)*int64(time.Microsecond))
		l.Mine = l.Mine || e.instance() == s.instance
		if i < most {
			holders = append(holders, e.instance())
		}
	}
	switch n := len(r.held); {
	case n == 1:
		l.Daemon, l.Held = holders[0], r.age(&r.held[0])
	case n > most:
		holders = append(holders, fmt.Sprintf("and %d more", n-most))
	}
	l.Holder = strings.Join(holders, " ")
	return l
}

// age returns how long a lease has been held, in nanoseconds.
func (r *row) age(e *entry) int64 { return max(0, r.now-e.Since) * int64(time.Microsecond) }
