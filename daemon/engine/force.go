package engine

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// Access is a set of users: by uid, and by the gid of a group that they are in.
type Access struct{ Users, Groups []int }

// includes reports whether the user of p is in the set.
func (a *Access) includes(p *Peer) bool {
	inGroup := func(g int) bool { return slices.Contains(a.Groups, g) }
	return slices.Contains(a.Users, p.UID) || inGroup(p.GID) || slices.ContainsFunc(p.Groups, inGroup)
}

// SetOperators sets the users who may unlock by force.
func (e *Engine) SetOperators(a Access) { e.operators.Store(&a) }

// MayUnlock reports whether p may unlock by force.
func (e *Engine) MayUnlock(p *Peer) bool { return e.operators.Load().includes(p) }

// Force ends the holds of a key, on behalf of by: see cache.Table.Force. The observer is told of
// each.
func (e *Engine) Force(key string, permit bool, fence uint64, by Peer) (
	ended []cache.Held, free int64,
) {
	now := e.clock()
	a := getFollowUp()
	defer putFollowUp(a)
	ended, free = e.force(key, permit, fence, by, now, a)
	e.finish(a, now, nil)
	return ended, free
}

func (e *Engine) force(key string, permit bool, fence uint64, by Peer, now int64, a *followUp) (
	ended []cache.Held, free int64,
) {
	sh := e.lock(shardOf(key))
	ended, free = sh.table.Force(key, permit, fence, now, &sh.out)
	e.carryOutAndUnlock(sh, now, a)
	for i := range ended {
		if e.observer != nil {
			e.observer.Unlocked(&ended[i], by)
		}
	}
	return ended, free
}

// forceUnlock handles a force-unlock.
func (s *Session) forceUnlock(q *protocol.Request, now int64, a *followUp) {
	if !s.engine.MayUnlock(&s.peer) {
		if o := s.engine.observer; o != nil {
			o.UnlockDenied(s.peer)
		}
		s.refuse(q.ID, protocol.Denied, "only root, the daemon's own user and operators may "+
			"unlock by force", a)
		return
	}
	ended, _ := s.engine.force(string(q.Key), q.Mode == protocol.Permit, q.Fence, s.peer, now, a)
	s.write(a, func(b []byte) []byte {
		return protocol.AppendUnlocked(b, q.ID, uint64(len(ended)))
	})
}
