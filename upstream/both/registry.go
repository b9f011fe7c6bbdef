package both

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Answer makes f answer the questions that arrive through either store. Tokens have the same
// numbers in both stores.
func (s *Store) Answer(f upstream.HeldFor) {
	for _, st := range []upstream.Store{s.old, s.new} {
		if a := st.Capabilities().Answerer; a != nil {
			a.Answer(f)
		}
	}
}

// registrars returns the Registrars of the two stores.
func (s *Store) registrars() (rs []upstream.Registrar) {
	for _, st := range []upstream.Store{s.old, s.new} {
		if r := st.Capabilities().Registrar; r != nil {
			rs = append(rs, r)
		}
	}
	return rs
}

// Register registers with both stores, because other hosts may use only one.
func (s *Store) Register(
	ctx context.Context, r upstream.Registration, ttl time.Duration,
) (err error) {
	for _, st := range s.registrars() {
		err = errors.Join(err, st.Register(ctx, r, ttl))
	}
	return err
}

// Unregister removes the entries from both stores.
func (s *Store) Unregister(ctx context.Context) (err error) {
	for _, st := range s.registrars() {
		err = errors.Join(err, st.Unregister(ctx))
	}
	return err
}

// Registered returns the entries of both stores.
func (s *Store) Registered(
	ctx context.Context, ids []string,
) (map[string]upstream.Registration, error) {
	found := map[string]upstream.Registration{}
	var errs error
	for _, st := range s.registrars() {
		entries, err := st.Registered(ctx, ids)
		maps.Copy(found, entries)
		errs = errors.Join(errs, err)
	}
	return found, errs
}

// Holders returns the holders in the old store. It adds the holders in the new store whose hosts
// hold nothing in the old one. A host that uses both stores holds a key in both.
func (s *Store) Holders(
	ctx context.Context, key string, mode cache.Mode, limit int,
) (locks []upstream.Lock, err error) {
	var errs error
	for _, st := range s.registrars() {
		more, err := st.Holders(ctx, key, mode, limit)
		if errs = errors.Join(errs, err); len(locks) > 0 && len(more) > 0 {
			more = s.others(ctx, more, locks)
		}
		locks = append(locks, more...)
	}
	if len(locks) > 0 {
		errs = nil
	}
	return locks[:min(limit, len(locks))], errs
}

// others returns the locks whose daemons hold none of known. It keeps daemons without an entry,
// because it cannot tell them apart.
func (s *Store) others(ctx context.Context, locks, known []upstream.Lock) []upstream.Lock {
	names, _ := s.Registered(ctx, append(upstream.Daemons(locks), upstream.Daemons(known)...))
	mine, seen := false, map[upstream.Registration]bool{}
	for i := range known {
		mine = mine || known[i].Mine
		if r, ok := names[known[i].Daemon]; ok {
			seen[r] = true
		}
	}
	return slices.DeleteFunc(locks, func(l upstream.Lock) bool {
		return l.Mine && mine || seen[names[l.Daemon]]
	})
}
