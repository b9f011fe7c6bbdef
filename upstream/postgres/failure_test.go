package postgres_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/postgres"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

const (
	long  = time.Minute
	bound = 60 * time.Second
)

// peer is a store with tokens that rise.
type peer struct {
	*testing.T
	*postgres.Store
	last uint64
}

func openURL(t *testing.T, url string) (*peer, error) {
	t.Helper()
	cfg, err := postgres.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Timeout == postgres.DefaultTimeout { // a busy machine may stall for longer
		cfg.Timeout = 5 * time.Second
	}
	s, err := postgres.Open(t.Context(), cfg)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() })
	return &peer{T: t, Store: s}, nil
}

func newPeer(t *testing.T, url string) *peer {
	t.Helper()
	return storetest.Opened(t, func() (*peer, error) { return openURL(t, url) })
}

// behind is a peer behind a proxy.
func behind(t *testing.T, srv *testserver.Postgres, query string) (*faultproxy.Proxy, *peer) {
	t.Helper()
	px, err := faultproxy.TCP(srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = px.Close() })
	return px, newPeer(t, "postgres://postgres@"+px.Addr()+"/locks?"+query)
}

func (p *peer) token() uint64 { p.last++; return p.last }

// apply carries out a batch within the store's own time.
func (p *peer) apply(ops ...upstream.Op) ([]cache.Result, error) {
	return storetest.Apply(p.Store, ops...)
}

func (p *peer) do(kind cache.OpKind, mode cache.Mode, key string, token uint64) cache.Result {
	res, _ := p.apply(upstream.Op{Kind: kind, Mode: mode, Key: key, Token: token, TTL: long})
	return res[0]
}

func (p *peer) want(r cache.Result, st cache.Status) {
	p.Helper()
	storetest.Want(p.T, r, st)
}

// take is a try that must succeed.
func (p *peer) take(key string, mode cache.Mode) (token, base uint64) {
	p.Helper()
	token = p.token()
	r := p.do(cache.OpTry, mode, key, token)
	p.want(r, cache.Granted)
	return token, r.Base
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	storetest.Eventually(t, bound, what, ok)
}

func TestAnswerThatNeverComesIsUnknownAndNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	px, p := behind(t, srv, "timeout=20s")
	held, _ := p.take("held", cache.Exclusive)
	for _, c := range []struct {
		name string
		op   upstream.Op
		done string // the state of the server to wait for
	}{
		{"an acquire that happens", upstream.Op{Kind: cache.OpTry, Key: "a", Token: p.token(), TTL: long},
			"SELECT 1 FROM locksidecar WHERE name='a' AND ends>0"},
		{"a join that happens", upstream.Op{Kind: cache.OpJoin, Mode: cache.Shared, Key: "b",
			Token: p.token(), TTL: long}, "SELECT 1 FROM locksidecar WHERE name='b' AND ends>0"},
		{"a release that happens", upstream.Op{Kind: cache.OpRelease, Key: "held", Token: held},
			"SELECT 1 FROM locksidecar WHERE name='held' AND ends=0"},
	} {
		px.Stall(faultproxy.ToClient, true)
		var res []cache.Result
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { res, err = p.apply(c.op) })
		eventually(t, c.name, func() bool { return srv.Value(c.done) == "1" })
		fence := srv.Value("SELECT fence FROM locksidecar WHERE name='" + c.op.Key + "'")
		px.Cut()
		wg.Wait()
		if res[0].Status != cache.Unknown || !errors.Is(err, upstream.ErrDown) {
			t.Errorf("%s is %v (%v)", c.name, res[0].Status, err)
		}
		if now := srv.Value("SELECT fence FROM locksidecar WHERE name='" + c.op.Key + "'"); now != fence {
			t.Errorf("%s has been sent twice", c.name)
		}
		if err := px.Heal(); err != nil {
			t.Fatal(err)
		}
		if c.op.Kind == cache.OpRelease {
			p.want(p.do(cache.OpRelease, 0, c.op.Key, c.op.Token), cache.NotHeld)
		} else {
			p.want(p.do(c.op.Kind, c.op.Mode, c.op.Key, c.op.Token), cache.Granted) // the same token, again
		}
	}
}

