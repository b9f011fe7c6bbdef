package mysql_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func permitOp(kind cache.OpKind, key string, limit uint32, token uint64) upstream.Op {
	return upstream.Op{Kind: kind, Mode: cache.Permit, Limit: limit, Key: key, Token: token, TTL: long}
}

func (p *peer) permit(kind cache.OpKind, key string, limit uint32, token uint64) cache.Result {
	res, _ := p.apply(permitOp(kind, key, limit, token))
	return res[0]
}

// takePermit is a try that must succeed.
func (p *peer) takePermit(key string, limit uint32) (token, base uint64) {
	p.Helper()
	token = p.token()
	r := p.permit(cache.OpTry, key, limit, token)
	p.want(r, cache.Granted)
	return token, r.Base
}

// bothWays runs a test with the statements for MariaDB, and with those for MySQL.
func bothWays(t *testing.T, srv *testserver.MariaDB,
	do func(t *testing.T, url string, set ...func(*mysql.Config))) {
	t.Run("compound", func(t *testing.T) { do(t, srv.URL()+"?prefix=c:") })
	t.Run("plain", func(t *testing.T) { do(t, srv.URL()+"?prefix=p:", mysql.WithoutReturning) })
}

// transactions returns the number of transactions in progress at the server.
func transactions(srv *testserver.MariaDB) string {
	return srv.Value("SELECT COUNT(*) FROM information_schema.innodb_trx")
}

func TestLocksAndPermitsInOneBatch(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	bothWays(t, srv, func(t *testing.T, url string, set ...func(*mysql.Config)) {
		p := newPeer(t, url, set...)
		a, b := p.token(), p.token()
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "k", Token: a, TTL: long},
			permitOp(cache.OpTry, "k", 1, b),
			permitOp(cache.OpTry, "k", 0, p.token()), permitOp(cache.OpDowngrade, "k", 1, b),
			permitOp(cache.OpPeek, "other", 0, 0))
		for i, want := range []cache.Status{cache.Granted, cache.Granted, cache.Refused,
			cache.Refused, cache.Done} {
			p.want(res[i], want)
		}
		if !errors.Is(err, mysql.ErrRefused) || errors.Is(err, upstream.ErrDown) {
			t.Errorf("the error is %v", err)
		}
		res, err = p.apply(permitOp(cache.OpRelease, "k", 1, b),
			upstream.Op{Kind: cache.OpRenew, Key: "k", Token: a, TTL: long},
			permitOp(cache.OpPeek, "k", 0, 0))
		p.want(res[0], cache.Done)
		p.want(res[1], cache.Done)
		p.want(res[2], cache.Done) // a released permit is free in the same batch
		if err != nil {
			t.Error(err)
		}
	})
}

func TestThousandPermitsOfOneSemaphore(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	bothWays(t, srv, func(t *testing.T, url string, set ...func(*mysql.Config)) {
		const limit = 1000
		p, q := newPeer(t, url+"&timeout=30s", set...), newPeer(t, url+"&timeout=30s", set...)
		bases := map[uint64]bool{}
		var all []upstream.Op
		for len(all) < limit {
			h := []*peer{p, q}[len(all)/250%2]
			ops := make([]upstream.Op, 250)
			for i := range ops {
				ops[i] = permitOp(cache.OpTry, "k", limit, h.token())
				ops[i].Floor = uint64(len(bases)) // different for each op
			}
			res, err := h.apply(ops...)
			for i, r := range res {
				if r.Status != cache.Granted || bases[r.Base] {
					t.Fatalf("it is %v with base %d (%v)", r.Status, r.Base, err)
				}
				bases[r.Base] = true
				ops[i].Kind = cache.OpRenew
			}
			all = append(all, ops...)
		}
		q.want(q.permit(cache.OpTry, "k", limit, q.token()), cache.Busy)

		// The cost of an op does not depend on the number of permits.
		reads := func(do func()) int {
			count := func() (n int) {
				n, _ = strconv.Atoi(srv.Value("SELECT SUM(variable_value) FROM " + statusTable() +
					" WHERE variable_name LIKE 'Handler_read%' AND variable_name NOT LIKE '%tmp%' AND variable_name NOT LIKE '%rnd%'"))
				return n
			}
			before := count()
			do()
			return count() - before
		}
		one := all[0]
		if n := reads(func() {
			one.Kind = cache.OpRelease
			res, _ := p.apply(one)
			p.want(res[0], cache.Done)
			q.want(q.permit(cache.OpTry, "k", limit, q.token()), cache.Granted)
			q.want(q.permit(cache.OpTry, "k", limit, q.token()), cache.Busy)
			q.want(q.permit(cache.OpJoin, "k", limit, q.token()), cache.Queued)
		}); n > 400 {
			t.Errorf("four ops read %d rows", n)
		}
		for _, kind := range []cache.OpKind{cache.OpRenew, cache.OpRelease} {
			for i := 0; i < limit; i += 250 {
				h := []*peer{p, q}[i/250%2]
				for j := range all[i : i+250] {
					all[i+j].Kind = kind
				}
				res, err := h.apply(all[i : i+250]...)
				for j, r := range res {
					if want := cache.Done; r.Status != want && (i > 0 || j > 0) {
						t.Fatalf("%v of %d is %v (%v)", kind, i+j, r.Status, err)
					}
				}
			}
		}
		p.want(p.permit(cache.OpRelease, "k", limit, all[0].Token), cache.NotHeld)
	})
}

