package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Register writes the row of this daemon.
func (s *Store) Register(ctx context.Context, r upstream.Registration, ttl time.Duration) error {
	return s.write(ctx, "register", "INSERT INTO "+s.names.daemons+
		" VALUES ($1, $2, "+clock+" + $3::bigint) "+
		"ON CONFLICT (id) DO UPDATE SET entry = excluded.entry, ends = excluded.ends",
		s.instance, r.Encode(), strconv.FormatInt(ttl.Microseconds(), 10))
}

// Unregister deletes the row.
func (s *Store) Unregister(ctx context.Context) error {
	if s.noDelete() {
		return nil // the entry expires
	}
	return s.write(ctx, "unregister", "DELETE FROM "+s.names.daemons+" WHERE id = $1", s.instance)
}

func (s *Store) write(ctx context.Context, verb, sql string, params ...string) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err := s.aside(ctx, func(c *conn) error {
		_, err := c.query(ctx, sql, params...)
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
	invalid := func(id string) bool { return !upstream.ValidInstance(id) }
	valid := slices.DeleteFunc(slices.Clone(ids), invalid)
	for part := range slices.Chunk(valid, maxDaemonRows) {
		err := s.aside(ctx, func(c *conn) error {
			rows, err := c.query(ctx, "SELECT id, entry FROM "+s.names.daemons+
				" WHERE id = ANY ($1::text[]) AND ends > "+clock, "{"+strings.Join(part, ",")+"}")
			for _, row := range rows {
				if r, ok := upstream.ParseRegistration(string(row[1])); ok {
					found[string(row[0])] = r
				}
			}
			return err
		})
		if err != nil {
			return found, s.reason(fmt.Errorf("read registrations: %w", ErrNoAnswer), err)
		}
	}
	return found, nil
}

// Holders reads the row of one key.
func (s *Store) Holders(
	ctx context.Context, key string, mode cache.Mode, limit int,
) (locks []upstream.Lock, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if limit < 1 || mode == cache.Permit || !validText(key) {
		return nil, nil
	}
	var rows []row
	err = s.aside(ctx, func(c *conn) error {
		rows, err = s.rows(ctx, c, "WHERE name = $1", s.cfg.Prefix+key)
		return err
	})
	if err != nil {
		return nil, s.reason(fmt.Errorf("read the holder: %w", ErrNoAnswer), err)
	}
	for i := range rows {
		r := &rows[i]
		all := r.held
		for j := range all[:min(limit, len(all))] {
			r.held = all[j : j+1]
			locks = append(locks, s.lock(r))
		}
	}
	return locks, nil
}