func TestConnectionsFoundCutAreReplaced(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	px, p := behind(t, srv, "")
	a, _ := p.take("a", cache.Exclusive)
	for range 3 {
		eventually(t, "there are a connection and the listener's", func() bool { return px.Conns() >= 2 })
		accepted := px.Accepted()
		px.Cut()
		eventually(t, "those connections are gone", func() bool {
			later := px.Accepted() - accepted // the listener connects again
			return px.Conns() <= later
		})
		p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
	}
	px.Cut()
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// The name leads to another server now. The old server is cut off, so its connections give no
// answer. They must not be tried one after the other.
func TestServerThatIsCutOffIsGivenUpAtOnce(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	px, p := behind(t, srv, "timeout=3s")
	srv.Exec("BEGIN")
	srv.Exec("LOCK TABLE locksidecar IN EXCLUSIVE MODE")
	var wg sync.WaitGroup
	for i := range 4 { // so that each has a connection
		wg.Go(func() { p.do(cache.OpPeek, 0, "a", 0); p.do(cache.OpTry, 0, fmt.Sprint(i), uint64(i+1)) })
	}
	eventually(t, "there are four connections and the listener's", func() bool {
		return p.Connections() == 5
	})
	srv.Exec("ROLLBACK")
	wg.Wait()
	px.Stall(faultproxy.Both, true)
	storetest.GivesUpAtOnce(t, p, px, srv.Addr())
}

func TestLeasesOutliveTheServersCrash(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t)
	p, q := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	a, base := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Shared)
	if p.Info().Safety != "linearizable" {
		t.Errorf("it is called %s", p.Info().Safety)
	}
	srv.Kill()
	eventually(t, "the server's absence is noticed", func() bool {
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

func TestDroppedTableEndsLeasesAndFencesRise(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL())
	a, base := p.take("a", cache.Exclusive)
	srv.Exec("DROP TABLE locksidecar CASCADE")
	eventually(t, "the table is made anew", func() bool {
		r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
		if r.Status == cache.Refused && (!errors.Is(r.Err, upstream.ErrDown) ||
			!strings.Contains(r.Err.Error(), "dropped")) {
			t.Fatalf("the reason is %v", r.Err)
		}
		return r.Status == cache.NotHeld
	})
	if _, next := p.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestReadOnlyServerIsAnOutage(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL())
	a, base := p.take("a", cache.Exclusive)
	srv.Exec("ALTER SYSTEM SET default_transaction_read_only = on")
	srv.Exec("SELECT pg_reload_conf()")
	eventually(t, "it is noticed", func() bool {
		res, err := p.apply(upstream.Op{Kind: cache.OpRenew, Key: "a", Token: a, TTL: long},
			upstream.Op{Kind: cache.OpPeek, Key: "b"})
		if res[0].Status == cache.Done {
			return false
		}
		p.want(res[0], cache.Refused)
		p.want(res[1], cache.Refused)
		if !errors.Is(err, upstream.ErrDown) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("the reason is %v", err)
		}
		return true
	})
	if err := p.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
		t.Errorf("the ping says %v", err)
	}
	if _, err := openURL(t, srv.URL()); err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("opening it: %v", err)
	}
	srv.Exec("SET default_transaction_read_only = off")
	srv.Exec("ALTER SYSTEM RESET default_transaction_read_only")
	srv.Exec("SELECT pg_reload_conf()")
	eventually(t, "it can be written to", func() bool { return p.Ping(t.Context()) == nil })
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", a), cache.Done)
	if _, next := p.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestRowLockedByOthersDelaysNoOtherLock(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL()+"?timeout=10s")
	locked, _ := p.take("locked", cache.Exclusive)
	mine, _ := p.take("mine", cache.Exclusive)
	srv.Exec("BEGIN")
	srv.Exec("SELECT 1 FROM locksidecar WHERE name = 'locked' FOR UPDATE")
	fastest := time.Hour
	for i := range 5 {
		began := time.Now()
		res, err := p.apply(
			upstream.Op{Kind: cache.OpTry, Key: "a" + fmt.Sprint(i), Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpRelease, Key: "locked", Token: locked},
			upstream.Op{Kind: cache.OpRenew, Key: "mine", Token: mine, TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "z" + fmt.Sprint(i), Token: p.token(), TTL: long})
		p.want(res[0], cache.Granted)
		p.want(res[1], cache.Refused)
		p.want(res[2], cache.Done)
		p.want(res[3], cache.Granted)
		if errors.Is(err, upstream.ErrDown) || !strings.Contains(res[1].Err.Error(),
			"another transaction") {
			t.Errorf("the reason is %v", err)
		}
		fastest = min(fastest, time.Since(began))
	}
	if fastest > 900*time.Millisecond { // a machine that stalls does not do so each time
		t.Errorf("the others have waited for %v at least", fastest)
	}
	srv.Exec("ROLLBACK")
	p.want(p.do(cache.OpRelease, 0, "locked", locked), cache.Done)
}

