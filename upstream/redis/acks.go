package redis

import (
	"context"
	"fmt"

	goredis "github.com/redis/go-redis/v9"
)

// await lets a leg that gives leases end only when others have them too. WAIT is
// about what its own connection has written: it stands in the same pipeline.
func (s *Store) await(l *leg) {
	if !l.gives {
		return
	}
	ms := s.cfg.WaitTimeout.Milliseconds()
	if n := s.cfg.WaitReplicas; n > 0 {
		l.wait = goredis.NewIntCmd(context.Background(), "wait", n, ms)
		l.cmds = append(l.cmds, l.wait)
	}
	if a := s.cfg.WaitAOF; a != (AOF{}) {
		local := 0
		if a.Local {
			local = 1
		}
		l.aof = goredis.NewIntSliceCmd(context.Background(), "waitaof", local, a.Replicas, ms)
		l.cmds = append(l.cmds, l.aof)
	}
}

// acked reads what the others said.
func (s *Store) acked(l *leg) {
	if l.wait != nil {
		switch n, err := l.wait.Result(); {
		case err != nil:
			l.acks = fmt.Errorf("%w: wait_replicas: %w", ErrAcks, err)
		case n < int64(s.cfg.WaitReplicas):
			l.acks = fmt.Errorf("%w: %d of %d replicas have it after %v (wait_replicas, wait_timeout)", ErrAcks, n, s.cfg.WaitReplicas, s.cfg.WaitTimeout)
		}
	}
	if l.aof == nil || l.acks != nil {
		return
	}
	n, err := l.aof.Result()
	a := s.cfg.WaitAOF
	switch {
	case err != nil:
		l.acks = fmt.Errorf("%w: wait_aof: %w", ErrAcks, err)
	case len(n) != 2 || a.Local && n[0] < 1 || n[1] < int64(a.Replicas):
		l.acks = fmt.Errorf("%w: on the disks of %v (master, replicas) after %v, not of %v (wait_aof, wait_timeout)", ErrAcks, n, s.cfg.WaitTimeout, a)
	}
}
