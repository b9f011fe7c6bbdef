package mysql_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gomysql "github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// TestSemaphoresUnderLoad makes hosts acquire and release permits of a few semaphores in any order.
// Each host has two batches and a renewal in flight. There are never more permits than the limit,
// and no two have the same base. No result is Unknown, and a result is Refused only because of
// locked rows.
func TestSemaphoresUnderLoad(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	bothWays(t, srv, func(t *testing.T, url string, set ...func(*mysql.Config)) {
		var sems [3]guardedSem
		var wg sync.WaitGroup
		for host := range 3 {
			p := newPeer(t, url+"&timeout=30s", set...)
			var tokens atomic.Uint64
			for lane := range 2 {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(host), uint64(lane)))
					for range 15 {
						if !semTurn(p, rnd, &tokens, sems[:], true) {
							return
						}
					}
				})
			}
		}
		wg.Wait()
		left := srv.Value("SELECT COUNT(*) FROM locks.locksidecar_permits WHERE name LIKE '" +
			url[len(url)-2:] + "%' AND (token<>'~' OR held<>0 OR waits<>0)")
		if left != "0" || sems[0].granted.Load() == 0 {
			t.Errorf("%s rows are left, and %d were granted", left, sems[0].granted.Load())
		}
		if n := transactions(srv); n != "0" {
			t.Errorf("%s transactions are open", n)
		}
		n := srv.Value("SELECT count FROM information_schema.innodb_metrics WHERE name='lock_deadlocks'")
		if n != "0" && !testserver.IsMySQL() { // MySQL has a few, which are retried
			t.Errorf("%s deadlocks", n)
		}
	})
}

// guardedSem counts the clients that believe that they have a permit. The limit is 3.
type guardedSem struct {
	inside  atomic.Int32
	granted atomic.Int64
	bases   sync.Map
}

// waitedForRows reports whether the op waited a second for rows that others had locked, as can
// happen on a busy machine. Nothing has been done then.
func waitedForRows(err error) bool {
	e, ok := errors.AsType[*gomysql.MySQLError](err)
	return ok && e.Number == 1205
}

// semTurn tries a few permits in one batch, renews the granted ones, and makes sure before it
// returns that every permit has ended.
func semTurn(p *peer, rnd *rand.Rand, tokens *atomic.Uint64, sems []guardedSem, sure bool) bool {
	const limit = 3
	var ops []upstream.Op
	for range 1 + rnd.IntN(8) {
		op := permitOp(cache.OpTry+cache.OpKind(rnd.IntN(2)), fmt.Sprint("s", rnd.IntN(len(sems))),
			limit, tokens.Add(1))
		op.TTL = 10 * time.Minute
		ops = append(ops, op)
	}
	at := func(op *upstream.Op) *guardedSem { return &sems[op.Key[1]-'0'] }
	res, err := p.apply(ops...)
	if err != nil && sure && !waitedForRows(err) {
		p.Error(err)
	}
	var held []upstream.Op
	for i, r := range res {
		if r.Status != cache.Granted {
			continue
		}
		g := at(&ops[i])
		g.granted.Add(1)
		if n := g.inside.Add(1); n > limit {
			p.Errorf("%d are inside", n)
		}
		if _, was := g.bases.LoadOrStore(r.Base, ops[i].Token); was {
			p.Errorf("base %d is given out twice", r.Base)
		}
		ops[i].Kind, ops[i].Rebase, ops[i].Floor = cache.OpRenew, rnd.IntN(2) == 0, r.Base
		held = append(held, ops[i])
	}
	res, _ = p.apply(held...)
	for i, r := range res {
		if r.Status == cache.NotHeld || r.Status != cache.Done && sure && !waitedForRows(r.Err) {
			p.Errorf("a renewal is %v (%v)", r.Status, r.Err)
		}
		if r.Status == cache.Done && held[i].Rebase {
			if _, was := at(&held[i]).bases.LoadOrStore(r.Base, held[i].Token); was ||
				r.Base <= held[i].Floor {
				p.Errorf("base %d is given out twice, or under %d", r.Base, held[i].Floor)
			}
		}
		at(&held[i]).inside.Add(-1)
	}
	for i := range ops {
		ops[i].Kind = cache.OpWithdraw
	}
	p.eventually("all are ended", func() bool {
		res, _ = p.apply(ops...)
		for _, r := range res {
			if r.Status != cache.Done {
				return false
			}
		}
		return true
	})
	return !p.Failed()
}
