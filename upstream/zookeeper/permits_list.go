package zookeeper

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listPermits adds the permits that are held to locks, from cursor on: "/" and the name of a
// semaphore's node, "/" and the name of a permit's node. A cursor for locks has no "/".
func (se *session) listPermits(ctx context.Context, prefix, cursor string, limit int,
	locks []upstream.Lock) ([]upstream.Lock, string, error) {
	dir := se.store.cfg.Chroot + "/" + permitsDir
	names, err := se.names(ctx, dir, cursor != "")
	if err != nil {
		return nil, "", err
	}
	from, after, _ := strings.Cut(strings.TrimPrefix(cursor, "/"), "/")
	names = slices.DeleteFunc(names, func(n string) bool {
		return n < from || !strings.HasPrefix(unescape(n), prefix)
	})
	next := "/"
	for _, name := range names {
		last, resumed := parsePermit(after)
		if !resumed || name != from {
			last.name = ""
		}
		found, err := se.heldPermits(ctx, dir+"/"+name, unescape(name), last, limit-len(locks)+1)
		if err != nil {
			return nil, "", se.store.cfg.explain(err)
		}
		for _, l := range found {
			if len(locks) == limit {
				return locks, next, nil
			}
			locks = append(locks, l)
			next = strings.TrimPrefix(l.Name, dir)
		}
	}
	return locks, "", nil
}

// heldPermits reads at most limit permits of a semaphore that are held, behind the node last if
// that has a name.
func (se *session) heldPermits(ctx context.Context, parent, key string, last node, limit int) (
	locks []upstream.Lock, err error) {
	q, err := se.permits(ctx, parent)
	if err != nil {
		return nil, err
	}
	inside, waiters := se.splitPermits(key, q)
	inside = slices.DeleteFunc(inside, func(n node) bool {
		return last.name != "" && bySeq(n, last) <= 0
	})
	for len(inside) > 0 && len(locks) < limit {
		part := inside[:min(listAtOnce, len(inside), limit-len(locks))]
		inside = inside[len(part):]
		found, errs := each(part, func(n node) (upstream.Lock, error) {
			return se.describePermit(ctx, parent+"/"+n.name, n)
		})
		if err := cmp.Or(errs...); err != nil {
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

// splitPermits returns the nodes of a queue that hold permits, and the number of waiters. A node
// of another host counts as a holder if it may hold one.
func (se *session) splitPermits(key string, q []node) (inside []node, waiters int) {
	se.mu.Lock()
	defer se.mu.Unlock()
	for i, n := range q {
		g := se.lockNodes[nodeID{key, n.token, true}]
		mine := n.sid == se.id && g != nil
		switch {
		case mine && g.held, i < int(n.limit) && !(mine && g.permit.queued):
			inside = append(inside, n)
		case !n.try:
			waiters++
		}
	}
	return inside, waiters
}

// describePermit reads a permit's node. If it does not exist any more, the Lock has no Name.
func (se *session) describePermit(ctx context.Context, path string, n node) (
	l upstream.Lock, err error) {
	c, err := se.get(ctx, path, false)
	if err == errNoNode {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	l = se.heldBy(n, c)
	l.Name, l.Mode = path, cache.Permit
	return l, nil
}
