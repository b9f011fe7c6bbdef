package mysql

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// purge walks one slice of the table, after the name from.
func (s *Store) purge(ctx context.Context, from string) (v driverkit.Purged, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if s.noDelete() {
		return driverkit.Purged{}, nil
	}
	err = s.onOneConn(ctx, func(conn *sql.Conn) error {
		v, err = s.purgeSlice(ctx, conn, from)
		return err
	})
	return v, err
}

// setTimes sets @now to the time, and @old to the bound below which fence bases are long unused.
func (t *text) setTimes() {
	t.add("SET @now=" + clock + ",@old=LEAST(" + clock + ",").num(time.Now().UnixMicro()).add(")-").
		num(driverkit.FenceLife.Microseconds()).add(";")
}

// purgeSlice reads without locks, and deletes by name the rows that are still unused then.
func (s *Store) purgeSlice(
	ctx context.Context, conn *sql.Conn, from string,
) (v driverkit.Purged, err error) {
	const old = " fence<@old AND ends<=@now AND queued<=@now"
	var t text
	t.setTimes()
	t.add("SELECT name," + old + " FROM `" + s.cfg.Table + "` FORCE INDEX (PRIMARY) WHERE name>").
		hex(from).add(" ORDER BY name LIMIT " + strconv.Itoa(driverkit.PurgeSlice))
	rows, err := conn.QueryContext(ctx, string(t))
	if err != nil {
		return driverkit.Purged{}, err
	}
	defer rows.Close()
	var items []*item
	for rows.Next() {
		var unused bool
		if err := rows.Scan(&v.Next, &unused); err != nil {
			return driverkit.Purged{}, err
		}
		if v.Read++; unused {
			items = append(items, newItem(v.Next, ask{}))
		}
	}
	if err := rows.Close(); err != nil {
		return driverkit.Purged{}, err
	}
	if err := rows.Err(); err != nil {
		return driverkit.Purged{}, err
	}
	if v.Read < driverkit.PurgeSlice {
		v.Next = ""
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
		return driverkit.Purged{}, err
	}
	v.Deleted, err = res.RowsAffected()
	return v, err
}
