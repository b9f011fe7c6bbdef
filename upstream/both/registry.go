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

var (
	_ upstream.Registrar = (*Store)(nil)
	_ upstream.Answerer  = (*Store)(nil)
)

// Answer makes f answer the questions that other daemons ask through either store. Tokens have the same
// numbers in both.
func (s *Store) Answer(f upstream.HeldFor) {
	for _, st := range []upstream.Store{s.old, s.new} {
		if a, ok := st.(upstream.Answerer); ok {
			a.Answer(f)
		}
	}
}

// registrars are those of the two that have registrations.
func (s *Store) registrars() (rs []upstream.Registrar) {
	for _, st := range []upstream.Store{s.old, s.new} {
		if r, ok := st.(upstream.Registrar); ok {
			rs = append(rs, r)
		}
	}
	return rs
}

// Register registers with both: other hosts may use either alone.
func (s *Store) Register(ctx context.Context, r upstream.Registration, ttl time.Duration) (err error) {
	for _, st := range s.registrars() {
		err = errors.Join(err, st.Register(ctx, r, ttl))
	}
	return err
}

// Unregister does so with both.
func (s *Store) Unregister(ctx context.Context) (err error) {
	for _, st := range s.registrars() {
		err = errors.Join(err, st.Unregister(ctx))
	}
	return err
}

// Registered returns what either knows.
func (s *Store) Registered(ctx context.Context, ids []string) (map[string]upstream.Registration, error) {
	found := map[string]upstream.Registration{}
	var errs error
	for _, st := range s.registrars() {
		some, err := st.Registered(ctx, ids)
		maps.Copy(found, some)
		errs = errors.Join(errs, err)
	}
	return found, errs
}

// Holders returns the holders in the old store, and those in the new one whose hosts hold nothing in
// the old one. A host that uses both stores holds a key in both.
func (s *Store) Holders(ctx context.Context, key string, mode cache.Mode, limit int) (locks []upstream.Lock, err error) {
	var errs error
	for _, st := range s.registrars() {
		some, err := st.Holders(ctx, key, mode, limit)
		if errs = errors.Join(errs, err); len(locks) > 0 && len(some) > 0 {
			some = s.others(ctx, some, locks)
		}
		locks = append(locks, some...)
	}
	if len(locks) > 0 {
		errs = nil
	}
	return locks[:min(limit, len(locks))], errs
}

// others are those of locks whose daemons hold none of known. Daemons without an entry are not told
// apart, and stay.
func (s *Store) others(ctx context.Context, locks, known []upstream.Lock) []upstream.Lock {
	names, _ := s.Registered(ctx, append(upstream.Daemons(locks), upstream.Daemons(known)...))
	mine, seen := false, map[upstream.Registration]bool{}
	for i := range known {
		mine = mine || known[i].Mine
		if r, ok := names[known[i].Daemon]; ok {
			seen[r] = true
		}
	}
	return slices.DeleteFunc(locks, func(l upstream.Lock) bool { return l.Mine && mine || seen[names[l.Daemon]] })
}
