package mysql_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestPermitAnswerThatNeverComesIsUnknown(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	for name, set := range map[string][]func(*mysql.Config){"compound": nil,
		"plain": {mysql.WithoutReturning}} {
		t.Run(name, func(t *testing.T) {
			px, err := faultproxy.TCP(srv.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer px.Close()
			p := newPeer(t, "mysql://root@"+px.Addr()+"/locks?timeout=20s&prefix="+name, set...)
			held, _ := p.takePermit("k", 3)
			row := func(where string) string {
				return "SELECT COUNT(*) FROM locks.locksidecar_permits WHERE name='" + name +
					"k' AND token<>'~' AND " + where
			}
			for _, c := range []struct {
				name        string
				op          upstream.Op
				where, want string // the state of the server to wait for
				again       cache.Status
			}{
				{"an acquire that happens", permitOp(cache.OpTry, "k", 3, p.token()), "place=0", "2",
					cache.Granted},
				{"a join that is granted", permitOp(cache.OpJoin, "k", 3, p.token()), "place=0", "3",
					cache.Granted},
				{"a join that queues", permitOp(cache.OpJoin, "k", 3, p.token()), "place>0", "1", cache.Queued},
				{"a release that happens", permitOp(cache.OpRelease, "k", 3, held), "place=0", "2",
					cache.NotHeld},
			} {
				r, err := p.unanswered(px, c.name, c.op, func() bool {
					return srv.Value(row(c.where)) == c.want
				})
				if r.Status != cache.Unknown || !errors.Is(err, upstream.ErrDown) {
					t.Errorf("%s is %v (%v)", c.name, r.Status, err)
				}
				p.want(p.permit(c.op.Kind, "k", 3, c.op.Token), c.again) // the same token, again
				if n := srv.Value(row(c.where)); n != c.want {
					t.Errorf("%s: %s rows", c.name, n)
				}
			}
			// This request never arrives.
			px.BlackHole(faultproxy.ToServer, true)
			lost := p.token()
			var wg sync.WaitGroup
			var r cache.Result
			wg.Go(func() { r = p.permit(cache.OpTry, "other", 1, lost) })
			eventually(t, "it is under way", func() bool { return px.Conns() > 0 })
			time.AfterFunc(100*time.Millisecond, func() { px.Cut() })
			wg.Wait()
			if r.Status != cache.Unknown && r.Status != cache.Refused {
				t.Errorf("it is %v", r.Status)
			}
			if err := px.Heal(); err != nil {
				t.Fatal(err)
			}
			p.eventually("the server is reached", func() bool {
				return p.permit(cache.OpWithdraw, "other", 1, lost).Status == cache.Done
			})
			p.takePermit("other", 1)
		})
	}
	eventually(t, "no transaction is left", func() bool { return transactions(srv) == "0" })
}

func TestPermitsOutliveTheServersCrash(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t)
	p, q := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	a, base := p.takePermit("k", 2)
	b, _ := q.takePermit("k", 2)
	w := q.token()
	q.want(q.permit(cache.OpJoin, "k", 2, w), cache.Queued)
	srv.Kill()
	p.eventually("the server's absence is noticed", func() bool {
		r := p.permit(cache.OpRenew, "k", 2, a)
		if r.Status != cache.Refused && r.Status != cache.Unknown || !errors.Is(r.Err, upstream.ErrDown) {
			t.Fatalf("without a server it is %v (%v)", r.Status, r.Err)
		}
		return r.Status == cache.Refused
	})
	srv.Start()
	p.want(p.permit(cache.OpRenew, "k", 2, a), cache.Done)
	q.want(q.permit(cache.OpRenew, "k", 2, b), cache.Done)
	q.want(q.permit(cache.OpTry, "k", 2, q.token()), cache.Busy)
	p.want(p.permit(cache.OpRelease, "k", 2, a), cache.Done)
	var r cache.Result
	q.eventually("the next has it", func() bool { r = q.permit(cache.OpJoin, "k", 2, w); return r.Status == cache.Granted })
	if r.Base <= base {
		t.Errorf("base %d after %d", r.Base, base)
	}
}

// TestPermitsOverCrashesUnderLoad kills the server repeatedly while three hosts, each with two
// batches in flight, acquire and release permits.
func TestPermitsOverCrashesUnderLoad(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t) // with innodb_flush_log_at_trx_commit=1
	var sems [2]guardedSem
	var stop atomic.Bool
	var wg sync.WaitGroup
	for host := range 3 {
		p := newPeer(t, srv.URL())
		var tokens atomic.Uint64
		for lane := range 2 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(uint64(host), uint64(lane)))
				for !stop.Load() && semTurn(p, rnd, &tokens, sems[:], false) {
				}
			})
		}
	}
	enough := func() {
		for was := sems[0].granted.Load(); sems[0].granted.Load() < was+40 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
	}
	for range 2 {
		enough()
		srv.Kill()
		srv.Start()
	}
	enough()
	stop.Store(true)
	wg.Wait()
	eventually(t, "nothing is left", func() bool {
		return srv.Value("SELECT COUNT(*) FROM locks.locksidecar_permits WHERE token<>'~' OR held<>0 OR waits<>0") == "0"
	})
}

