package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// refused opens a store, which must fail. The error must contain all of says and the server's
// address, and no secret.
func refused(t *testing.T, url string, says ...string) error {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := mysql.Open(t.Context(), cfg)
	if err == nil {
		_ = s.Close()
		t.Fatalf("%s opens", cfg)
	}
	for _, x := range append(says, cfg.Addr()) {
		if !strings.Contains(err.Error(), x) {
			t.Errorf("%v does not say %s", err, x)
		}
	}
	if strings.Contains(err.Error(), "falsch") || strings.Contains(err.Error(), "geheim") {
		t.Errorf("%v shows a password", err)
	}
	return err
}

func TestWrongLoginNamesTheSetting(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	srv.Exec("CREATE USER locker IDENTIFIED BY 'geheim'; GRANT ALL ON locks.* TO locker")
	refused(t, "mysql://locker:falsch@"+srv.Addr()+"/locks", "Access denied", "password_file")
	refused(t, "mysql://locker@"+srv.Addr()+"/locks", "Access denied", "password_file")
	refused(t, "mysql://locker:geheim@"+srv.Addr()+"/elsewhere", "elsewhere", "database")
	refused(t, "mysql://root@"+srv.Addr()+"/elsewhere", "Unknown database", "store URL's path")
	refused(t, srv.URL()+"?tls=true", "TLS", "tls=true")
	newPeer(t, "mysql://locker:geheim@"+srv.Addr()+"/locks").take("a", cache.Exclusive)
	// Later, the errors of refused ops show it.
	p := lazyPeer(t, "mysql://locker:falsch@"+srv.Addr()+"/locks")
	res, err := p.apply(upstream.Op{Kind: cache.OpTry, Key: "a", Token: 1, TTL: long})
	p.want(res[0], cache.Refused)
	if !errors.Is(err, upstream.ErrDown) || !strings.Contains(err.Error(), "password_file") {
		t.Errorf("the error is %v", err)
	}
}

func TestWrongTableIsRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	newPeer(t, srv.URL())
	for name, c := range map[string]struct{ change, says string }{
		"extra": {"ALTER TABLE $ ADD COLUMN more INT", "column more"},
		"fewer": {"ALTER TABLE $ DROP COLUMN queued", "no column queued"},
		"kind": {"ALTER TABLE $ MODIFY ends DATETIME(6) NOT NULL",
			"column ends is datetime(6), not bigint"},
		"length": {"ALTER TABLE $ MODIFY name VARBINARY(100) NOT NULL",
			"column name is varbinary(100), not varbinary(576)"},
		"text": {"ALTER TABLE $ MODIFY name VARCHAR(576) CHARACTER SET latin1 NOT NULL",
			"column name is varchar(576)"},
		"null":     {"ALTER TABLE $ MODIFY owner VARBINARY(36) NULL", "column owner may be NULL"},
		"unsigned": {"ALTER TABLE $ MODIFY ends BIGINT UNSIGNED NOT NULL", "unsigned, not bigint"},
		"engine":   {"ALTER TABLE $ ENGINE=MyISAM", "MyISAM, not InnoDB"},
		"key":      {"ALTER TABLE $ DROP PRIMARY KEY", "primary key"},
		"unique":   {"ALTER TABLE $ ADD UNIQUE KEY u (fence)", "another unique key"},
		"parts":    {"ALTER TABLE $ PARTITION BY KEY (name) PARTITIONS 2", "partitioned"},
		"trigger": {"CREATE TRIGGER locks.tr BEFORE UPDATE ON $ FOR EACH ROW SET NEW.fence = 1",
			"trigger tr"},
		"view": {"DROP TABLE $; CREATE VIEW $ AS SELECT * FROM locks.locksidecar", "view"},
	} {
		srv.Exec("CREATE TABLE locks.t_" + name + " LIKE locks.locksidecar; " +
			strings.ReplaceAll(c.change, "$", "locks.t_"+name))
		err := refused(t, srv.URL()+"?table=t_"+name, "t_"+name, c.says, "CREATE TABLE")
		if !errors.Is(err, mysql.ErrServer) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRightsAreAskedForByName(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	srv.Exec("CREATE USER locker IDENTIFIED BY 'geheim'; GRANT SELECT, INSERT, UPDATE, DELETE ON locks.* TO locker")
	url := "mysql://locker:geheim@" + srv.Addr() + "/locks"
	err := refused(t, url, "CREATE TABLE IF NOT EXISTS `locksidecar`", "GRANT", "Have this run there")
	// The statements in the error solve the problem.
	_, statement, _ := strings.Cut(err.Error(), "Have this run there:\n")
	statement, _, _ = strings.Cut(statement, ";")
	srv.Exec("USE locks; " + statement)
	core, logs := observer.New(zap.WarnLevel)
	p := newPeer(t, url, func(c *mysql.Config) { c.Log = zap.New(core) })
	p.take("a", cache.Exclusive)
	if n := logs.FilterMessageSnippet("DELETE").Len(); n != 0 {
		t.Errorf("it says %v", logs.All())
	}
	if n := logs.FilterMessageSnippet("a crash of the server's machine").Len(); n != 1 ||
		p.Info().Safety != "best-effort" {
		t.Errorf("of a server that forgets it says %v, and calls it %s", logs.All(), p.Info().Safety)
	}
	for _, right := range []string{"INSERT", "UPDATE", "SELECT"} {
		srv.Exec("REVOKE " + right + " ON locks.* FROM locker")
		refused(t, url, "GRANT SELECT, INSERT, UPDATE, DELETE")
		srv.Exec("GRANT " + right + " ON locks.* TO locker")
	}
	// Without DELETE it works, and logs what does not.
	srv.Exec("REVOKE DELETE ON locks.* FROM locker")
	core, logs = observer.New(zap.WarnLevel)
	newPeer(t, url, func(c *mysql.Config) { c.Log = zap.New(core) }).take("b", cache.Exclusive)
	if n := logs.FilterMessageSnippet("DELETE").Len(); n != 1 {
		t.Errorf("it says %v", logs.All())
	}
	// The right is revoked while it is in use.
	srv.Exec("REVOKE INSERT ON locks.* FROM locker; " +
		srv.Value("SELECT GROUP_CONCAT('KILL ', id SEPARATOR ';') FROM information_schema.processlist WHERE user='locker'"))
	r := p.do(cache.OpTry, 0, "c", p.token())
	p.want(r, cache.Refused)
	if !strings.Contains(r.Err.Error(), "INSERT") || !errors.Is(r.Err, upstream.ErrDown) {
		t.Errorf("the reason is %v", r.Err)
	}
}

func TestOtherServersAreRefused(t *testing.T) {
	t.Parallel()
	redis := testserver.StartRedis(t)
	refused(t, "mysql://root@"+redis.Addr()+"/locks?timeout=200ms", "MySQL or MariaDB")
	for name, c := range map[string]struct {
		first string
		says  string
	}{
		"silent":     {"", "timeout="},
		"ssh":        {"SSH-2.0-OpenSSH_9.2\r\n", "MySQL or MariaDB"},
		"postgresql": {"E\x00\x00\x00\x84SFATAL\x00VFATAL\x00C0A000\x00Munsupported frontend protocol\x00\x00", "MySQL or MariaDB"},
		"smtp":       {"220 mail ESMTP\r\n", "MySQL or MariaDB"},
		"nonsense":   {strings.Repeat("\x00", 100), "MySQL or MariaDB"},
		"closes":     {"-", "MySQL or MariaDB"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			var open []net.Conn
			for {
				conn, err := l.Accept()
				if err != nil {
					break
				}
				if c.first == "-" {
					_ = conn.Close()
					continue
				}
				_, _ = conn.Write([]byte(c.first))
				open = append(open, conn)
			}
			for _, conn := range open {
				_ = conn.Close()
			}
		})
		t.Run(name, func(t *testing.T) {
			refused(t, "mysql://root@"+l.Addr().String()+"/locks?timeout=200ms", c.says)
			p := lazyPeer(t, "mysql://root@"+l.Addr().String()+"/locks?timeout=200ms")
			r := p.do(cache.OpTry, 0, "a", 1)
			p.want(r, cache.Refused)
			if !errors.Is(r.Err, upstream.ErrDown) || !errors.Is(r.Err, mysql.ErrNothingSent) {
				t.Errorf("the reason is %v", r.Err)
			}
		})
		_ = l.Close()
		wg.Wait()
	}
}

