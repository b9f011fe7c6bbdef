package zookeeper

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
)

const (
	// lookEvery is how often a lock that changes all the time is looked at.
	lookEvery = 100 * time.Millisecond
	// lookAtOnce is how many locks are looked at together.
	lookAtOnce = 64
)

// watch looks at the locks that we hold when they have changed: whether our node
// is still there, and whether somebody waits. It ends with ctx.
func (s *Store) watch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stirred:
		case <-timer.C:
		}
		if wait := s.lookRound(ctx); wait > 0 {
			timer.Reset(wait)
		}
	}
}

func (s *Store) stir() {
	select {
	case s.stirred <- struct{}{}:
	default:
	}
}

// lookRound looks at what is due and returns when there is more to do, 0 when
// nothing is known of.
func (s *Store) lookRound(ctx context.Context) time.Duration {
	se := s.present()
	if se == nil {
		return 0
	}
	se.expectQuestions()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	due, wait := se.due()
	jobs, more := se.duePermits()
	var wg sync.WaitGroup
	for _, job := range jobs {
		wg.Go(func() { job(ctx) })
	}
	for _, g := range due {
		wg.Go(func() {
			if se.look(ctx, g) != nil {
				se.mu.Lock()
				se.soilLocked(g)
				se.mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(due) == lookAtOnce || len(jobs) == lookAtOnce {
		return time.Millisecond
	}
	return sooner(wait, more)
}

// sooner is the shorter of two pauses; 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// due takes leases whose locks have to be looked at now.
func (se *session) due() (due []*lockNode, wait time.Duration) {
	now := time.Now()
	se.mu.Lock()
	defer se.mu.Unlock()
	if !se.ready || se.over { // the next connection calls again
		return nil, 0
	}
	for g := range se.dirty {
		if !g.held || g.leaving {
			continue
		}
		if left := lookEvery - now.Sub(g.looked); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		if len(due) < lookAtOnce {
			due = append(due, g)
		}
	}
	return due, wait
}

// look reads the children of a lock that we hold, and watches them on. What
// changed before this call was sent is seen.
func (se *session) look(ctx context.Context, g *lockNode) error {
	se.mu.Lock()
	delete(se.dirty, g)
	g.watched, g.looked = true, time.Now()
	guard := !g.guarded && g.held
	if guard {
		g.guarded = true
		se.byNode[g.path()] = append(se.byNode[g.path()], g)
	}
	se.mu.Unlock()
	if guard {
		// The children change all the time on a contended lock, and are not read each
		// time. That our node goes has to be known at once.
		if _, err := call(ctx, se, false, func(c *zk.Conn) (any, error) {
			se.watching.Store(true)
			_, _, _, err := c.GetW(g.path())
			return nil, err
		}); err != nil && err != errGone {
			se.mu.Lock()
			g.guarded = false
			unlist(se.byNode, g.path(), g)
			se.mu.Unlock()
			return err
		}
	}
	q, err := se.queue(ctx, g.parent, true)
	if err != nil {
		return err
	}
	at := place(q, se.id, g.token)
	se.mu.Lock()
	defer se.mu.Unlock()
	switch {
	case se.lockNodes[g.nodeID] != g || g.leaving:
	case at < 0:
		se.goneLocked(g)
	default:
		was := g.contended
		waits, tries := wanted(q, at, g.mode, se.id)
		switch g.contended = waits; {
		case waits && !was:
			se.store.hint(cache.HintContended, g.key)
		case tries:
			se.store.hint(cache.HintTried, g.key)
		}
	}
	return nil
}

// queue reads who holds a lock and who waits for it; nobody when it has no node.
func (se *session) queue(ctx context.Context, parent string, watch bool) ([]node, error) {
	names, err := se.children(ctx, parent, watch)
	if err == errGone {
		return nil, nil
	}
	return readQueue(names), err
}

func (se *session) children(ctx context.Context, path string, watch bool) ([]string, error) {
	return call(ctx, se, false, func(c *zk.Conn) ([]string, error) {
		if watch {
			se.watching.Store(true)
			names, _, _, err := c.ChildrenW(path)
			return names, err
		}
		names, _, err := c.Children(path)
		return names, err
	})
}

// place is where the node with our token stands, -1 when it does not.
func place(q []node, sid int64, token uint64) int {
	for i := range q {
		if q[i].ours && q[i].sid == sid && q[i].token == token {
			return i
		}
	}
	return -1
}

// blocker is the node behind which one of that mode at place at has to wait: the
// next before it, or for a reader the next exclusive one; -1 when there is none.
// unsure says that it may have been downgraded: only the first of all can.
func blocker(q []node, at int, mode cache.Mode) (before int, unsure bool) {
	if mode == cache.Exclusive {
		return at - 1, false
	}
	for before = at - 1; before >= 0; before-- {
		if !q[before].shared || !q[before].ours {
			break
		}
	}
	return before, before == 0 && q[0].ours
}

// wanted says whether another host waits behind the holder at place at, or tries: that
// does not wait, or for a moment only.
func wanted(q []node, at int, mode cache.Mode, sid int64) (waits, tries bool) {
	for _, n := range q[at+1:] {
		if n.ours && n.sid == sid || mode == cache.Shared && n.shared {
			continue
		}
		if n.ours && n.try {
			tries = true
		} else {
			return true, tries
		}
	}
	return false, tries
}