func TestRowLockedByOthersIsRememberedWithAShortTimeout(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	newPeer(t, srv.URL()).take("locked", cache.Exclusive)
	p := newPeer(t, srv.URL()+"?timeout=900ms")
	srv.Exec("BEGIN")
	srv.Exec("SELECT 1 FROM locksidecar WHERE name = 'locked' FOR UPDATE")
	for end := time.Now().Add(bound); ; {
		r := p.do(cache.OpTry, cache.Exclusive, "locked", p.token())
		if r.Status == cache.Refused && strings.Contains(r.Err.Error(), "another transaction") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("it is %v (%v)", r.Status, r.Err)
		}
	}
}

// An INSERT waits for a transaction that has made the same row and has not ended. SKIP LOCKED does
// not see such a row.
func TestRowBeingMadeByOthersDelaysNoOtherLock(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL()+"?timeout=10s")
	srv.Exec("BEGIN")
	srv.Exec("INSERT INTO locksidecar VALUES ('new', 0, 0, '{}', '{}')")
	for i := range 3 {
		began := time.Now()
		res, err := p.apply(
			upstream.Op{Kind: cache.OpTry, Key: "a" + fmt.Sprint(i), Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpJoin, Key: "new", Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "z" + fmt.Sprint(i), Token: p.token(), TTL: long})
		p.want(res[0], cache.Granted)
		p.want(res[1], cache.Refused)
		p.want(res[2], cache.Granted)
		if res[1].Err == nil || errors.Is(err, upstream.ErrDown) ||
			!strings.Contains(res[1].Err.Error(), "another transaction") {
			t.Errorf("the reason is %v", err)
		}
		if took := time.Since(began); i > 0 && took > 900*time.Millisecond {
			t.Errorf("the others have waited for %v", took)
		}
	}
	srv.Exec("ROLLBACK")
	p.take("new", cache.Exclusive)
}

func TestDamagedFenceCounterConcernsOnlyItsLock(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL())
	held, _ := p.take("held", cache.Exclusive)
	for i, counter := range []string{"9007199254740991", "9223372036854775807"} {
		srv.Exec("INSERT INTO locksidecar VALUES ('bad', " + counter + ", 0, '{}', '{}') " +
			"ON CONFLICT (name) DO UPDATE SET fence = excluded.fence")
		srv.Exec("UPDATE locksidecar SET fence = " + counter + " WHERE name = 'held'")
		res, _ := p.apply(
			upstream.Op{Kind: cache.OpTry, Key: "a" + fmt.Sprint(i), Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "bad", Token: p.token(), TTL: long},
			upstream.Op{Kind: cache.OpRenew, Rebase: true, Key: "held", Token: held, TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "z" + fmt.Sprint(i), Token: p.token(), TTL: long})
		p.want(res[0], cache.Granted)
		p.want(res[1], cache.Refused)
		p.want(res[2], cache.Refused)
		p.want(res[3], cache.Granted)
	}
	p.want(p.do(cache.OpRelease, 0, "held", held), cache.Done)
}

