package mysql_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestOlderInstallationGetsThePermitsTable(t *testing.T) {
	srv := testserver.StartMariaDB(t, quickly)
	newPeer(t, srv.URL())
	srv.Exec("DROP TABLE locks.locksidecar_permits; CREATE USER locker IDENTIFIED BY 'geheim'; GRANT SELECT, INSERT, UPDATE, DELETE ON locks.locksidecar TO locker")
	core, logs := observer.New(zap.WarnLevel)
	p := newPeer(t, "mysql://locker:geheim@"+srv.Addr()+"/locks", func(c *mysql.Config) { c.Log = zap.New(core) })
	for range 2 {
		res, err := p.apply(permitOp(cache.OpTry, "k", 1, p.token()),
			upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint("k", p.last), Token: p.token(), TTL: long})
		p.want(res[0], cache.Refused)
		p.want(res[1], cache.Granted) // locks work as before
		for _, says := range []string{"semaphores cannot be used",
			"CREATE TABLE IF NOT EXISTS `locksidecar_permits`",
			"GRANT SELECT, INSERT, UPDATE, DELETE ON `locks`.`locksidecar_permits`"} {
			if !strings.Contains(res[0].Err.Error(), says) || errors.Is(err, upstream.ErrDown) {
				t.Errorf("the reason is %v, which does not say %s", err, says)
			}
		}
	}
	if n := logs.FilterMessageSnippet("semaphores cannot be used").Len(); n != 1 {
		t.Errorf("it says so %d times", n)
	}
	if _, _, err := p.List(t.Context(), "", "", 10); err != nil {
		t.Error(err)
	}
	// The statement in the error solves the problem, without a restart.
	_, statement, _ := strings.Cut(p.permit(cache.OpTry, "k", 1, p.token()).Err.Error(),
		"Have this run there:\n")
	statement, _, _ = strings.Cut(statement, ";")
	srv.Exec("USE locks; " + statement + "; GRANT SELECT, INSERT, UPDATE, DELETE ON locks.locksidecar_permits TO locker")
	held, _ := p.takePermit("k", 1)
	// The right is revoked while it is in use.
	srv.Exec("REVOKE DELETE ON locks.locksidecar_permits FROM locker")
	r := p.permit(cache.OpRelease, "k", 1, held)
	p.want(r, cache.Refused)
	if !strings.Contains(r.Err.Error(), "DELETE") || errors.Is(r.Err, upstream.ErrDown) {
		t.Errorf("the reason is %v", r.Err)
	}
	p.take("still", cache.Exclusive)
	srv.Exec("GRANT DELETE ON locks.locksidecar_permits TO locker")
	p.want(p.permit(cache.OpRelease, "k", 1, held), cache.Done)
	// The table is dropped while it is in use, and the user may make it again.
	q := newPeer(t, srv.URL())
	token, base := q.takePermit("z", 1)
	srv.Exec("DROP TABLE locks.locksidecar_permits")
	if r := q.permit(cache.OpRenew, "z", 1, token); r.Status != cache.NotHeld {
		q.want(r, cache.Refused)
	}
	q.eventually("it is made anew", func() bool {
		return q.permit(cache.OpRenew, "z", 1, token).Status == cache.NotHeld
	})
	if _, next := q.takePermit("z", 1); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestWrongPermitsTableIsRefusedToPermitsAlone(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	newPeer(t, srv.URL())
	for name, c := range map[string]struct{ change, says string }{
		"extra":  {"ALTER TABLE $ ADD COLUMN more INT", "column more"},
		"kind":   {"ALTER TABLE $ MODIFY held INT NOT NULL", "column held is int"},
		"engine": {"ALTER TABLE $ ENGINE=MyISAM", "MyISAM, not InnoDB"},
		"key": {"ALTER TABLE $ DROP PRIMARY KEY, ADD PRIMARY KEY (token, name)",
			"primary key is not name, token"},
		"queue": {"ALTER TABLE $ DROP KEY queue", "no key queue (name, place)"},
		"trigger": {"CREATE TRIGGER locks.trp BEFORE UPDATE ON $ FOR EACH ROW SET NEW.fence = 1",
			"trigger trp"},
	} {
		srv.Exec("CREATE TABLE locks.t_" + name + "_permits LIKE locks.locksidecar_permits; " +
			strings.ReplaceAll(c.change, "$", "locks.t_"+name+"_permits"))
		p := newPeer(t, srv.URL()+"?table=t_"+name)
		p.take("a", cache.Exclusive)
		r := p.permit(cache.OpTry, "a", 1, p.token())
		p.want(r, cache.Refused)
		if !strings.Contains(r.Err.Error(), c.says) || !strings.Contains(r.Err.Error(), "CREATE TABLE") ||
			errors.Is(r.Err, upstream.ErrDown) {
			t.Errorf("%s: the reason is %v", name, r.Err)
		}
	}
	// This name is too long for the suffix.
	newPeer(t, srv.URL()+"?table="+strings.Repeat("x", 64)).takePermit("a", 1)
}

func TestSemaphoreLockedByOthersHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	bothWays(t, srv, func(t *testing.T, url string, set ...func(*mysql.Config)) {
		// which names the locked row. made is a semaphore that is being made.
		for _, which := range []string{"sem", "permit", "made"} {
			p := newPeer(t, url+"&timeout=10s", set...)
			locked := p.token()
			if which != "made" {
				locked, _ = p.takePermit("locked"+which, 2)
			}
			mine, _ := p.takePermit("mine", 100)
			tx, err := srv.Admin().Begin()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }()
			prefix, token := url[len(url)-2:], "~"
			if which == "permit" {
				token = srv.Value("SELECT token FROM locks.locksidecar_permits WHERE name='" + prefix +
					"locked" + which + "' AND token<>'~'")
			}
			lock := "SELECT name FROM locks.locksidecar_permits WHERE name='" + prefix + "locked" + which +
				"' AND token='" + token + "' FOR UPDATE"
			if which == "made" {
				lock = "INSERT INTO locks.locksidecar_permits (name,token,place,ends,fence,most,held,waits,turn) VALUES ('" + prefix + "lockedmade','~',-1,0,0,2,0,0,0)"
			}
			if _, err := tx.Exec(lock); err != nil {
				t.Fatal(err)
			}
			for n := range 3 {
				a, z := fmt.Sprint("a", which, n), fmt.Sprint("z", which, n)
				op := permitOp(cache.OpRelease, "locked"+which, 2, locked)
				if which == "made" {
					op.Kind, op.Token = cache.OpTry, p.token()
				}
				res, err := p.apply(permitOp(cache.OpTry, a, 1, p.token()), op,
					permitOp(cache.OpRenew, "mine", 1, mine), permitOp(cache.OpTry, z, 1, p.token()),
					upstream.Op{Kind: cache.OpTry, Key: a, Token: p.token(), TTL: long})
				for i, want := range []cache.Status{cache.Granted, cache.Refused, cache.Done, cache.Granted,
					cache.Granted} {
					p.want(res[i], want)
				}
				if errors.Is(err, upstream.ErrDown) || !strings.Contains(res[1].Err.Error(),
					"locked in a transaction") {
					t.Errorf("the reason is %v", err)
				}
				if held := srv.Value("SELECT GROUP_CONCAT(held) FROM locks.locksidecar_permits WHERE token='~' AND name IN ('" + prefix + a + "','" + prefix + z + "') AND held<>1"); held != "" {
					t.Errorf("what was rolled back is counted: %s", held)
				}
			}
			if n := transactions(srv); n != "1" {
				t.Errorf("%s transactions are open", n)
			}
			if err := tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			if which == "made" {
				p.takePermit("lockedmade", 2)
				continue
			}
			p.want(p.permit(cache.OpRelease, "locked"+which, 2, locked), cache.Done)
		}
	})
}
