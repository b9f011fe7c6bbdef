package zookeeper

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var _ upstream.Registrar = (*Store)(nil)

// registered returns the path of the entry of the daemon that has session id: an ephemeral node beside
// the session's own node. The own node itself would not do: each transaction writes it.
func (s *Store) registered(id string) string { return s.cfg.Chroot + "/" + own + "/daemon-" + id }

// Register writes the entry, which ends with the session.
func (s *Store) Register(ctx context.Context, r upstream.Registration, _ time.Duration) error {
	se, err := s.session()
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	path, data := s.registered(sessionName(se.id)), []byte(r.Encode())
	// This call does not count as a confirmation of the session, so it does not extend the deadline.
	_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) { return c.Set(path, data, -1) })
	if err == errGone {
		_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) {
			return c.Create(path, data, zk.FlagEphemeral, s.acl)
		})
	}
	if err != nil && err != zk.ErrNodeExists {
		return fmt.Errorf("register: %w", s.cfg.explain(err))
	}
	return nil
}

// Unregister deletes the entry of the present session.
func (s *Store) Unregister(ctx context.Context) error {
	se, err := s.session()
	if err != nil {
		return fmt.Errorf("unregister: %w", err)
	}
	path := s.registered(sessionName(se.id))
	_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) { return nil, c.Delete(path, -1) })
	if err != nil && err != errGone {
		return fmt.Errorf("unregister: %w", s.cfg.explain(err))
	}
	return nil
}

// Registered reads the entries, listAtOnce at a time.
func (s *Store) Registered(ctx context.Context, ids []string) (map[string]upstream.Registration, error) {
	se, err := s.session()
	if err != nil {
		return nil, fmt.Errorf("read registrations: %w", err)
	}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !isSessionName(id) })
	found := make(map[string]upstream.Registration, len(ids))
	for len(ids) > 0 {
		part := ids[:min(listAtOnce, len(ids))]
		ids = ids[len(part):]
		texts, errs := make([][]byte, len(part)), make([]error, len(part))
		together(len(part), func(i int) {
			texts[i], errs[i] = call(ctx, se, false, func(c *zk.Conn) ([]byte, error) {
				data, _, err := c.Get(s.registered(part[i]))
				return data, err
			})
		})
		for i, id := range part {
			if errs[i] != nil && errs[i] != errGone {
				return found, fmt.Errorf("read registrations: %w", s.cfg.explain(errs[i]))
			}
			if r, ok := upstream.ParseRegistration(string(texts[i])); ok {
				found[id] = r
			}
		}
	}
	return found, nil
}

// isSessionName reports whether id has the form that sessionName makes, and so is safe in a path.
func isSessionName(id string) bool {
	hex, ok := strings.CutPrefix(id, "0x")
	_, err := strconv.ParseUint(hex, 16, 64)
	return ok && err == nil && len(hex) == 16
}

// Holders reads one key at the server that this store is connected to. The holders' daemons have to
// be asked for Held, because a node's time is when it was created, and it may have waited since.
func (s *Store) Holders(ctx context.Context, key string, mode cache.Mode, limit int) ([]upstream.Lock, error) {
	se, err := s.session()
	if err != nil || limit < 1 {
		return nil, err
	}
	var locks []upstream.Lock
	if mode == cache.Permit {
		locks, err = se.permitHolders(ctx, key, limit)
	} else {
		locks, err = se.lockHolders(ctx, key, limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read the holder: %w", s.cfg.explain(err))
	}
	for i := range locks {
		locks[i].Asker = s
	}
	return locks, nil
}

func (se *session) permitHolders(ctx context.Context, key string, limit int) (locks []upstream.Lock, err error) {
	parent := se.store.permitsOf(key)
	q, err := se.permits(ctx, parent, false)
	if err != nil {
		return nil, err
	}
	inside, waiters := se.inside(key, q)
	for len(inside) > 0 && len(locks) < limit {
		part := inside[:min(listAtOnce, len(inside), limit-len(locks))]
		inside = inside[len(part):]
		found, err := se.describePermits(ctx, parent, part)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			if l.Name != "" { // empty: the permit has just been released
				l.Key, l.Waiters = key, waiters
				locks = append(locks, l)
			}
		}
	}
	return locks, nil
}

func (se *session) lockHolders(ctx context.Context, key string, limit int) (locks []upstream.Lock, err error) {
	parent := se.store.parentOf(key)
	first, err := se.describe(ctx, escape(key))
	if err != nil || first.Key == "" {
		return nil, err
	}
	first.Name = parent
	locks = append(locks, first)
	if first.Mode != cache.Shared || limit == 1 {
		return locks, nil
	}
	q, err := se.queue(ctx, parent, false)
	if err != nil {
		return nil, err
	}
	n := min(holders(q, first.Mode), limit)
	for _, reader := range q[min(1, len(q)):max(min(1, len(q)), n)] {
		one := first
		one.Base, one.Daemon, one.Token = 0, sessionName(reader.sid), reader.token
		one.Holder, one.Mine = "session "+one.Daemon, reader.sid == se.id
		locks = append(locks, one)
	}
	return locks, nil
}