func TestServersSettingsAreChecked(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly, "--log-bin", "--binlog-format=STATEMENT",
		"--server-id=1")
	refused(t, srv.URL(), "binlog_format", "ROW or MIXED")
	srv.Exec("SET GLOBAL binlog_format=MIXED")
	p := newPeer(t, srv.URL())
	a, _ := p.take("a", cache.Exclusive)
	p.want(p.do(cache.OpRelease, 0, "a", a), cache.Done)
	srv.Exec("SET GLOBAL max_allowed_packet=65536")
	refused(t, srv.URL(), "max_allowed_packet")
}

func TestNamesAreNothingButNames(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	p := newPeer(t, srv.URL()+"?prefix=%27%3B--%20%5C")
	keys := []string{"'; DROP TABLE locksidecar; -- ", `\`, `\'`, `"`, "x' OR '1'='1", "%", "_", "`",
		"a\x00b", "\xff\xfe", "@n", "a ", "a",
		"A", "ä", "a\u0308", strings.Repeat("x", 512), strings.Repeat("ü", 256)}
	var ops []upstream.Op
	for _, k := range keys {
		ops = append(ops, upstream.Op{Kind: cache.OpTry, Key: k, Token: p.token(), TTL: long})
	}
	for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRenew, cache.OpDowngrade, cache.OpRenew,
		cache.OpRelease} {
		for i := range ops {
			ops[i].Kind = kind
		}
		want := cache.Done
		if kind == cache.OpTry {
			want = cache.Granted
		}
		res, err := p.apply(ops...)
		for i, r := range res {
			if r.Status != want {
				t.Fatalf("%v of %q is %v (%v)", kind, keys[i], r.Status, err)
			}
		}
	}
	if n := srv.Value("SELECT COUNT(*) FROM locks.locksidecar"); n != strconv.Itoa(len(keys)) {
		t.Errorf("there are %s rows for %d keys", n, len(keys))
	}
	// A full batch has more ops than fit into a packet.
	var all []upstream.Op
	for i := range upstream.MaxBatch {
		all = append(all, upstream.Op{Kind: cache.OpTry, Key: fmt.Sprintf("%0512d", i),
			Token: p.token(), TTL: long})
	}
	res, err := p.apply(all...)
	for _, r := range res {
		if r.Status != cache.Granted {
			t.Fatalf("it is %v (%v)", r.Status, err)
		}
	}
	for _, k := range []string{"", strings.Repeat("x", 513)} {
		p.want(p.do(cache.OpTry, 0, k, p.token()), cache.Refused)
	}
}

// A request that must wait writes the whole row, with the entries of all other waiting hosts.
func TestLongQueuesFitIntoPackets(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly, "--max-allowed-packet=1M")
	const keys, waiting = 40, 400
	for name, set := range map[string][]func(*mysql.Config){
		"returning": nil, "plain": {mysql.WithoutReturning}} {
		p := newPeer(t, srv.URL()+"?timeout=10s&prefix="+name, set...)
		const later = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))+600000000"
		other := strings.Repeat("a", 22) + "." + strings.Repeat("0", 13)
		srv.Exec(fmt.Sprintf("INSERT INTO locks.locksidecar SELECT CONCAT('%s',LPAD(seq,4,'0')),"+
			"1,'',1,'%s',%s,%s,'',REPEAT(CONCAT('x%s:',%s,';'),%d) FROM %s",
			name, other, later, later, other, later, waiting, mysql.Numbers(keys)))
		var ops []upstream.Op
		for i := range keys {
			ops = append(ops, upstream.Op{Kind: cache.OpJoin, Key: fmt.Sprintf("%04d", i+1),
				Token: p.token(), TTL: long})
		}
		res, err := p.apply(ops...)
		for i, r := range res {
			if r.Status != cache.Queued {
				t.Fatalf("%s: the join of %s is %v (%v)", name, ops[i].Key, r.Status, err)
			}
		}
		if n := srv.Value("SELECT COUNT(*) FROM locks.locksidecar WHERE LOCATE('" + p.Instance() +
			"',queue)>0"); n != strconv.Itoa(keys) {
			t.Errorf("%s: it waits in %s queues", name, n)
		}
	}
}

