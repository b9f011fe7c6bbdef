package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// daemonName precedes the instance id in the name of a daemon's row. No lock has such a name:
// neither a key nor a prefix has control characters. The row is in the table of the locks, so that
// it needs no other grants. It has no owner, ends or queue, so that no version takes it for a held
// lock. The entry is in readers. Its end is in queued, after which the row is purged.
const daemonName = "\x00daemon:"

// Register writes the row.
func (s *Store) Register(ctx context.Context, r upstream.Registration, ttl time.Duration) error {
	var t text
	t.add("INSERT INTO `" + s.cfg.Table + "` (" + columns + ") VALUES (").
		hex(daemonName + s.instance).add(",0,'',0,").hex(nobody).add(",0," + clock + "+").
		num(ttl.Microseconds()).add(",").hex(r.Encode()).
		add(",'') ON DUPLICATE KEY UPDATE queued=VALUES(queued),readers=VALUES(readers)")
	return s.write(ctx, "register", t)
}

// Unregister deletes the row.
func (s *Store) Unregister(ctx context.Context) error {
	if s.noDelete() {
		return nil // the entry expires
	}
	var t text
	t.add("DELETE FROM `" + s.cfg.Table + "` WHERE name=").hex(daemonName + s.instance)
	return s.write(ctx, "unregister", t)
}

func (s *Store) write(ctx context.Context, verb string, t text) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err := s.onOneConn(ctx, func(conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, string(t))
		return err
	})
	if err != nil {
		return s.reason(fmt.Errorf("%s: %w", verb, ErrNoAnswer), err)
	}
	return nil
}

// maxDaemonRows limits the rows of one query for registrations.
const maxDaemonRows = 500

// Registered reads the rows that have not ended.
func (s *Store) Registered(
	ctx context.Context, ids []string,
) (map[string]upstream.Registration, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	found := map[string]upstream.Registration{}
	for part := range slices.Chunk(ids, maxDaemonRows) {
		var t text
		t.add("SELECT name,readers FROM `" + s.cfg.Table + "` FORCE INDEX (PRIMARY) WHERE name IN ")
		addList(&t, part, func(id string) { t.hex(daemonName + id) })
		t.add(" AND queued>" + clock)
		err := s.onOneConn(ctx, func(conn *sql.Conn) error {
			rows, err := conn.QueryContext(ctx, string(t))
			if err != nil {
				return err
			}
			defer rows.Close()
			for rows.Next() {
				var name, entry string
				if err := rows.Scan(&name, &entry); err != nil {
					return err
				}
				if r, ok := upstream.ParseRegistration(entry); ok {
					found[strings.TrimPrefix(name, daemonName)] = r
				}
			}
			return rows.Err()
		})
		if err != nil {
			return found, s.reason(fmt.Errorf("read registrations: %w", ErrNoAnswer), err)
		}
	}
	return found, nil
}

// Holders reads the rows of one key. It sets Held for an exclusive lease, from the fence base. The
// base is the server's clock when the lease was granted, or when it got a new base after many
// handoffs.
func (s *Store) Holders(
	ctx context.Context, key string, mode cache.Mode, limit int,
) (locks []upstream.Lock, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if limit < 1 || mode == cache.Permit && s.permitsBad.Load() != nil {
		return nil, nil
	}
	err = s.onOneConn(ctx, func(conn *sql.Conn) error {
		if mode == cache.Permit {
			locks, err = s.permitHolders(ctx, conn, key, limit)
		} else {
			locks, err = s.lockHolders(ctx, conn, key, limit)
		}
		return err
	})
	if err != nil {
		return nil, s.reason(fmt.Errorf("read the holder: %w", ErrNoAnswer), err)
	}
	return locks, nil
}

func (s *Store) lockHolders(
	ctx context.Context, conn *sql.Conn, key string, limit int,
) (locks []upstream.Lock, err error) {
	var t text
	t.add("name=").hex(s.cfg.Prefix + key)
	rows, now, err := s.queryRows(ctx, conn, t)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if !rows.Next() {
		return nil, rows.Err()
	}
	name, r, err := scanRow(rows)
	if err != nil {
		return nil, err
	}
	live := r.live(now)
	if live.ends == 0 {
		return nil, nil
	}
	one := s.lock(name, &live, now)
	one.Waiters = len(live.queue)
	if live.owner != "" {
		one.Held = age(now, live.fence)
		return []upstream.Lock{one}, nil
	}
	for _, g := range live.readers[:min(limit, len(live.readers))] {
		one.Holder, one.Daemon = instanceOf(g.token), instanceOf(g.token)
		one.Mine, one.Left = one.Holder == s.instance, (g.ends-now)*1000
		locks = append(locks, one)
	}
	return locks, nil
}

// age returns how long ago a base was made, in nanoseconds. It is 0 if the base is ahead of the
// clock.
func age(now, base int64) int64 { return max(0, now-base) * int64(time.Microsecond) }

func (s *Store) permitHolders(
	ctx context.Context, conn *sql.Conn, key string, limit int,
) (locks []upstream.Lock, err error) {
	for from := ""; len(locks) < limit; {
		page, next, err := s.listPermits(ctx, conn, s.cfg.Prefix+key, from, limit-len(locks))
		if err != nil {
			return nil, err
		}
		for _, l := range page {
			if l.Key == key {
				locks = append(locks, l)
			}
		}
		name := s.cfg.Prefix + key
		if from = next; next == "" || !strings.HasPrefix(next, name) || len(next) != len(name)+tokenLen {
			break
		}
	}
	return locks, nil
}
