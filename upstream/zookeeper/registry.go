package zookeeper

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// registered returns the path of the entry of the daemon that has session id: an ephemeral node
// beside the session's own node. The own node cannot be the entry, because each transaction
// writes it.
func (s *Store) registered(id string) string {
	return s.cfg.Chroot + "/" + internalDir + "/daemon-" + id
}

// Register writes the entry, which ends with the session.
func (s *Store) Register(ctx context.Context, r upstream.Registration, _ time.Duration) error {
	se, err := s.session()
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	path, data := s.registered(sessionName(se.id)), []byte(r.Encode())
	// This call does not count as a confirmation of the session, so it does not extend the
	// deadline.
	if err = se.set(ctx, path, data, -1, false); err == errNoNode {
		err = se.create(ctx, path, data, zk.FlagEphemeral, false)
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
	err = se.delete(ctx, s.registered(sessionName(se.id)), -1, false)
	if err != nil && err != errNoNode {
		return fmt.Errorf("unregister: %w", s.cfg.explain(err))
	}
	return nil
}

// Registered reads the entries, listAtOnce at a time.
func (s *Store) Registered(ctx context.Context, ids []string) (
	map[string]upstream.Registration, error) {
	se, err := s.session()
	if err != nil {
		return nil, fmt.Errorf("read registrations: %w", err)
	}
	ids = slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !isSessionName(id) })
	found := make(map[string]upstream.Registration, len(ids))
	for part := range slices.Chunk(ids, listAtOnce) {
		entries, errs := each(part, func(id string) (content, error) {
			return se.get(ctx, s.registered(id), false)
		})
		for i, id := range part {
			if errs[i] != nil && errs[i] != errNoNode {
				return found, fmt.Errorf("read registrations: %w", s.cfg.explain(errs[i]))
			}
			if r, ok := upstream.ParseRegistration(string(entries[i].data)); ok {
				found[id] = r
			}
		}
	}
	return found, nil
}

// Holders reads one key at the server that this store is connected to. Only the holders' daemons
// know Held: a node shows when it was created, and its owner may have waited since.
func (s *Store) Holders(ctx context.Context, key string, mode cache.Mode, limit int) (
	[]upstream.Lock, error) {
	se, err := s.session()
	if err != nil || limit < 1 {
		return nil, err
	}
	var locks []upstream.Lock
	if mode == cache.Permit {
		locks, err = se.heldPermits(ctx, s.permitsOf(key), key, node{}, limit)
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

func (se *session) lockHolders(ctx context.Context, key string, limit int) (
	locks []upstream.Lock, err error) {
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
	for _, reader := range q[min(1, n):n] { // all may have left since the first was read
		one := first
		one.Base, one.Daemon, one.Token = 0, sessionName(reader.sid), reader.token
		one.Holder, one.Mine = "session "+one.Daemon, reader.sid == se.id
		locks = append(locks, one)
	}
	return locks, nil
}
