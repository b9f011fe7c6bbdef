package engine

import "github.com/locksidecar/locksidecar/cache"

// Force ends the holds of a key: see cache.Table.Force.
func (e *Engine) Force(key string, permit bool, fence uint64) (ended []cache.Held, free int64) {
	now := e.clock()
	a := getFollowUp()
	defer putFollowUp(a)
	sh := e.lock(shardOf(key))
	ended, free = sh.table.Force(key, permit, fence, now, &sh.out)
	e.carryOutAndUnlock(sh, now, a)
	e.finish(a, now, nil)
	return ended, free
}
