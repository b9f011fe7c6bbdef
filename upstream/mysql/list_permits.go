package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listPermits lists permits in the order of their names and tokens. A position is a name and a
// token, which has a fixed length.
func (s *Store) listPermits(
	ctx context.Context, conn *sql.Conn, prefix, from string, limit int,
) (locks []upstream.Lock, next string, err error) {
	rows, err := conn.QueryContext(ctx, s.permitsPage(prefix, from))
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	seen := 0
	for rows.Next() {
		var name, token string
		var place, left, fence, age int64
		var waits sql.NullInt64
		if err := rows.Scan(&name, &token, &place, &left, &fence, &age, &waits); err != nil {
			return nil, "", err
		}
		seen++
		if token == "~" {
			continue
		}
		next = name + token
		if place != 0 || left <= 0 {
			continue
		}
		l := upstream.Lock{Key: strings.TrimPrefix(name, s.cfg.Prefix), Mode: cache.Permit,
			Holder: instanceOf(token), Daemon: instanceOf(token),
			Mine: strings.HasPrefix(token, s.instance+"."),
			Name: fmt.Sprintf("%s.%s, name %q, token %s", s.cfg.Database, s.cfg.permitsTable(), name, token),
			Left: left * 1000, Waiters: -1, Base: uint64(max(0, fence)), Held: max(0, age) * 1000}
		if waits.Valid {
			l.Waiters = int(waits.Int64)
		}
		if locks = append(locks, l); len(locks) == limit {
			return locks, next, rows.Close()
		}
	}
	if seen < listSlice {
		next = ""
	}
	return locks, next, rows.Err()
}

// permitsPage returns the query for the permits of semaphores whose names begin with prefix, after
// the position from.
func (s *Store) permitsPage(prefix, from string) string {
	table := s.permitsText().table
	var t text
	t.add("SET @now=" + clock + ";SELECT q.name,q.token,q.place,q.ends-@now,q.fence,@now-q.fence," +
		"(SELECT s.waits FROM " + table +
		" s WHERE s.name=q.name AND s.token='~') FROM " + table + " q FORCE INDEX (PRIMARY) WHERE ")
	if len(from) > tokenLen {
		name, token := from[:len(from)-tokenLen], from[len(from)-tokenLen:]
		t.add("(q.name>").hex(name).add(" OR q.name=").hex(name).add(" AND q.token>").hex(token).
			add(")")
	} else {
		t.add("q.name>=").hex(prefix)
	}
	if end := behind(prefix); end != "" {
		t.add(" AND q.name<").hex(end)
	}
	t.add(" ORDER BY q.name,q.token LIMIT " + strconv.Itoa(listSlice))
	return string(t)
}
