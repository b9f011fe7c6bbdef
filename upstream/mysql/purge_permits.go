package mysql

import (
	"context"
	"database/sql"
	"slices"
	"strconv"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// clearSlice is the maximum number of semaphores that are locked and cleared together.
const clearSlice = 32

// purgePermits walks one slice of the table of permits, after the name from. It deletes ended
// permits and queue entries, and semaphores that are long unused.
func (s *Store) purgePermits(ctx context.Context, from string) (v driverkit.Purged, err error) {
	if s.permitsBad.Load() != nil {
		return driverkit.Purged{}, nil
	}
	step := func(do func(ctx context.Context, conn *sql.Conn) error) error {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		return s.onOneConn(ctx, func(conn *sql.Conn) error { return do(ctx, conn) })
	}
	var ended, unused []*permit
	err = step(func(ctx context.Context, conn *sql.Conn) error {
		if ended, unused, v, err = s.endedSems(ctx, conn, from); err != nil || len(unused) == 0 {
			return err
		}
		v.Deleted, err = s.dropSems(ctx, conn, unused)
		return err
	})
	for some := range slices.Chunk(ended, clearSlice) {
		if err == nil {
			err = step(func(ctx context.Context, conn *sql.Conn) error {
				return s.clearSems(ctx, conn, some)
			})
		}
	}
	return v, err
}

// endedSems finds semaphores with ended permits or places, and those long unused.
func (s *Store) endedSems(
	ctx context.Context, conn *sql.Conn, from string,
) (ended, unused []*permit, v driverkit.Purged, err error) {
	var t text
	t.setTimes()
	t.add("SELECT name,token='~' AND held+waits>0 AND ends<=@now,token='~' AND " + semUnused +
		" FROM " + s.permitsText().table +
		" FORCE INDEX (PRIMARY) WHERE name>")
	t.hex(from).add(" ORDER BY name,token LIMIT " + strconv.Itoa(driverkit.PurgeSlice))
	rows, err := conn.QueryContext(ctx, string(t))
	if err != nil {
		return nil, nil, driverkit.Purged{}, err
	}
	defer rows.Close()
	var last *permit
	for rows.Next() {
		var clear, drop bool
		if err := rows.Scan(&v.Next, &clear, &drop); err != nil {
			return nil, nil, driverkit.Purged{}, err
		}
		it := &permit{request: request{name: v.Next, op: &upstream.Op{}}}
		switch {
		case clear:
			ended = append(ended, it)
		case drop:
			unused = append(unused, it)
		}
		v.Read, last = v.Read+1, it
	}
	if v.Read < driverkit.PurgeSlice {
		v.Next = ""
	} else if n := len(ended); n == 0 || ended[n-1] != last { // not all its rows were read
		ended = append(ended, last)
	}
	return ended, unused, v, rows.Err()
}

const semUnused = "held=0 AND waits=0 AND fence<@old"

func (s *Store) dropSems(ctx context.Context, conn *sql.Conn, items []*permit) (int64, error) {
	var t text
	t.setTimes()
	t.add("DELETE q FROM " + s.permitsText().table +
		" q FORCE INDEX (PRIMARY) WHERE token='~' AND name IN ")
	t.semNames(items)
	t.add(" AND " + semUnused)
	res, err := conn.ExecContext(ctx, string(t))
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// clearSems clears semaphores as an op would. It does not make the rows of semaphores that no
// longer exist.
func (s *Store) clearSems(ctx context.Context, conn *sql.Conn, items []*permit) error {
	x := permitExchange{store: s}
	q := s.permitsText()
	t := &x.text
	t.add("SET @now=" + clock + ";" + q.begin + "SELECT COUNT(*) INTO @rows FROM " + q.table +
		" FORCE INDEX (PRIMARY) WHERE token='~' AND name IN ")
	t.semNames(items)
	t.add(" FOR UPDATE;")
	semaphores(items, func(same []*permit) {
		t.add("SET @name='',@expired=0;")
		t.loadSem(q, same)
		t.add(q.save)
	})
	t.add(q.end + "COMMIT AND NO CHAIN NO RELEASE")
	if _, err := conn.ExecContext(ctx, string(x.text)); err != nil {
		x.rollBack(conn, err)
		return err
	}
	return nil
}
