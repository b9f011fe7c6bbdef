package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listSlice is the maximum number of rows of one page, whether their locks are held or not.
const listSlice = 1000

// A cursor of List is one of these followed by the name of a lock, or by the position of a permit.
const (
	listLocks   = "l"
	listPermits = "p"
)

// List returns the locks that are held or waited for, in the order of their names, and then each
// held permit. It reads without locking, at most 1000 rows per page. So a page before the last may
// have fewer locks than limit, or none.
func (s *Store) List(
	ctx context.Context, prefix, cursor string, limit int,
) (locks []upstream.Lock, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err = s.onOneConn(ctx, func(conn *sql.Conn) error {
		prefix, limit := s.cfg.Prefix+prefix, min(max(limit, 1), listSlice)
		if place, ok := strings.CutPrefix(cursor, listPermits); ok {
			if locks, next, err = s.listPermits(ctx, conn, prefix, place, limit); next != "" {
				next = listPermits + next
			}
			return err
		}
		from := strings.TrimPrefix(cursor, listLocks)
		locks, next, err = s.list(ctx, conn, prefix, max(from, prefix), cursor == "", limit)
		switch {
		case next != "":
			next = listLocks + next
		case err == nil && s.permitsBad.Load() == nil:
			next = listPermits
		}
		return err
	})
	if err != nil {
		return nil, "", s.reason(fmt.Errorf("list locks: %w", ErrNoAnswer), err)
	}
	return locks, next, nil
}

func (s *Store) list(
	ctx context.Context, conn *sql.Conn, prefix, from string, first bool, limit int,
) (locks []upstream.Lock, next string, err error) {
	rows, now, err := s.queryRows(ctx, conn, page(prefix, from, first))
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	seen := 0
	for rows.Next() {
		name, r, err := scanRow(rows)
		if err != nil {
			return nil, "", err
		}
		seen++
		next = name
		if l := r.live(now); l.ends > 0 || len(l.queue) > 0 {
			locks = append(locks, s.lock(name, &l, now))
		}
		if len(locks) == limit {
			return locks, next, rows.Close()
		}
	}
	if err := rows.Err(); err != nil {
		return nil, "", err
	}
	if seen < listSlice {
		next = ""
	}
	return locks, next, nil
}

// page returns the condition for rows whose names begin with prefix and are after from. If first is
// true, the row from is included.
func page(prefix, from string, first bool) text {
	var t text
	t.add("name>")
	if first {
		t.add("=")
	}
	t.hex(from)
	if end := behind(prefix); end != "" {
		t.add(" AND name<").hex(end)
	}
	t.add(" ORDER BY name LIMIT " + strconv.Itoa(listSlice))
	return t
}

// queryRows reads the time and the rows of locks for which where is true. The caller closes rows.
func (s *Store) queryRows(
	ctx context.Context, conn *sql.Conn, where text,
) (rows *sql.Rows, now int64, err error) {
	rows, err = conn.QueryContext(ctx, "SET @now="+clock+";SELECT @now;SELECT "+columns+" FROM `"+
		s.cfg.Table+"` FORCE INDEX (PRIMARY) WHERE "+string(where))
	if err != nil {
		return nil, 0, err
	}
	if !rows.Next() {
		err = cmp.Or(rows.Err(), errAnswer)
	} else if err = rows.Scan(&now); err == nil {
		err = nextRows(rows)
	}
	if err != nil {
		return nil, 0, errors.Join(err, rows.Close())
	}
	return rows, now, nil
}

// behind returns the first name after all that begin with prefix, or "" if there is none.
func behind(prefix string) string {
	b := []byte(prefix)
	for len(b) > 0 && b[len(b)-1] == 0xff {
		b = b[:len(b)-1]
	}
	if len(b) > 0 {
		b[len(b)-1]++
	}
	return string(b)
}

// scanRow reads one row of columns. A malformed row has no readers and no queue.
func scanRow(rows *sql.Rows) (string, *row, error) {
	var r row
	var name string
	var readers, queue sql.RawBytes
	err := rows.Scan(&name, &r.version, &r.last, &r.fence, &r.owner, &r.ends, &r.queued,
		&readers, &queue)
	if err != nil {
		return "", nil, err
	}
	if r.owner == nobody {
		r.owner = ""
	}
	r.readers, _ = parseReaders(readers)
	r.queue, _ = parseQueue(queue)
	return name, &r, nil
}

func (s *Store) lock(name string, r *row, now int64) upstream.Lock {
	l := upstream.Lock{Key: strings.TrimPrefix(name, s.cfg.Prefix),
		Name:   fmt.Sprintf("%s.%s, name %q", s.cfg.Database, s.cfg.Table, name),
		Holder: r.holder(), Left: -1, Waiters: len(r.queue), Base: uint64(max(0, r.fence))}
	if r.owner == "" && len(r.readers) > 0 {
		l.Mode = cache.Shared
	}
	if r.ends > now {
		l.Left = (r.ends - now) * 1000
	}
	if r.owner != "" || len(r.readers) == 1 {
		l.Daemon = l.Holder
	}
	mine := func(token string) bool { return strings.HasPrefix(token, s.instance+".") }
	l.Mine = mine(r.owner)
	for _, g := range r.readers {
		l.Mine = l.Mine || mine(g.token)
	}
	return l
}
