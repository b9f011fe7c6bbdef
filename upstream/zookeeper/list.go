package zookeeper

import (
	"context"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listAtOnce is how many locks List reads together.
const listAtOnce = 32

// List returns locks in the order of their keys' names in ZooKeeper, foreign ones
// too: whatever has children that end in a number. Behind them come the permits of
// all semaphores. It reads from the one server that this store is connected to.
func (s *Store) List(ctx context.Context, prefix, cursor string, limit int) (locks []upstream.Lock, next string, err error) {
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
		found := make([]upstream.Lock, len(part))
		errs := make([]error, len(part))
		together(len(part), func(i int) { found[i], errs[i] = se.describe(ctx, part[i]) })
		for i := range part {
			if errs[i] != nil {
				return nil, "", s.cfg.explain(errs[i])
			}
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

// describe reads one lock; its Key is empty when nobody holds it.
func (se *session) describe(ctx context.Context, name string) (l upstream.Lock, err error) {
	parent := se.store.cfg.Chroot + "/" + name
	for range attempts {
		q, err := se.queue(ctx, parent, false)
		if err != nil || len(q) == 0 {
			return upstream.Lock{}, err
		}
		first, stat := q[0], (*zk.Stat)(nil)
		data, err := call(ctx, se, false, func(c *zk.Conn) (data []byte, err error) {
			data, stat, err = c.Get(parent + "/" + first.name)
			return data, err
		})
		if err == errGone {
			continue
		}
		if err != nil {
			return upstream.Lock{}, err
		}
		l.Key, _ = keyOf(name)
		l.Name, l.Left, l.Base = parent, -1, uint64(stat.Czxid)
		l.Foreign = !first.ours || first.sid != stat.EphemeralOwner
		if first.shared || first.ours && dataShared(data) {
			l.Mode = cache.Shared
		}
		l.Holder = holderOf(stat.EphemeralOwner, first, data)
		l.Mine = !l.Foreign && first.sid == se.id
		l.Waiters = len(q) - holders(q, l.Mode)
		if !l.Foreign {
			l.Daemon, l.Token = sessionName(first.sid), first.token
		}
		return l, nil
	}
	return upstream.Lock{}, nil
}

// holderOf names who holds a lock: its session, and the host where it says so.
func holderOf(session int64, n node, data []byte) string {
	if session == 0 {
		return "nobody's session: " + n.name
	}
	h := "session " + sessionName(session)
	if host := dataHost(data); n.ours && host != "" {
		h += " of " + host
	}
	return h
}

// holders is how many of a queue hold the lock: one, or the readers before the
// first that is not one.
func holders(q []node, mode cache.Mode) int {
	n := 1
	for mode == cache.Shared && n < len(q) && q[n].ours && q[n].shared {
		n++
	}
	return n
}

// Sweep removes the nodes of this store's session with tokens that are not known.
// All that hangs on the session was made here, so nothing has to be listed.
func (s *Store) Sweep(ctx context.Context, known func(key string, token uint64) bool) (removed int, err error) {
	se, err := s.session()
	if err != nil {
		return 0, err
	}
	se.mu.Lock()
	var lost []*lockNode
	nameless := false
	for id, g := range se.lockNodes {
		if !known(id.key, id.token) {
			lost = append(lost, g)
			nameless = nameless || g.name == ""
		}
	}
	se.mu.Unlock()
	if nameless {
		if err := se.confirm(ctx); err != nil {
			return 0, s.cfg.explain(err)
		}
	}
	for _, g := range lost {
		ok, err := se.sweepOne(ctx, g)
		if err != nil {
			return removed, s.cfg.explain(err)
		}
		if ok {
			removed++
		}
	}
	return removed, nil
}

func (se *session) sweepOne(ctx context.Context, g *lockNode) (removed bool, err error) {
	se.mu.Lock()
	name := g.name
	se.mu.Unlock()
	if name == "" {
		if se.adrift.Load() > 0 {
			return false, nil // next time
		}
		if err := se.find(ctx, g); err != nil || se.lockNode(g.nodeID) != g {
			return false, err
		}
	}
	se.leave(g, true)
	_, err = call(ctx, se, true, func(c *zk.Conn) (any, error) { return nil, c.Delete(g.path(), -1) })
	switch {
	case err == nil, err == errGone:
		se.remove(g)
	case judge(err) != unknown:
		se.leave(g, false)
	}
	if err == errGone {
		return false, nil
	}
	return err == nil, err
}
