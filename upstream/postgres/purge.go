package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// purge deletes the unused rows of one slice, which begins after the name from. It skips rows that
// are locked, so it never waits for a batch. At the beginning of a walk it deletes the entries of
// daemons that have ended.
func (s *Store) purge(ctx context.Context, from string) (v driverkit.Purged, err error) {
	if s.noDelete() {
		return driverkit.Purged{}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err = s.aside(ctx, func(c *conn) error {
		if from == "" {
			const ended = "DELETE FROM %s WHERE ends < " + clock
			if _, err := c.query(ctx, fmt.Sprintf(ended, s.names.daemons)); err != nil {
				return err
			}
		}
		rows, err := c.query(ctx, s.names.sql("purge"), from,
			strconv.FormatInt(time.Now().UnixMicro(), 10),
			strconv.FormatInt(driverkit.FenceLife.Microseconds(), 10))
		if err != nil {
			return err
		}
		if len(rows) != 1 {
			return errAnswer
		}
		r := rows[0]
		v = driverkit.Purged{Next: string(r[0]), Read: int(parseInt(r[1])), Deleted: parseInt(r[2])}
		if v.Read < driverkit.PurgeSlice {
			v.Next = ""
		}
		return nil
	})
	return v, err
}