func TestReadOnlyServerIsAnOutageForPermits(t *testing.T) {
	srv := testserver.StartMariaDB(t, quickly)
	srv.Exec("CREATE USER plain IDENTIFIED BY 'geheim'; GRANT ALL ON locks.* TO plain")
	for _, user := range []string{"plain:geheim", "root"} {
		p := newPeer(t, "mysql://"+user+"@"+srv.Addr()+"/locks?prefix="+user[:4])
		a, _ := p.takePermit("k", 2)
		srv.ReadOnly(true)
		asked := p.token()
		for _, op := range []upstream.Op{permitOp(cache.OpTry, "k", 2, asked),
			permitOp(cache.OpRenew, "k", 2, a)} {
			res, err := p.apply(op)
			if s := res[0].Status; s != cache.Refused && s != cache.Unknown ||
				!errors.Is(err, upstream.ErrDown) || !strings.Contains(res[0].Err.Error(), "read_only") {
				t.Errorf("%v as %s is %v (%v)", op.Kind, user[:4], s, err)
			}
		}
		srv.ReadOnly(false)
		p.want(p.permit(cache.OpRenew, "k", 2, a), cache.Done)
		p.want(p.permit(cache.OpWithdraw, "k", 2, asked), cache.Done)
		p.takePermit("k", 2)
		if n := transactions(srv); n != "0" {
			t.Errorf("%s transactions are open", n)
		}
	}
}

func TestJumpingClockKeepsPermitsApart(t *testing.T) {
	srv := testserver.StartMariaDBWithClock(t, quickly)
	p, q := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	var last uint64
	rises := func(base uint64) {
		t.Helper()
		if base <= last {
			t.Errorf("base %d after %d", base, last)
		}
		last = base
	}
	a, base := p.takePermit("k", 2)
	rises(base)
	srv.JumpClock(time.Hour) // the permit has ended, but nobody has acquired it
	p.want(p.permit(cache.OpRenew, "k", 2, a), cache.NotHeld)
	a, base = p.takePermit("k", 2)
	rises(base)
	_, base = q.takePermit("k", 2)
	rises(base)
	q.want(q.permit(cache.OpTry, "k", 2, q.token()), cache.Busy)
	srv.JumpClock(2 * time.Hour) // both permits have ended
	b, base := q.takePermit("k", 1)
	rises(base)
	p.want(p.permit(cache.OpRenew, "k", 2, a), cache.NotHeld)
	srv.JumpClock(-20 * time.Hour)
	q.want(q.permit(cache.OpRenew, "k", 1, b), cache.Done)
	p.want(p.permit(cache.OpTry, "k", 1, p.token()), cache.Busy)
	c, base := p.takePermit("k", 2)
	rises(base)
	// They are in the order of arrival, whatever the clock is.
	for i, w := range []uint64{p.token(), p.token()} {
		p.want(p.permit(cache.OpJoin, "k", 2, w), cache.Queued)
		if i == 0 {
			srv.JumpClock(-40 * time.Hour)
		}
	}
	q.want(q.permit(cache.OpRelease, "k", 2, b), cache.Done)
	p.want(p.permit(cache.OpJoin, "k", 2, p.last), cache.Queued)
	r := p.permit(cache.OpJoin, "k", 2, p.last-1)
	p.want(r, cache.Granted)
	rises(r.Base)
	p.want(p.permit(cache.OpRelease, "k", 2, c), cache.Done)
	p.want(p.permit(cache.OpJoin, "k", 2, p.last), cache.Granted)
}

func TestPermitsAreListed(t *testing.T) {
	srv := testserver.StartMariaDB(t, quickly)
	url := srv.URL() + "?prefix=p%25_&waiter_lease=1m" // the test may take long
	p, q := newPeer(t, url), newPeer(t, url)
	newPeer(t, srv.URL()+"?prefix=q").takePermit("x", 1)
	p.take("x:lock", cache.Exclusive)
	want := map[string]upstream.Lock{}
	for i := range 7 {
		h := []*peer{p, q}[i%2]
		token, base := h.takePermit(fmt.Sprint("x:", i%3), 10)
		want[fmt.Sprint("x:", i%3, h.Instance(), token)] = upstream.Lock{Mine: h == p, Base: base}
	}
	q.want(q.permit(cache.OpJoin, "x:0", 1, q.token()), cache.Queued)
	gone, _ := q.takePermit("y", 2)
	q.want(q.permit(cache.OpRelease, "y", 2, gone), cache.Done)
	for _, limit := range []int{1, 2, 100} {
		found := 0
		for cursor, pages := "", 0; ; pages++ {
			locks, next, err := p.List(t.Context(), "x:", cursor, limit)
			if err != nil || len(locks) > limit || pages > 100 {
				t.Fatalf("page %d: %d locks, error %v", pages, len(locks), err)
			}
			for _, l := range locks {
				if l.Mode != cache.Permit {
					continue
				}
				found++
				var ok bool
				for k, w := range want {
					instance, _, _ := strings.Cut(l.Holder, ".")
					ok = ok || strings.HasPrefix(k, l.Key+instance) && w.Mine == l.Mine && w.Base == l.Base
				}
				waiters := 0
				if l.Key == "x:0" {
					waiters = 1
				}
				if !ok || l.Left <= 0 || l.Left > int64(long) || l.Waiters != waiters || l.Foreign ||
					!strings.Contains(l.Name, "locksidecar_permits") {
					t.Errorf("it is %+v", l)
				}
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		if found != len(want) {
			t.Errorf("%d at a time, %d are found", limit, found)
		}
	}
}
