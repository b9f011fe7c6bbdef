package redis

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"
)

// addWait makes a pipeline that grants or extends leases wait for the replicas. WAIT counts the
// writes of its own connection, so it must be in the same pipeline.
func (s *Store) addWait(pl *pipeline) {
	if !pl.grants {
		return
	}
	ms := s.cfg.WaitTimeout.Milliseconds()
	if n := s.cfg.WaitReplicas; n > 0 {
		pl.waitReply = goredis.NewIntCmd(context.Background(), "wait", n, ms)
		pl.cmds = append(pl.cmds, pl.waitReply)
	}
	if a := s.cfg.WaitAOF; a != (AOF{}) {
		local := 0
		if a.Local {
			local = 1
		}
		pl.aofReply = goredis.NewIntSliceCmd(context.Background(), "waitaof", local, a.Replicas, ms)
		pl.cmds = append(pl.cmds, pl.aofReply)
	}
}

// readWait reads how many replicas have confirmed the writes.
func (s *Store) readWait(pl *pipeline) {
	if pl.waitReply != nil {
		switch n, err := pl.waitReply.Result(); {
		case err != nil:
			pl.unconfirmed = fmt.Errorf("%w: wait_replicas: %w", ErrAcks, err)
		case n < int64(s.cfg.WaitReplicas):
			pl.unconfirmed = fmt.Errorf("%w: %d of %d replicas have it after %v (wait_replicas, "+
				"wait_timeout)", ErrAcks, n, s.cfg.WaitReplicas, s.cfg.WaitTimeout)
		}
	}
	if pl.aofReply == nil || pl.unconfirmed != nil {
		return
	}
	n, err := pl.aofReply.Result()
	a := s.cfg.WaitAOF
	switch {
	case err != nil:
		pl.unconfirmed = fmt.Errorf("%w: wait_aof: %w", ErrAcks, err)
	case len(n) != 2 || a.Local && n[0] < 1 || n[1] < int64(a.Replicas):
		pl.unconfirmed = fmt.Errorf("%w: on the disks of %v (master, replicas) after %v, not of "+
			"%v (wait_aof, wait_timeout)", ErrAcks, n, s.cfg.WaitTimeout, a)
	}
}