func TestAtMostFiveConnections(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	srv.Exec("CREATE USER locker IDENTIFIED BY 'geheim'; GRANT ALL ON locks.* TO locker")
	p := newPeer(t, "mysql://locker:geheim@"+srv.Addr()+"/locks?timeout=20s&poll=10ms")
	most := 0
	stop := make(chan struct{})
	var wg, counting sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			ops, res := make([]upstream.Op, 32), make([]cache.Result, 32)
			for round := range 10 {
				for i := range ops {
					ops[i] = upstream.Op{Kind: cache.OpTry, Key: strconv.Itoa(n*64 + i),
						Token: uint64(round + 1), TTL: long}
				}
				ctx, cancel := context.WithTimeout(t.Context(), bound)
				if err := p.Apply(ctx, ops, res); err != nil {
					t.Error(err)
				}
				if _, _, err := p.List(ctx, "", "", 10); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	counting.Go(func() {
		for {
			n, _ := strconv.Atoi(srv.Value("SELECT COUNT(*) FROM information_schema.processlist WHERE user='locker'"))
			most = max(most, n)
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	wg.Wait()
	close(stop)
	counting.Wait()
	if most < 2 || most > 5 {
		t.Errorf("there are %d connections", most)
	}
}

func TestFullRowRefusesAndKeepsLeases(t *testing.T) {
	t.Parallel()
	srv := testserver.StartMariaDB(t, quickly)
	p := newPeer(t, srv.URL())
	p.take("k", cache.Shared)
	w := p.token()
	// The row has as many hosts as fit, and their entries last long.
	srv.Exec(fmt.Sprintf("SET @r = (SELECT readers FROM locks.locksidecar WHERE name='k'); SET @e = SUBSTR(@r, 38, 16);"+
		"SET SESSION group_concat_max_len=1000000;"+
		"UPDATE locks.locksidecar SET readers = (SELECT GROUP_CONCAT(CONCAT('BBBBBBBBBBBBBBBBBBB', LPAD(seq,3,'0'), '.', REPEAT('0',13), ':', @e, ';') SEPARATOR '') FROM %s),"+
		"queue = (SELECT GROUP_CONCAT(CONCAT('sCCCCCCCCCCCCCCCCCCC', LPAD(seq,3,'0'), '.', REPEAT('0',13), ':', @e, ';') SEPARATOR '') FROM %s), queued=ends WHERE name='k'", mysql.Numbers(500), mysql.Numbers(500)))
	r := p.do(cache.OpJoin, cache.Exclusive, "k", w)
	p.want(r, cache.Refused)
	if !strings.Contains(r.Err.Error(), "wait for this lock") || errors.Is(r.Err, upstream.ErrDown) {
		t.Errorf("the reason is %v", r.Err)
	}
	r = p.do(cache.OpTry, cache.Shared, "k", w)
	p.want(r, cache.Refused)
	if !strings.Contains(r.Err.Error(), "read this lock") {
		t.Errorf("the reason is %v", r.Err)
	}
	// The error reports a malformed row.
	srv.Exec("UPDATE locks.locksidecar SET readers = 'nonsense' WHERE name='k'")
	r = p.do(cache.OpTry, cache.Shared, "k", w)
	p.want(r, cache.Unknown)
	if !strings.Contains(r.Err.Error(), `"k"`) || !strings.Contains(r.Err.Error(), "malformed") {
		t.Errorf("the reason is %v", r.Err)
	}
}
