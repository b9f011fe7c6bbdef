package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/cache"
)

const (
	// A lock that is held for longer than watchAfter is watched. Most locks are released earlier.
	watchAfter = 100 * time.Millisecond
	checkTick  = 50 * time.Millisecond
	// In one interval, at most maxNewWatches keys become watched, and at most maxChecked are read.
	maxNewWatches = 100
	maxChecked    = 256
)

// checkKeys checks each of our keys after its watch has been created. It also checks keys that are
// held for long, once in a third of the session's TTL, or as often as maxChecked allows. It sends
// hints about the results.
func (s *Store) checkKeys(ctx context.Context) {
	timer := time.NewTimer(checkTick)
	defer timer.Stop()
	ticking := true
	for {
		var due []*lockKey
		select {
		case <-ctx.Done():
			return
		case <-s.lockKeys.checking:
			due = s.lockKeys.made()
			if !ticking {
				timer.Reset(checkTick)
				ticking = true
			}
		case <-timer.C:
			due, ticking = s.lockKeys.due(s.clock(), time.Duration(s.granted.Load()))
			if ticking {
				timer.Reset(checkTick)
			}
		}
		for len(due) > 0 && ctx.Err() == nil {
			n := s.fitting(due)
			s.checkNow(ctx, due[:n])
			due = due[n:]
		}
	}
}

// fitting returns how many of gs one transaction can check.
func (s *Store) fitting(gs []*lockKey) int {
	room := int(s.maxOps.Load())
	for n, g := range gs {
		if room -= g.checkOps(); room < 0 && n > 0 {
			return n
		}
	}
	return len(gs)
}

// made returns the keys whose watches have just been created.
func (t *lockKeys) made() []*lockKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	gs := t.check
	t.check = nil
	return gs
}

// due requests watches of the keys that have been held for long enough, and returns the keys that
// are due for a check. more reports whether others will be due later.
func (t *lockKeys) due(now int64, ttl time.Duration) (due []*lockKey, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for added := 0; n < len(t.recent) && added < maxNewWatches; n++ {
		g := t.recent[n]
		if g.gone {
			continue
		}
		if now-g.since < int64(watchAfter) {
			break
		}
		added++
		t.longHeld = append(t.longHeld, g)
		g.longIndex = len(t.longHeld)
		t.watchLocked(g)
	}
	rest := copy(t.recent, t.recent[n:])
	clear(t.recent[rest:])
	t.recent = t.recent[:rest]
	for range min(maxChecked, (len(t.longHeld)*int(checkTick)+int(ttl/3)-1)/int(ttl/3)) {
		if t.next >= len(t.longHeld) {
			t.next = 0
		}
		if g := t.longHeld[t.next]; g.permit == nil || g.permit.turn(now, ttl) {
			due = append(due, g)
		}
		t.next++
	}
	return due, len(t.recent)+len(t.longHeld) > 0
}

// checkNow reads the state of some of our keys.
func (s *Store) checkNow(ctx context.Context, gs []*lockKey) {
	steps := make([]step, 0, len(gs))
	var all []*pb.RequestOp
	var at []int
	t := &s.lockKeys
	t.mu.Lock()
	for i, g := range gs {
		if g.gone || g.leaving || g.sess.lost.Load() {
			continue
		}
		st := step{i: i, action: actCheck, mode: g.mode, keyState: g.keyState}
		if g.held {
			st.action = actRenew
		}
		steps, at = append(steps, st), append(at, len(all))
		if g.permit != nil {
			all = append(all, g.permitReads()...)
			continue
		}
		all = append(all, st.reads()...)
	}
	t.mu.Unlock()
	if len(steps) == 0 {
		return
	}
	r, err := s.txn(ctx, "check keys", &pb.TxnRequest{Success: all})
	if err != nil {
		return // the next check will read them
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range steps {
		if g := gs[steps[i].i]; !g.gone && !g.leaving {
			if g.permit != nil {
				s.checkedPermitLocked(g, &steps[i], r.Responses[at[i]:], r.Header.Revision)
				continue
			}
			s.checkedLocked(g, &steps[i], r.Responses[at[i]:])
		}
	}
}

// checkedLocked gives hints about the result of a check of g. It is called with lockKeys.mu held.
func (s *Store) checkedLocked(g *lockKey, st *step, r []*pb.ResponseOp) {
	if st.action == actCheck {
		if !g.held && g.pred == st.pred && !st.unchanged(r) {
			s.hint(cache.HintAvailable, g)
		}
		return
	}
	if g.mode != st.mode { // downgraded meanwhile
		return
	}
	switch p, held := st.stillHeld(r); {
	case !held:
		s.hint(cache.HintGone, g)
	case p.contended:
		s.hint(cache.HintContended, g)
	case p.tried:
		s.hint(cache.HintTried, g)
	}
}
