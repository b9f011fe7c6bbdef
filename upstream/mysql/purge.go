package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"go.uber.org/zap"
)

const (
	// fenceLife is how long a fence base outlives its time: a row is kept until its
	// base is older than this by the server's clock, so that the clock alone gives
	// larger ones, unless it goes back by more.
	fenceLife = 24 * time.Hour
	// purgeSlice is the most rows looked at, or deleted, in one go.
	purgeSlice = 500
	// slicePause is about the pause between two slices of a walk through the table,
	// and walkPause that between two walks.
	slicePause = 2 * time.Second
	walkPause  = time.Hour
)

// purgeAll deletes the rows of locks and semaphores long unused until ctx ends: it
// walks through the tables in small steps, again and again.
func (s *Store) purgeAll(ctx context.Context) {
	from, pause := "", walkPause
	walk, then := s.purge, s.purgePermits
	for {
		t := time.NewTimer(jitter(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		next, n, err := walk(ctx, from)
		switch {
		case err != nil:
			from, pause = "", walkPause
			walk, then = then, walk
			s.log.Debug("cannot purge the table", zap.String("table", s.cfg.Table), zap.Error(s.advice(err)))
		case next == "":
			from, pause = "", walkPause/2 // each of the two has its turn once in a walkPause
			walk, then = then, walk
		default:
			from, pause = next, slicePause
		}
		if n > 0 {
			s.log.Debug("purged rows of locks long unused", zap.Int64("rows", n))
		}
	}
}

// purge walks one slice of the table, behind the name from, and returns where the
// next begins, "" at the end.
func (s *Store) purge(ctx context.Context, from string) (next string, n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if s.noDelete() {
		return "", 0, nil
	}
	err = s.aside(ctx, func(conn *sql.Conn) error {
		next, n, err = s.purgeSlice(ctx, conn, from)
		return err
	})
	return next, n, err
}

func (s *Store) noDelete() bool {
	s.seen.Lock()
	defer s.seen.Unlock()
	return s.seen.server != nil && s.seen.server.noDelete
}

// purgeSlice reads without locks and deletes, by name, what is still unused then.
func (s *Store) purgeSlice(ctx context.Context, conn *sql.Conn, from string) (next string, n int64, err error) {
	old := " fence<@n-" + strconv.FormatInt(fenceLife.Microseconds(), 10) + " AND ends<=@n AND queued<=@n"
	var t text
	t.add("SET @n=" + clock + ";SELECT name," + old + " FROM `" + s.cfg.Table + "` FORCE INDEX (PRIMARY) WHERE name>")
	t.hex(from)
	t.add(" ORDER BY name LIMIT " + strconv.Itoa(purgeSlice))
	rows, err := conn.QueryContext(ctx, string(t))
	if err != nil {
		return "", 0, err
	}
	defer rows.Close()
	var items []*item
	seen := 0
	for rows.Next() {
		var unused bool
		if err := rows.Scan(&next, &unused); err != nil {
			return "", 0, err
		}
		if seen++; unused {
			items = append(items, &item{name: next})
		}
	}
	if err := rows.Close(); err != nil {
		return "", 0, err
	}
	if err := rows.Err(); err != nil {
		return "", 0, err
	}
	if seen < purgeSlice {
		next = ""
	}
	if len(items) == 0 {
		return next, 0, nil
	}
	t = t[:0]
	t.add("SET @n=" + clock + ";DELETE FROM `" + s.cfg.Table + "` WHERE name IN ")
	t.names(items)
	t.add(" AND" + old)
	res, err := conn.ExecContext(ctx, string(t))
	if err != nil {
		return "", 0, err
	}
	n, err = res.RowsAffected()
	return next, n, err
}
