package zookeeper

import (
	"context"

	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// Sweep deletes the nodes of this store's session whose tokens are not known. This session made
// all of its nodes, so it need not list them.
func (s *Store) Sweep(ctx context.Context, known func(key string, token uint64) bool) (
	removed int, err error) {
	se, err := s.session()
	if err != nil {
		return 0, err
	}
	se.mu.Lock()
	var lost []*lockNode
	for id, g := range se.lockNodes {
		if !known(id.key, id.token) {
			lost = append(lost, g)
		}
	}
	se.mu.Unlock()
	unresolved := se.find(ctx, lost)
	for _, g := range lost {
		ok, err := se.sweepOne(ctx, g)
		if err != nil {
			return removed, s.cfg.explain(err)
		}
		if ok {
			removed++
		}
	}
	return removed, s.cfg.explain(unresolved)
}

func (se *session) sweepOne(ctx context.Context, g *lockNode) (removed bool, err error) {
	se.mu.Lock()
	present := se.lockNodes[g.nodeID] == g && g.name != ""
	se.mu.Unlock()
	if !present { // it does not exist, or the next sweep resolves it
		return false, nil
	}
	se.leave(g, true)
	err = se.delete(ctx, g.path(), -1, true)
	switch {
	case err == nil, err == errNoNode:
		se.remove(g)
	case outcome(err) != driverkit.Unknown:
		se.leave(g, false)
	}
	if err == errNoNode {
		return false, nil
	}
	return err == nil, err
}
