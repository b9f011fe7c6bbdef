package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/cache"
)

const (
	// A lock that is held for longer than ripe is watched; most are not.
	ripe     = 100 * time.Millisecond
	lookTick = 50 * time.Millisecond
	// In one interval, at most ripenMost keys become watched, and at most lookMost are read.
	ripenMost = 100
	lookMost  = 256
)

// look reads, on its own, what our keys look like: after their watches have been
// made, and of all that are held for long once in a third of the session's TTL, or
// as often as lookMost allows. It says what it has found by hints.
func (s *Store) look(ctx context.Context) {
	timer := time.NewTimer(lookTick)
	defer timer.Stop()
	ticking := true
	for {
		var due []*lockKey
		select {
		case <-ctx.Done():
			return
		case <-s.lockKeys.looking:
			due = s.lockKeys.made()
			if !ticking {
				timer.Reset(lookTick)
				ticking = true
			}
		case <-timer.C:
			due, ticking = s.lockKeys.due(s.clock(), time.Duration(s.granted.Load()))
			if ticking {
				timer.Reset(lookTick)
			}
		}
		for len(due) > 0 && ctx.Err() == nil {
			n := s.lookable(due)
			s.lookAt(ctx, due[:n])
			due = due[n:]
		}
	}
}

// lookable is how many of gs are looked at in one transaction.
func (s *Store) lookable(gs []*lockKey) int {
	room := int(s.most.Load())
	for n, g := range gs {
		if room -= g.lookOps(); room < 0 && n > 0 {
			return n
		}
	}
	return len(gs)
}

// made returns those whose watches have just been made.
func (t *lockKeys) made() []*lockKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	gs := t.check
	t.check = nil
	return gs
}

// due has those watched that are ripe, and returns those whose turn it is to be
// looked at. more says whether there will be any later.
func (t *lockKeys) due(now int64, ttl time.Duration) (due []*lockKey, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for ripened := 0; n < len(t.young) && ripened < ripenMost; n++ {
		g := t.young[n]
		if g.gone {
			continue
		}
		if now-g.since < int64(ripe) {
			break
		}
		ripened++
		t.old = append(t.old, g)
		g.old = len(t.old)
		t.watchLocked(g)
	}
	rest := copy(t.young, t.young[n:])
	clear(t.young[rest:])
	t.young = t.young[:rest]
	for range min(lookMost, (len(t.old)*int(lookTick)+int(ttl/3)-1)/int(ttl/3)) {
		if t.next >= len(t.old) {
			t.next = 0
		}
		if g := t.old[t.next]; g.permit == nil || g.permit.turn(now, ttl) {
			due = append(due, g)
		}
		t.next++
	}
	return due, len(t.young)+len(t.old) > 0
}

// lookAt reads what some of our keys look like.
func (s *Store) lookAt(ctx context.Context, gs []*lockKey) {
	steps := make([]step, 0, len(gs))
	var all []*pb.RequestOp
	var at []int
	t := &s.lockKeys
	t.mu.Lock()
	for i, g := range gs {
		if g.gone || g.leaving || g.sess.lost.Load() {
			continue
		}
		st := step{i: i, plan: planCheck, mode: g.mode, dir: g.dir, key: g.key, rev: g.rev, pred: g.pred, predRev: g.predRev, predMod: g.predMod}
		if g.held {
			st.plan = planRenew
		}
		steps, at = append(steps, st), append(at, len(all))
		if g.permit != nil {
			all = append(all, g.permitLook()...)
			continue
		}
		all = append(all, st.reads()...)
	}
	t.mu.Unlock()
	if len(steps) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var r *pb.TxnResponse
	if _, err := s.client.call(ctx, func(ctx context.Context) (err error) {
		r, err = s.client.kv.Txn(ctx, &pb.TxnRequest{Success: all})
		return err
	}); err != nil {
		return // the next time
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range steps {
		if g := gs[steps[i].i]; !g.gone && !g.leaving {
			if g.permit != nil {
				s.sawPermitLocked(g, &steps[i], r.Responses[at[i]:], r.Header.Revision)
				continue
			}
			s.sawLocked(g, &steps[i], r.Responses[at[i]:])
		}
	}
}

// sawLocked says by hints what has been seen of g. It is called with lockKeys.mu held.
func (s *Store) sawLocked(g *lockKey, st *step, r []*pb.ResponseOp) {
	if st.plan == planCheck {
		if !g.held && g.pred == st.pred && !st.unchanged(r) {
			s.hint(cache.HintAvailable, g.lock)
		}
		return
	}
	if g.mode != st.mode { // downgraded meanwhile
		return
	}
	switch p, held := st.stillHeld(r); {
	case !held:
		s.hint(cache.HintGone, g.lock)
	case p.wanted:
		s.hint(cache.HintContended, g.lock)
	case p.tried:
		s.hint(cache.HintTried, g.lock)
	}
}
