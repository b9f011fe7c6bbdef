package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"go.uber.org/zap"
)

const (
	// fenceLife is the age at which an unused row is deleted, with the fence base that it keeps. The
	// clock alone gives larger bases then, unless it goes back by more than this. The age counts by the
	// server's clock and by this host's, so a server's clock that is ahead for a while deletes nothing
	// early.
	fenceLife = 24 * time.Hour
	// purgeSlice is the most rows looked at, or deleted, in one go.
	purgeSlice = 500
	// slicePause is about the pause between two slices of a walk through the table,
	// and walkPause that between two walks.
	slicePause = 2 * time.Second
	walkPause  = time.Hour
)

// slice is the result of one step of a walk through a table.
type slice struct {
	next    string // where the next one begins; "" at the end of the table
	read    int    // rows
	deleted int64  // rows
	took    time.Duration
}

// pause returns how long to wait after a slice. elapsed is the time since the walk began. While most rows
// are long unused, the walk has fallen behind and uses half of its connection's time. A walk that takes
// hours doubles its speed each hour: otherwise new rows could keep it from reaching the end of the table.
func (v *slice) pause(elapsed time.Duration) time.Duration {
	if 2*v.deleted > int64(v.read) {
		return v.took
	}
	return max(v.took, slicePause>>min(elapsed/time.Hour, 30))
}

// purgeAll deletes the rows of locks and semaphores long unused until ctx ends: it
// walks through the tables in small steps, again and again.
func (s *Store) purgeAll(ctx context.Context) {
	from, pause, begun := "", walkPause, time.Now()
	walk, then := s.purge, s.purgePermits
	for {
		t := time.NewTimer(jitter(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		sent := time.Now()
		if from == "" {
			begun = sent
		}
		v, err := walk(ctx, from)
		v.took = time.Since(sent)
		switch {
		case err != nil:
			from, pause = "", walkPause
			walk, then = then, walk
			s.log.Debug("cannot purge the table", zap.String("table", s.cfg.Table), zap.Error(s.advice(err)))
		case v.next == "":
			from, pause = "", walkPause/2 // each of the two has its turn once in a walkPause
			walk, then = then, walk
		default:
			from, pause = v.next, v.pause(time.Since(begun))
		}
		if v.deleted > 0 {
			s.log.Debug("purged rows of locks long unused", zap.Int64("rows", v.deleted))
		}
	}
}

// purge walks one slice of the table, after the name from.
func (s *Store) purge(ctx context.Context, from string) (v slice, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if s.noDelete() {
		return slice{}, nil
	}
	err = s.aside(ctx, func(conn *sql.Conn) error {
		v, err = s.purgeSlice(ctx, conn, from)
		return err
	})
	return v, err
}

func (s *Store) noDelete() bool {
	s.seen.Lock()
	defer s.seen.Unlock()
	return s.seen.server != nil && s.seen.server.noDelete
}

// setTimes sets @n to the time, and @o to the bound below which fence bases are long unused.
func (t *text) setTimes() {
	t.add("SET @n=" + clock + ",@o=LEAST(" + clock + ",")
	t.num(time.Now().UnixMicro())
	t.add(")-")
	t.num(fenceLife.Microseconds())
	t.add(";")
}

// purgeSlice reads without locks and deletes, by name, what is still unused then.
func (s *Store) purgeSlice(ctx context.Context, conn *sql.Conn, from string) (v slice, err error) {
	const old = " fence<@o AND ends<=@n AND queued<=@n"
	var t text
	t.setTimes()
	t.add("SELECT name," + old + " FROM `" + s.cfg.Table + "` FORCE INDEX (PRIMARY) WHERE name>")
	t.hex(from)
	t.add(" ORDER BY name LIMIT " + strconv.Itoa(purgeSlice))
	rows, err := conn.QueryContext(ctx, string(t))
	if err != nil {
		return slice{}, err
	}
	defer rows.Close()
	var items []*item
	for rows.Next() {
		var unused bool
		if err := rows.Scan(&v.next, &unused); err != nil {
			return slice{}, err
		}
		if v.read++; unused {
			items = append(items, &item{name: v.next})
		}
	}
	if err := rows.Close(); err != nil {
		return slice{}, err
	}
	if err := rows.Err(); err != nil {
		return slice{}, err
	}
	if v.read < purgeSlice {
		v.next = ""
	}
	if len(items) == 0 {
		return v, nil
	}
	t = t[:0]
	t.setTimes()
	t.add("DELETE FROM `" + s.cfg.Table + "` WHERE name IN ")
	t.names(items)
	t.add(" AND" + old)
	res, err := conn.ExecContext(ctx, string(t))
	if err != nil {
		return slice{}, err
	}
	v.deleted, err = res.RowsAffected()
	return v, err
}
