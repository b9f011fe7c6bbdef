package zookeeper

import (
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// renew answers renewals and downgrades. Once the quorum has confirmed the session, the watches
// have told every earlier change. So only locks that have changed are read.
func (b *batch) renew() {
	if len(b.renewals) == 0 {
		return
	}
	if len(b.rounds) == 0 { // no transaction of this batch has confirmed the session
		if err := b.confirm(b.ctx); err != nil {
			for _, i := range b.renewals {
				b.fail(i, err, b.ops[i].Kind == cache.OpDowngrade)
			}
			return
		}
	}
	of := b.checkSemaphores()
	errs := make([]error, len(b.renewals))
	together(len(b.renewals), func(k int) {
		g := b.lockNode(idOf(&b.ops[b.renewals[k]]))
		switch {
		case g == nil:
		case g.permit != nil:
			errs[k] = of[g.permit.sem]
		case b.needsCheck(g):
			errs[k] = b.check(b.ctx, g)
		}
	})
	until, live := b.deadline()
	for k, i := range b.renewals {
		g := b.lockNode(idOf(&b.ops[i]))
		switch {
		case errs[k] != nil:
			b.fail(i, errs[k], b.ops[i].Kind == cache.OpDowngrade)
		case g == nil || !b.holds(g):
			b.end(i, cache.NotHeld, nil)
		case !live:
			b.fail(i, errNotConfirmed, true)
		default:
			b.answer(i, upstream.Result{Status: cache.Done, Contended: b.isContended(g),
				Session: until, SessionNo: b.no})
		}
	}
}

func (se *session) needsCheck(g *lockNode) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	_, dirty := se.dirty[g]
	return dirty || !g.watched
}

func (se *session) isContended(g *lockNode) bool {
	se.mu.Lock()
	defer se.mu.Unlock()
	if g.permit != nil {
		return g.permit.sem.contended
	}
	return g.contended
}
