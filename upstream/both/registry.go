package both

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var _ upstream.Registrar = (*Store)(nil)

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

// Holders returns the holders in the old store and then those in the new one. A host that uses both
// is there twice.
func (s *Store) Holders(ctx context.Context, key string, mode cache.Mode, limit int) (locks []upstream.Lock, err error) {
	var errs error
	for _, st := range s.registrars() {
		some, err := st.Holders(ctx, key, mode, limit)
		locks, errs = append(locks, some...), errors.Join(errs, err)
	}
	if len(locks) > 0 {
		errs = nil
	}
	return locks[:min(2*limit, len(locks))], errs
}