// A commit that does not wait for its standbys is not confirmed. The server reports this only by a
// warning.
func TestCommitWithoutItsSynchronousStandbyIsUnknown(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL()+"?timeout=20s")
	p.take("a", cache.Exclusive)
	srv.Exec("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	srv.Exec("SELECT pg_reload_conf()")
	// until all processes have read it; a batch that is too early is granted below.
	time.Sleep(100 * time.Millisecond)
	var res []cache.Result
	var wg sync.WaitGroup
	wg.Go(func() { res, _ = p.apply(upstream.Op{Kind: cache.OpTry, Key: "b", Token: p.token(), TTL: long}) })
	eventually(t, "the commit waits for the standby", func() bool {
		return srv.Value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	})
	srv.Exec("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	wg.Wait()
	p.want(res[0], cache.Unknown)
	srv.Exec("SET synchronous_commit = local")
	srv.Exec("ALTER SYSTEM RESET synchronous_standby_names")
	srv.Exec("SELECT pg_reload_conf()")
	eventually(t, "it can be settled", func() bool {
		return p.do(cache.OpWithdraw, 0, "b", p.last).Status == cache.Done
	})
	p.take("b", cache.Exclusive)
}

// A batch whose last bytes never arrive keeps its rows locked until the server finds that the host
// is gone. No timeout of statements or idle transactions ends it.
func TestHostsThatAreCutOffAreNoticedByTheServer(t *testing.T) {
	p := newPeer(t, testserver.StartPostgres(t, quickly).URL())
	for name, want := range map[string]string{"tcp_keepalives_idle": "15",
		"tcp_keepalives_interval": "5",
		"tcp_keepalives_count":    "3", "tcp_user_timeout": "30000"} {
		if got, err := p.Setting(t.Context(), name); got != want || err != nil {
			t.Errorf("%s is %s (%v), not %s", name, got, err, want)
		}
	}
}

// A server whose transaction ids will soon be used up warns in each transaction.
func TestWarningAboutTransactionIDsIsNoFailure(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly, "autovacuum=off")
	p := newPeer(t, srv.URL())
	p.take("a", cache.Exclusive)
	srv.Stop()
	srv.UseUpTransactionIDs()
	srv.Start()
	warns := func() bool { return strings.Contains(srv.Log(), "must be vacuumed within") }
	eventually(t, "the server is back", func() bool { return p.Ping(t.Context()) == nil })
	p.take("b", cache.Exclusive)
	if !warns() {
		t.Error("the server has not warned")
	}
}

