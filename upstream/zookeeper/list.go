package zookeeper

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listAtOnce is the number of locks that List reads concurrently.
const listAtOnce = 32

// List returns locks in the order of their names in ZooKeeper, including foreign ones: all nodes
// that have children with a number at the end. The permits of all semaphores follow. It reads
// from the server that this store is connected to.
func (s *Store) List(ctx context.Context, prefix, cursor string, limit int) (
	locks []upstream.Lock, next string, err error) {
	se, err := s.session()
	if err != nil {
		return nil, "", err
	}
	if strings.HasPrefix(cursor, "/") {
		return se.listPermits(ctx, prefix, cursor, limit, nil)
	}
	names, err := se.names(ctx, s.root(), cursor != "")
	if err != nil {
		return nil, "", err
	}
	names = slices.DeleteFunc(names, func(n string) bool {
		key, ok := keyOf(n)
		return !ok || n <= cursor || !strings.HasPrefix(key, prefix)
	})
	for part := range slices.Chunk(names, listAtOnce) {
		found, errs := each(part, func(name string) (upstream.Lock, error) {
			return se.describe(ctx, name)
		})
		if err := cmp.Or(errs...); err != nil {
			return nil, "", s.cfg.explain(err)
		}
		for i := range part {
			if found[i].Key == "" {
				continue
			}
			if len(locks) == limit {
				return locks, next, nil
			}
			locks = append(locks, found[i])
			next = part[i]
		}
	}
	return se.listPermits(ctx, prefix, "", limit, locks)
}

// describe reads one lock. Its Key is empty if the lock is not held.
func (se *session) describe(ctx context.Context, name string) (l upstream.Lock, err error) {
	parent := se.store.cfg.Chroot + "/" + name
	for range attempts {
		q, err := se.queue(ctx, parent, false)
		if err != nil || len(q) == 0 {
			return upstream.Lock{}, err
		}
		first := q[0]
		n, err := se.get(ctx, parent+"/"+first.name, false)
		if err == errNoNode {
			continue
		}
		if err != nil {
			return upstream.Lock{}, err
		}
		l = se.heldBy(first, n)
		l.Key, _ = keyOf(name)
		l.Name = parent
		if first.shared || first.ours && dataShared(n.data) {
			l.Mode = cache.Shared
		}
		l.Waiters = len(q) - holders(q, l.Mode)
		return l, nil
	}
	return upstream.Lock{}, nil
}

// heldBy describes the holder of node n, which has the content c.
func (se *session) heldBy(n node, c content) upstream.Lock {
	l := upstream.Lock{Left: -1, Base: uint64(c.stat.Czxid), Holder: holderOf(c, n),
		Foreign: !n.ours || n.sid != c.stat.EphemeralOwner}
	if !l.Foreign {
		l.Mine, l.Daemon, l.Token = n.sid == se.id, sessionName(n.sid), n.token
	}
	return l
}

// holderOf describes the holder of a lock: its session, and the host if known.
func holderOf(c content, n node) string {
	session := c.stat.EphemeralOwner
	if session == 0 {
		return "no session: " + n.name
	}
	h := "session " + sessionName(session)
	if host := dataHost(c.data); n.ours && host != "" {
		h += " of " + host
	}
	return h
}
