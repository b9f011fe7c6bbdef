package zookeeper

import (
	"context"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// listPermits adds to locks the permits that are held, from cursor on: "/" and the
// name of a semaphore's node, "/" and that of a permit's. No lock's name has one.
func (se *session) listPermits(ctx context.Context, prefix, cursor string, limit int, locks []upstream.Lock) ([]upstream.Lock, string, error) {
	dir := se.store.cfg.Chroot + "/" + permitsDir
	names, err := se.names(ctx, dir, cursor != "")
	if err != nil {
		return nil, "", err
	}
	from, after, _ := strings.Cut(strings.TrimPrefix(cursor, "/"), "/")
	names = slices.DeleteFunc(names, func(n string) bool { return n < from || !strings.HasPrefix(unescape(n), prefix) })
	next := "/"
	for _, name := range names {
		q, err := se.permits(ctx, dir+"/"+name, false)
		if err != nil {
			return nil, "", se.store.cfg.explain(err)
		}
		last, resumed := parsePermit(after)
		resumed = resumed && name == from
		inside, waiters := se.inside(unescape(name), q)
		inside = slices.DeleteFunc(inside, func(n node) bool { return resumed && bySeq(n, last) <= 0 })
		for part := range slices.Chunk(inside, listAtOnce) {
			found, err := se.describePermits(ctx, dir+"/"+name, part)
			if err != nil {
				return nil, "", se.store.cfg.explain(err)
			}
			for i, l := range found {
				if l.Name == "" {
					continue // it has just gone
				}
				if len(locks) == limit {
					return locks, next, nil
				}
				l.Key, l.Waiters = unescape(name), waiters
				locks = append(locks, l)
				next = "/" + name + "/" + part[i].name
			}
		}
	}
	return locks, "", nil
}

// inside is those of a queue who have permits: as far as one knows of other hosts,
// all who may have one.
func (se *session) inside(key string, q []node) (inside []node, waiters int) {
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

// describePermits reads permits' nodes. One that has gone has no name.
func (se *session) describePermits(ctx context.Context, parent string, part []node) ([]upstream.Lock, error) {
	found := make([]upstream.Lock, len(part))
	errs := make([]error, len(part))
	together(len(part), func(i int) {
		path := parent + "/" + part[i].name
		var stat *zk.Stat
		data, err := call(ctx, se, false, func(c *zk.Conn) (data []byte, err error) {
			data, stat, err = c.Get(path)
			return data, err
		})
		if err == errGone {
			return
		}
		if errs[i] = err; err == nil {
			found[i] = upstream.Lock{Name: path, Mode: cache.Permit, Holder: holderOf(stat.EphemeralOwner, part[i], data),
				Mine: part[i].sid == se.id, Foreign: part[i].sid != stat.EphemeralOwner, Left: -1, Base: uint64(stat.Czxid)}
			if !found[i].Foreign {
				found[i].Daemon, found[i].Token = sessionName(part[i].sid), part[i].token
			}
		}
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