// The commit of an acquire waits for a standby while its host is cut off. A withdrawal is Done only
// when the acquire cannot happen any more: its row is not visible yet.
func TestWithdrawalWaitsForAnAcquireThatIsBeingCommitted(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	px, p := behind(t, srv, "timeout=20s")
	p.take("a", cache.Exclusive)
	srv.Exec("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	srv.Exec("SELECT pg_reload_conf()")
	// until all processes have read it; a batch that is too early is granted below.
	time.Sleep(100 * time.Millisecond)
	token := p.token()
	var res []cache.Result
	var wg sync.WaitGroup
	wg.Go(func() { res, _ = p.apply(upstream.Op{Kind: cache.OpTry, Key: "new", Token: token, TTL: long}) })
	eventually(t, "the commit waits for the standby", func() bool {
		return srv.Value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
	})
	if err := px.Refuse(true); err != nil {
		t.Fatal(err)
	}
	px.Cut()
	wg.Wait()
	p.want(res[0], cache.Unknown)
	time.Sleep(200 * time.Millisecond) // the library's cancel request must be refused, too
	if err := px.Heal(); err != nil {
		t.Fatal(err)
	}
	p.want(p.do(cache.OpWithdraw, 0, "new", token), cache.Refused)
	srv.Exec("SET synchronous_commit = local")
	srv.Exec("ALTER SYSTEM RESET synchronous_standby_names")
	srv.Exec("SELECT pg_reload_conf()")
	eventually(t, "it is withdrawn", func() bool {
		return p.do(cache.OpWithdraw, 0, "new", token).Status == cache.Done
	})
	if held := srv.Value("SELECT held FROM locksidecar WHERE name = 'new'"); held != "{}" {
		t.Errorf("it is held: %s", held)
	}
}

func TestManyBatchesOverTheSameKeysDoNotDeadlock(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	peers := []*peer{newPeer(t, srv.URL()+"?timeout=20s"), newPeer(t, srv.URL()+"?timeout=20s"),
		newPeer(t, srv.URL()+"?timeout=20s")}
	var wg sync.WaitGroup
	for n, p := range peers {
		wg.Go(func() {
			for range 20 {
				var ops []upstream.Op
				for i := range 100 {
					ops = append(ops, upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint("k", i),
						Token: p.token(), TTL: long})
				}
				if n%2 == 1 {
					slices.Reverse(ops)
				}
				for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
					for i := range ops {
						ops[i].Kind = kind
					}
					res, _ := p.apply(ops...)
					for i := range res {
						if res[i].Status == cache.Unknown || res[i].Status == cache.Refused {
							t.Errorf("%v: %v", res[i].Status, res[i].Err)
							return
						}
					}
				}
			}
		})
	}
	wg.Wait()
	if n := srv.Value("SELECT deadlocks FROM pg_stat_database WHERE datname = 'locks'"); n != "0" {
		t.Errorf("%s deadlocks", n)
	}
}

// If a trigger prevents a write, at once or at the commit, the op is not granted.
func TestTriggerOfOthersRefusesOps(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL())
	held, _ := p.take("held", cache.Exclusive)
	srv.Exec("CREATE FUNCTION muted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
	srv.Exec("CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'")
	for _, trigger := range []string{
		"TRIGGER others BEFORE UPDATE ON locksidecar FOR EACH ROW EXECUTE FUNCTION muted()",
		"CONSTRAINT TRIGGER others AFTER UPDATE ON locksidecar DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail()",
	} {
		srv.Exec("CREATE " + trigger)
		p.want(p.do(cache.OpRelease, 0, "held", held), cache.Refused)
		p.want(p.do(cache.OpTry, cache.Exclusive, "new", p.token()), cache.Refused)
		srv.Exec("DROP TRIGGER others ON locksidecar")
	}
	srv.Exec("CREATE TRIGGER others BEFORE INSERT ON locksidecar FOR EACH ROW EXECUTE FUNCTION muted()")
	for range 2 { // the second one does not wait for other transactions
		r := p.do(cache.OpTry, cache.Exclusive, "newer", p.token())
		p.want(r, cache.Refused)
		if !strings.Contains(r.Err.Error(), "trigger") {
			t.Errorf("the reason is %v", r.Err)
		}
	}
	srv.Exec("DROP TRIGGER others ON locksidecar")
	p.want(p.do(cache.OpRelease, 0, "held", held), cache.Done)
	p.take("new", cache.Exclusive)
}

// With a pooler that pools transactions, a batch can reach a connection of the server without the
// session's settings. One of them makes commits wait for the disk.
func TestABatchIsRefusedWithoutTheSettingsOfItsSession(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL())
	p.take("a", cache.Exclusive)
	if err := p.LoseSettings(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := p.do(cache.OpTry, cache.Exclusive, "b", p.token())
	p.want(r, cache.Refused)
	if r.Err == nil || !strings.Contains(r.Err.Error(), "pool_mode=session") {
		t.Errorf("the reason is %v", r.Err)
	}
	p.take("b", cache.Exclusive) // on a connection of its own
}