func TestOrphanedPermitsComeBack(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	bothWays(t, srv, func(t *testing.T, url string, set ...func(*mysql.Config)) {
		p, q := newPeer(t, url, set...), newPeer(t, url+"&poll=10ms", set...)
		kept, _ := q.takePermit("k", 3)
		var lost []uint64
		for range 2 {
			op := permitOp(cache.OpTry, "k", 3, p.token())
			op.TTL = 2 * time.Second // longer than what follows until the join
			res, _ := p.apply(op)
			p.want(res[0], cache.Granted)
			lost = append(lost, op.Token)
		}
		w := q.token()
		q.want(q.permit(cache.OpJoin, "k", 3, w), cache.Queued)
		for { // the store finds it by polling
			select {
			case h := <-q.Hints():
				if h.Kind != cache.HintAvailable || h.Mode != cache.Permit || h.Token != w {
					continue
				}
			case <-time.After(bound):
				t.Fatal("no hint")
			}
			break
		}
		q.want(q.permit(cache.OpJoin, "k", 3, w), cache.Granted)
		q.eventually("the other is back too", func() bool {
			return q.permit(cache.OpTry, "k", 3, q.token()).Status == cache.Granted
		})
		for _, l := range lost {
			p.want(p.permit(cache.OpRenew, "k", 3, l), cache.NotHeld)
		}
		q.want(q.permit(cache.OpRenew, "k", 3, kept), cache.Done)
		q.want(q.permit(cache.OpTry, "k", 3, q.token()), cache.Busy)
	})
}

func TestBasesOfPermitsAreUsedUpOneDay(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	bothWays(t, srv, func(t *testing.T, url string, set ...func(*mysql.Config)) {
		p := newPeer(t, url, set...)
		op := permitOp(cache.OpTry, "k", 1000, p.token())
		op.Floor = cache.MaxBase - upstream.MaxBatch
		res, _ := p.apply(op)
		p.want(res[0], cache.Granted)
		if res[0].Base != op.Floor+1 {
			t.Errorf("the base is %d", res[0].Base)
		}
		first, granted := op, 1
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			ops := make([]upstream.Op, upstream.MaxBatch)
			for i := range ops {
				ops[i] = permitOp(kind, "k", 1000, p.token())
			}
			res, _ = p.apply(ops...)
			for _, r := range res {
				if r.Status == cache.Granted && r.Base <= cache.MaxBase {
					granted++
				} else {
					p.want(r, cache.Refused)
				}
			}
		}
		if granted != upstream.MaxBatch {
			t.Errorf("%d are granted", granted)
		}
		first.Kind, first.Rebase, first.Floor = cache.OpRenew, true, 0
		res, _ = p.apply(first)
		if r := res[0]; r.Status == cache.Done && (r.Base == 0 || r.Base > cache.MaxBase) {
			t.Errorf("a new base is %d", r.Base)
		}
		p.want(p.permit(cache.OpRenew, "k", 0, first.Token), cache.Done)
		p.want(p.permit(cache.OpRelease, "k", 0, first.Token), cache.Done)
	})
}

func TestCountsOfSemaphoresHeal(t *testing.T) {
	srv := testserver.StartMariaDB(t, quickly)
	bothWays(t, srv, func(t *testing.T, url string, set ...func(*mysql.Config)) {
		p := newPeer(t, url, set...)
		a, _ := p.takePermit("k", 2)
		p.takePermit("k", 2)
		// One permit and then all are removed by hand, as in doc.go.
		srv.Exec("DELETE FROM locks.locksidecar_permits WHERE name LIKE '_:k' AND token LIKE '%" +
			strconv.FormatUint(a, 36) + "'; " +
			"UPDATE locks.locksidecar_permits SET ends=0 WHERE name LIKE '_:k' AND token='~'")
		p.want(p.permit(cache.OpRenew, "k", 2, a), cache.NotHeld)
		p.takePermit("k", 2)
		p.want(p.permit(cache.OpTry, "k", 2, p.token()), cache.Busy)
		srv.Exec("DELETE FROM locks.locksidecar_permits WHERE name LIKE '_:k'")
		_, b1 := p.takePermit("k", 2)
		if _, b2 := p.takePermit("k", 2); b1 == b2 {
			t.Errorf("both have base %d", b1)
		}
		p.want(p.permit(cache.OpTry, "k", 2, p.token()), cache.Busy)
	})
}
