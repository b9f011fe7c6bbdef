package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// These tests check the table in doc.go.

// behind is a store behind a proxy, with a user whose statements can be counted.
func behind(t *testing.T, srv *testserver.MariaDB, query string) (*faultproxy.Proxy, *peer) {
	t.Helper()
	px, err := faultproxy.TCP(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = px.Close() })
	return px, newPeer(t, "mysql://root@"+px.Addr()+"/locks?"+query)
}

// writes returns the number of writes that the server receives during do.
func writes(srv *testserver.MariaDB, do func()) string {
	srv.Exec("SET GLOBAL general_log=OFF; TRUNCATE mysql.general_log; SET GLOBAL log_output='TABLE'; SET GLOBAL general_log=ON")
	do()
	srv.Exec("SET GLOBAL general_log=OFF")
	return srv.Value("SELECT COUNT(*) FROM mysql.general_log WHERE argument LIKE 'INSERT INTO `locksidecar`%' OR argument LIKE '%;INSERT INTO `locksidecar`%'")
}

func TestAnswerThatNeverComesIsUnknownAndNothingIsSentTwice(t *testing.T) {
	srv := testserver.StartMariaDB(t, quickly)
	px, p := behind(t, srv, "timeout=20s")
	held, _ := p.take("held", cache.Exclusive)
	version := func(key string) string {
		return srv.Value("SELECT version FROM locks.locksidecar WHERE name='" + key + "'")
	}
	for _, c := range []struct {
		name string
		op   upstream.Op
		done string // the state of the server to wait for
	}{
		{"an acquire that happens", upstream.Op{Kind: cache.OpTry, Key: "a", Token: p.token(), TTL: long},
			"SELECT 1 FROM locks.locksidecar WHERE name='a' AND ends>0"},
		{"a join that happens", upstream.Op{Kind: cache.OpJoin, Mode: cache.Shared, Key: "b",
			Token: p.token(), TTL: long}, "SELECT 1 FROM locks.locksidecar WHERE name='b' AND ends>0"},
		{"a release that happens", upstream.Op{Kind: cache.OpRelease, Key: "held", Token: held},
			"SELECT 1 FROM locks.locksidecar WHERE name='held' AND ends=0"},
	} {
		var r cache.Result
		var err error
		before := version(c.op.Key)
		n := writes(srv, func() {
			r, err = p.unanswered(px, c.name, c.op, func() bool { return srv.Value(c.done) == "1" })
		})
		if r.Status != cache.Unknown || !errors.Is(err, upstream.ErrDown) {
			t.Errorf("%s is %v (%v)", c.name, r.Status, err)
		}
		if n != "1" || before != "" && version(c.op.Key) == before {
			t.Errorf("%s has been sent %s times", c.name, n)
		}
		if c.op.Kind == cache.OpRelease {
			p.want(p.do(cache.OpRelease, 0, c.op.Key, c.op.Token), cache.NotHeld)
		} else {
			p.want(p.do(c.op.Kind, c.op.Mode, c.op.Key, c.op.Token), cache.Granted) // the same token, again
		}
	}
}

func TestRequestThatNeverArrivesIsUnknownAndNothingHappens(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	px, p := behind(t, srv, "timeout=2500ms")
	held, _ := p.take("held", cache.Exclusive)
	px.BlackHole(faultproxy.ToServer, true)
	tok := p.token()
	p.want(p.do(cache.OpTry, cache.Exclusive, "a", tok), cache.Unknown)
	px.Cut()
	// New connections are accepted and get no answer, so no request is sent.
	p.eventually("no connection is left", func() bool {
		r := p.do(cache.OpRelease, cache.Exclusive, "held", held)
		return r.Status == cache.Refused && errors.Is(r.Err, upstream.ErrDown)
	})
	if err := px.Heal(); err != nil {
		t.Fatal(err)
	}
	p.eventually("the server is reached", func() bool {
		return p.do(cache.OpPeek, 0, "a", 0).Status == cache.Done
	})
	p.want(p.do(cache.OpRenew, cache.Exclusive, "held", held), cache.Done)
}