// A subscriber of logical replication cannot become the primary.
func TestALogicalReplicaIsNoStandby(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, "wal_level=logical")
	cfg, err := pgconn.ParseConfig(srv.URL() + "?replication=database")
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close(context.Background()) }()
	if err := c.Exec(t.Context(), "CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput").Close(); err != nil {
		t.Fatal(err)
	}
	if n := srv.Value("SELECT count(*) FROM pg_stat_replication"); n != "1" {
		t.Fatalf("the server sends to %s", n)
	}
	if is := newPeer(t, srv.URL()).Info().Safety; is != "linearizable" {
		t.Errorf("it is called %s", is)
	}
}

func TestUserWithoutRightsIsToldWhatToGrant(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	srv.Exec("CREATE ROLE plain LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC, plain")
	url := "postgres://plain@" + srv.Addr() + "/locks"
	if _, err := openURL(t, url); err == nil || !strings.Contains(err.Error(), "CREATE FUNCTION") ||
		!strings.Contains(err.Error(), "GRANT") {
		t.Errorf("without the table: %v", err)
	}
	newPeer(t, srv.URL()) // makes the table
	if _, err := openURL(t, url); err == nil || !strings.Contains(err.Error(),
		"GRANT SELECT, INSERT, UPDATE, DELETE ON") {
		t.Errorf("without grants: %v", err)
	}
	srv.Exec("GRANT SELECT, INSERT, UPDATE ON locksidecar, locksidecar_daemons TO plain")
	p := newPeer(t, url)
	a, _ := p.take("a", cache.Exclusive)
	p.want(p.do(cache.OpRelease, 0, "a", a), cache.Done)
	function := srv.Value("SELECT proname FROM pg_proc WHERE proname LIKE 'locksidecar_apply_%'")
	srv.Exec("REVOKE EXECUTE ON FUNCTION " + function + " FROM PUBLIC")
	if _, err := openURL(t, url); err == nil || !strings.Contains(err.Error(),
		"GRANT EXECUTE ON FUNCTION") {
		t.Errorf("without EXECUTE: %v", err)
	}
	srv.Exec("GRANT EXECUTE ON FUNCTION " + function + " TO plain")
	newPeer(t, url)
	srv.Exec("CREATE TABLE other (name text)")
	if _, err := openURL(t, srv.URL()+"?table=other"); err == nil ||
		!strings.Contains(err.Error(), "columns") {
		t.Errorf("another table: %v", err)
	}
	newPeer(t, srv.URL()+"?table=keyed").take("a", cache.Exclusive)
	srv.Exec("ALTER TABLE keyed DROP CONSTRAINT keyed_pkey, ADD PRIMARY KEY (name, fence)")
	if _, err := openURL(t, srv.URL()+"?table=keyed"); err == nil ||
		!strings.Contains(err.Error(), "primary key (name)") {
		t.Errorf("with another primary key: %v", err)
	}
	newPeer(t, srv.URL()+"?table=Mixed_Case").take("a", cache.Exclusive)
	newPeer(t, srv.URL()+"?table=Mixed_Case").take("b", cache.Exclusive)
}

func TestPurgeDeletesOnlyWhatIsLongUnused(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL())
	free, _ := p.take("free", cache.Exclusive)
	p.want(p.do(cache.OpRelease, 0, "free", free), cache.Done)
	p.take("held", cache.Exclusive)
	young, _ := p.take("young", cache.Exclusive)
	p.want(p.do(cache.OpRelease, 0, "young", young), cache.Done)
	srv.Exec("UPDATE locksidecar SET fence = fence - 25 * 3600 * 1000000::bigint WHERE name IN ('free', 'held')")
	if n, err := p.Purge(t.Context()); n != 1 || err != nil {
		t.Errorf("%d rows deleted (%v)", n, err)
	}
	if left := srv.Value("SELECT string_agg(name, ' ' ORDER BY name) FROM locksidecar"); left != "held young" {
		t.Errorf("the table has %s", left)
	}
}