func TestConnectionsFoundCutAreReplaced(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	px, p := behind(t, srv, "")
	a, _ := p.take("a", cache.Exclusive)
	for range 3 {
		px.Cut() // the store's polls may open a new connection at any time
		// Nothing was sent on the old connection.
		p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
	}
	px.Cut()
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestServerPausedIsUnknownThenSettled(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	// A busy server must not lose its connection before it is paused.
	p := newPeer(t, srv.URL()+"?timeout=5s")
	held, _ := p.take("held", cache.Exclusive)
	srv.Pause()
	var asked uint64
	var key string
	p.eventually("all of its threads stand still", func() bool {
		asked = p.token()
		key = fmt.Sprint("a", asked)
		res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: key, Token: asked, TTL: long})
		if res[0].Status == cache.Granted {
			return false
		}
		p.want(res[0], cache.Unknown)
		if !errors.Is(err, upstream.ErrDown) {
			t.Errorf("the error is %v", err)
		}
		return true
	})
	p.eventually("no connection is left", func() bool {
		return p.do(cache.OpTry, cache.Exclusive, "b", p.token()).Status == cache.Refused
	})
	if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
		t.Errorf("the ping says %v", err)
	}
	srv.Resume()
	p.settle(key, asked)
	p.eventually("the lease is renewed", func() bool {
		return p.do(cache.OpRenew, cache.Exclusive, "held", held).Status == cache.Done
	})
	p.take(key, cache.Exclusive)
}

func TestLeasesOutliveTheServersCrash(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t)
	p, q := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	a, base := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Shared)
	if p.Info().Safety != "linearizable" {
		t.Errorf("it is called %s", p.Info().Safety)
	}
	srv.Kill()
	p.eventually("the server's absence is noticed", func() bool {
		r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
		if r.Status != cache.Refused && r.Status != cache.Unknown || !errors.Is(r.Err, upstream.ErrDown) {
			t.Fatalf("without a server it is %v (%v)", r.Status, r.Err)
		}
		return r.Status == cache.Refused
	})
	srv.Start()
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
	p.want(p.do(cache.OpRenew, cache.Shared, "b", b), cache.Done)
	q.want(q.do(cache.OpTry, cache.Exclusive, "a", q.token()), cache.Busy)
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", a), cache.Done)
	if _, next := q.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestDroppedTableEndsLeasesAndFencesGoOnRising(t *testing.T) {
	srv := testserver.StartMariaDB(t, quickly)
	p := newPeer(t, srv.URL())
	a, base := p.take("a", cache.Exclusive)
	srv.Exec("DROP TABLE locks.locksidecar")
	r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
	// Another connection may have made the table again at this moment.
	if r.Status != cache.NotHeld {
		p.want(r, cache.Refused)
		if !errors.Is(r.Err, upstream.ErrDown) || !strings.Contains(r.Err.Error(), "dropped") {
			t.Errorf("the reason is %v", r.Err)
		}
	}
	// the table has been made again.
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	if _, next := p.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestReadOnlyServerIsAnOutage(t *testing.T) {
	srv := testserver.StartMariaDB(t, quickly)
	srv.Exec("CREATE USER plain IDENTIFIED BY 'geheim'; GRANT ALL ON locks.* TO plain")
	for name, user := range map[string]string{"held off by the server": "plain:geheim",
		"with the right to write all the same": "root"} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, "mysql://"+user+"@"+srv.Addr()+"/locks?prefix="+user[:4])
			a, base := p.take("a", cache.Exclusive)
			b, _ := p.take("b", cache.Shared)
			srv.ReadOnly(true)
			defer srv.ReadOnly(false)
			var asked []uint64
			for range 3 {
				asked = append(asked, p.token())
				for _, op := range []upstream.Op{
					{Kind: cache.OpTry, Key: "c", Token: asked[len(asked)-1], TTL: long},
					{Kind: cache.OpRenew, Key: "a", Token: a, TTL: long},
					{Kind: cache.OpRenew, Mode: cache.Shared, Key: "b", Token: b, TTL: long},
				} {
					res, err := p.apply(op)
					if s := res[0].Status; s != cache.Refused && s != cache.Unknown ||
						!errors.Is(err, upstream.ErrDown) || !strings.Contains(res[0].Err.Error(), "read_only") {
						t.Errorf("%v is %v (%v)", op.Kind, s, err)
					}
				}
			}
			// From now on nothing is sent, because every new connection is checked.
			p.want(p.do(cache.OpTry, 0, "d", p.token()), cache.Refused)
			if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
				t.Errorf("the ping says %v", err)
			}
			if _, err := openURL(t, "mysql://"+user+"@"+srv.Addr()+"/locks"); err == nil ||
				!strings.Contains(err.Error(), "read_only is ON") {
				t.Errorf("opening it: %v", err)
			}
			srv.ReadOnly(false)
			if err := p.Ping(t.Context()); err != nil {
				t.Error(err)
			}
			p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
			for _, tok := range asked {
				p.want(p.do(cache.OpWithdraw, 0, "c", tok), cache.Done)
			}
			p.take("c", cache.Exclusive)
			p.want(p.do(cache.OpRelease, cache.Exclusive, "a", a), cache.Done)
			if _, next := p.take("a", cache.Exclusive); next <= base {
				t.Errorf("base %d after %d", next, base)
			}
		})
	}
}

func TestRowLockedByOthersHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	p := newPeer(t, srv.URL()+"?timeout=10s")
	locked, _ := p.take("locked", cache.Exclusive)
	mine, _ := p.take("mine", cache.Exclusive)
	tx, err := srv.Admin().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec("UPDATE locks.locksidecar SET fence=fence WHERE name='locked'"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("SELECT name FROM locks.locksidecar WHERE name='locked' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		res, err := p.apply(
			upstream.Op{Kind: cache.OpTry, Key: "a" + fmt.Sprint(p.last), Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpRelease, Key: "locked", Token: locked},
			upstream.Op{Kind: cache.OpRenew, Key: "mine", Token: mine, TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "z" + fmt.Sprint(p.last), Token: p.token(), TTL: long})
		p.want(res[0], cache.Granted)
		p.want(res[1], cache.Refused)
		p.want(res[2], cache.Done)
		p.want(res[3], cache.Granted)
		if errors.Is(err, upstream.ErrDown) || !strings.Contains(res[1].Err.Error(),
			"locked in a transaction") {
			t.Errorf("the reason is %v", err)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	p.want(p.do(cache.OpRelease, 0, "locked", locked), cache.Done)
}

// A write waits for a transaction that has made or deleted the same row and has not ended. A read
// of committed rows does not see the new row, and still sees the deleted one.
func TestRowBeingMadeByOthersHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	p := newPeer(t, srv.URL()+"?timeout=10s")
	gone, _ := p.take("deleted", cache.Exclusive)
	p.want(p.do(cache.OpRelease, 0, "deleted", gone), cache.Done)
	tx, err := srv.Admin().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, q := range []string{"INSERT INTO locks.locksidecar VALUES ('made',0,'',0,'',0,0,'','')",
		"DELETE FROM locks.locksidecar WHERE name='deleted'"} {
		if _, err := tx.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		res, err := p.apply(
			upstream.Op{Kind: cache.OpTry, Key: "a" + fmt.Sprint(p.last), Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "deleted", Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpJoin, Key: "made", Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "z" + fmt.Sprint(p.last), Token: p.token(), TTL: long})
		for i, want := range []cache.Status{cache.Granted, cache.Refused, cache.Refused, cache.Granted} {
			p.want(res[i], want)
		}
		if errors.Is(err, upstream.ErrDown) || !strings.Contains(err.Error(), "locked in a transaction") {
			t.Errorf("the reason is %v", err)
		}
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	p.take("made", cache.Exclusive)
	p.take("deleted", cache.Exclusive)
}

// The name leads to another server now. The old server is cut off, so its connections give no
// answer. They must not be tried one after the other.
func TestServerThatIsCutOffIsGivenUpAtOnce(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	px, p := behind(t, srv, "timeout=3s")
	p.take("locked", cache.Exclusive)
	tx, err := srv.Admin().Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec("SELECT name FROM locks.locksidecar WHERE name='locked' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 4 { // so that each has a connection
		wg.Go(func() { p.do(cache.OpTry, 0, "locked", uint64(i+2)) })
	}
	eventually(t, "there are four connections", func() bool { return p.Connections() >= 4 })
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	px.Stall(faultproxy.Both, true)
	storetest.GivesUpAtOnce(t, p, px, srv.Addr())
}