func TestTheEnvironmentOfLibpqIsNotRead(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	for name, value := range map[string]string{"PGHOST": "nowhere", "PGPORT": "none",
		"PGUSER": "other", "PGPASSWORD": "secret",
		"PGDATABASE": "other", "PGOPTIONS": "-c default_transaction_read_only=on",
		"PGSSLMODE": "verify-full", "PGTARGETSESSIONATTRS": "standby",
		"PGSSLROOTCERT": "/nonexistent", "PGSSLCERT": "/nonexistent", "PGCONNECT_TIMEOUT": "none",
		"PGREQUIREAUTH": "scram-sha-256", "PGCHANNELBINDING": "require",
		"PGSSLNEGOTIATION": "direct", "PGSSLCERTMODE": "require", "PGMINPROTOCOLVERSION": "latest"} {
		t.Setenv(name, value)
	}
	newPeer(t, srv.URL()).take("a", cache.Exclusive)
}

// resolve makes every name resolve to these addresses, in this order.
func resolve(t *testing.T, ips ...netip.Addr) {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var server sync.WaitGroup
	server.Go(func() {
		query := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(query)
			if err != nil {
				return
			}
			end := 12 + bytes.IndexByte(query[12:n], 0) + 5 // of the question: a name, its type and class
			answer := append([]byte{query[0], query[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0},
				query[12:end]...)
			if query[end-3] == 1 { // it asks for IPv4 addresses
				for _, ip := range ips {
					answer[7]++
					answer = append(answer, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
					answer = append(answer, ip.AsSlice()...)
				}
			}
			_, _ = conn.WriteTo(answer, from)
		}
	})
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
		}}
	t.Cleanup(func() { net.DefaultResolver = old; _ = conn.Close(); server.Wait() })
}

// A name may have addresses that do not answer, such as addresses in a network that is down.
func TestHostWithAnAddressThatDoesNotAnswer(t *testing.T) {
	srv := testserver.StartPostgres(t, quickly)
	_, port, _ := net.SplitHostPort(srv.Addr())
	n, _ := strconv.Atoi(port)
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Port: n,
		Addr: [4]byte{127, 0, 0, 2}}), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{Timeout: 300 * time.Millisecond}
	for full := false; !full; { // until further connections get no answer
		c, err := dialer.Dial("tcp", "127.0.0.2:"+port)
		if full = err != nil; !full {
			defer c.Close()
		}
	}
	resolve(t, netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1"))
	p := newPeer(t, "postgres://postgres@two.test:"+port+"/locks?timeout=3s")
	p.take("a", cache.Exclusive)
}

// The check of an idle connection must not wait for a read that pgconn has left in the background.
// The goroutine takes a byte of an answer, so the batch after it has no answer.
func TestAReadInTheBackgroundDoesNotBlockABatch(t *testing.T) {
	t.Parallel()
	srv := testserver.StartPostgres(t, quickly)
	p := newPeer(t, srv.URL()+"?timeout=3s")
	wait := p.ReadInBackground()
	time.Sleep(50 * time.Millisecond) // until it reads
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.do(cache.OpTry, cache.Exclusive, "a", p.token())
	}()
	select {
	case <-done:
	case <-time.After(bound):
		t.Fatal("the batch hangs")
	}
	wait()
}

// The library sends a cancel request from another goroutine when the server hangs up while a
// connection is made. The race detector finds what the two share.
func TestServerThatHangsUpWhileAConnectionIsMade(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	canceled := make(chan struct{})
	var server sync.WaitGroup
	server.Go(func() {
		for once := new(sync.Once); ; {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server.Go(func() {
				defer c.Close()
				request := make([]byte, 8)
				if _, err := io.ReadFull(c, request); err != nil {
					return
				}
				const cancelRequest = 80877102
				if binary.BigEndian.Uint32(request[4:]) == cancelRequest {
					once.Do(func() { close(canceled) })
				}
			})
		}
	})
	cfg, err := postgres.Parse("postgres://postgres@" + l.Addr().String() + "/locks")
	if err != nil {
		t.Fatal(err)
	}
	s, err := postgres.OpenLazy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	select {
	case <-canceled:
	case <-time.After(bound):
		t.Error("no cancel request")
	}
	_ = l.Close()
	server.Wait()
}
