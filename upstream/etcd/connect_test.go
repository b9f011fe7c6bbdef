package etcd_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// fails checks that opening raw fails, and that the error has all of the words and none of the
// others. A store that is opened lazily must refuse ops with the same error.
func fails(t *testing.T, raw string, words ...string) {
	t.Helper()
	cfg, err := etcd.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	s, err := etcd.Open(t.Context(), cfg)
	if err == nil {
		_ = s.Close()
		t.Fatalf("%s opens", raw)
	}
	says := func(err error) bool {
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				return false
			}
		}
		return true
	}
	if !says(err) || !strings.Contains(err.Error(), cfg.Endpoints[0]) ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%s: %v, not %q", cfg, err, words)
	}
	if p, err := etcd.OpenLazy(cfg); err == nil {
		closeLater(t, p)
		lazy := &peer{TB: t, Store: p}
		lazy.eventually("the reason is told", func() bool {
			r := lazy.do(cache.OpTry, cache.Exclusive, "k", lazy.token())
			lazy.want(r, cache.Refused)
			return says(r.Err)
		})
	}
}

func TestNobodyThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	fails(t, "etcd://"+addr+"?timeout=500ms", "connection refused")
}

func TestSilentServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fails(t, "etcd://"+l.Addr().String()+"?timeout=300ms", "no answer")
}

func TestServerOfAnotherKind(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	fails(t, "etcd://"+strings.TrimPrefix(web.URL, "http://")+"?timeout=500ms", "no etcd")
	redis := testserver.StartRedis(t)
	fails(t, "etcd://"+redis.Addr()+"?timeout=500ms", "no etcd")
}

func TestFilesThatAreNotThere(t *testing.T) {
	for _, q := range []string{"tls=true&ca=/nowhere", "tls=true&cert=/nowhere&key=/nowhere"} {
		cfg, err := etcd.Parse("etcd://localhost?" + q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := etcd.OpenLazy(cfg); err == nil || !strings.Contains(err.Error(), "/nowhere") {
			t.Errorf("%s: %v", q, err)
		}
	}
	cfg, err := etcd.Parse("etcd://me@localhost?password_file=/nowhere")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcd.OpenLazy(cfg); err == nil || !strings.Contains(err.Error(), "password file") {
		t.Error(err)
	}
}

// withUsers starts a server with the users root and me. The user me may only use the default
// prefix.
func withUsers(t *testing.T, args ...string) *testserver.Etcd {
	t.Helper()
	srv := testserver.StartEtcd(t, args...)
	a := srv.Admin()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	must(a.UserAdd(ctx, "root", "rootpw"))
	must(a.UserGrantRole(ctx, "root", "root"))
	must(a.RoleAdd(ctx, "locks"))
	must(a.RoleGrantPermission(ctx, "locks", dir, clientv3.GetPrefixRangeEnd(dir),
		clientv3.PermissionType(clientv3.PermReadWrite)))
	must(a.UserAdd(ctx, "me", "s3cret"))
	must(a.UserGrantRole(ctx, "me", "locks"))
	must(a.UserAdd(ctx, "other", "s3cret"))
	must(a.AuthEnable(ctx))
	srv.AdminUser("root", "rootpw")
	return srv
}

func TestUsers(t *testing.T) {
	t.Parallel()
	srv := withUsers(t)
	at := "@" + srv.Addr() + "?timeout=2s"
	fails(t, "etcd://me:wr0ng"+at, "cannot log in", "password_file")
	fails(t, "etcd://nobody:s3cret"+at, "cannot log in")
	fails(t, "etcd://"+srv.Addr()+"?timeout=2s", "user:password@")
	fails(t, "etcd://other:s3cret"+at, "permission", "readwrite")
	fails(t, "etcd://me:s3cret"+at+"&prefix=/elsewhere", "permission", "/elsewhere/")
	cfg, err := etcd.Parse("etcd://me:s3cret" + at)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{TB: t, Store: openConfig(t, cfg)}
	q := &peer{TB: t, Store: openConfig(t, cfg)}
	tok, _ := p.take("a", cache.Exclusive)
	waits := q.token()
	q.want(q.do(cache.OpJoin, cache.Exclusive, "a", waits), cache.Queued)
	p.hinted(cache.HintContended, "a")
	if locks, _, err := p.List(t.Context(), "", "", 5); err != nil || len(locks) != 1 ||
		locks[0].Left <= 0 {
		t.Errorf("%+v, %v", locks, err)
	}
	if _, err := q.Sweep(t.Context(), func(string, uint64) bool { return true }); err != nil {
		t.Error(err)
	}
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", tok), cache.Done)
	q.hinted(cache.HintAvailable, "a")
	q.want(q.do(cache.OpJoin, cache.Exclusive, "a", waits), cache.Granted)
}

// A token ends after a while without use, at a restart of the server, and when rights change. None
// of this affects ops.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	srv := withUsers(t, "--auth-token-ttl=1")
	file := filepath.Join(t.TempDir(), "password")
	write := func(pw string) {
		if err := os.WriteFile(file, []byte(pw+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("s3cret")
	cfg, err := etcd.Parse("etcd://me@" + srv.Addr() + "?timeout=5s&ttl=6s&password_file=" +
		url.QueryEscape(file))
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{TB: t, Store: openConfig(t, cfg)}
	q := &peer{TB: t, Store: openConfig(t, cfg)}
	tok, _ := p.take("a", cache.Exclusive)
	q.want(q.do(cache.OpJoin, cache.Exclusive, "a", q.token()), cache.Queued)
	p.hinted(cache.HintContended, "a") // on a stream that has the first token
	until := p.do(cache.OpRenew, cache.Exclusive, "a", tok).Session
	// The time between two renewals of the session is longer than the life of a token.
	for range 2 {
		s := p.session("renewed", func(s upstream.Session) bool { return s.Until > until })
		if s.No != 1 || s.Lost {
			t.Fatalf("the session's news is %+v", s)
		}
		until = s.Until
		p.want(p.do(cache.OpRenew, cache.Exclusive, "a", tok), cache.Done)
	}
	later, _ := p.take("later", cache.Exclusive)
	waits := q.token()
	q.want(q.do(cache.OpJoin, cache.Exclusive, "later", waits), cache.Queued)
	p.hinted(cache.HintContended, "later")
	p.want(p.do(cache.OpRelease, cache.Exclusive, "later", later), cache.Done)
	q.hinted(cache.HintAvailable, "later")
	q.want(q.do(cache.OpJoin, cache.Exclusive, "later", waits), cache.Granted)
	if _, err := srv.Admin().RoleGrantPermission(t.Context(), "locks", "/more", "",
		clientv3.PermissionType(clientv3.PermRead)); err != nil {
		t.Fatal(err)
	}
	p.take("b", cache.Exclusive)
	srv.Restart()
	p.eventually("the lease is renewed", func() bool {
		return p.do(cache.OpRenew, cache.Exclusive, "a", tok).Status == cache.Done
	})

	// After a change of the password, a client with a token continues. Then the store reports the
	// reason.
	if _, err := srv.Admin().UserChangePassword(t.Context(), "me", "n3w"); err != nil {
		t.Fatal(err)
	}
	p.eventually("the reason is told", func() bool {
		r := p.do(cache.OpTry, cache.Exclusive, "c", p.token())
		if r.Status == cache.Granted {
			return false
		}
		p.want(r, cache.Refused)
		return strings.Contains(r.Err.Error(), "password_file") &&
			!strings.Contains(r.Err.Error(), "s3cret")
	})
	write("n3w")
	p.comes(cache.OpTry, "d")
}

// certs has the files of a certificate authority, and of its certificates for a server at 127.0.0.1
// and for a client.
type certs struct{ ca, server, serverKey, client, clientKey string }

func newCerts(t *testing.T) certs {
	t.Helper()
	a := testserver.NewAuthority(t, t.TempDir())
	a.Issue("server")
	a.Issue("client")
	return certs{a.File("ca.crt"), a.File("server.crt"), a.File("server.key"), a.File("client.crt"),
		a.File("client.key")}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	c, other := newCerts(t), newCerts(t)
	srv := testserver.StartEtcd(t, "--cert-file="+c.server, "--key-file="+c.serverKey,
		"--client-cert-auth", "--trusted-ca-file="+c.ca)
	at := func(host string, params ...string) string {
		_, port, _ := net.SplitHostPort(srv.Addr())
		return "etcd://" + host + ":" + port + "?timeout=10s&" + strings.Join(params, "&")
	}
	on, ca, own := "tls=true", "ca="+c.ca, "cert="+c.client+"&key="+c.clientKey
	fails(t, at("127.0.0.1"), "tls=true")
	fails(t, at("127.0.0.1", on, own), "ca=")
	fails(t, at("127.0.0.1", on, "ca="+other.ca, own), "ca=")
	fails(t, at("localhost", on, ca, own), "server_name=")
	fails(t, at("127.0.0.1", on, ca, own, "server_name=elsewhere"), "server_name=")
	fails(t, at("127.0.0.1", on, ca), "cert=")
	fails(t, at("127.0.0.1", on, ca, "cert="+other.client+"&key="+other.clientKey), "cert=")
	for _, u := range []string{at("127.0.0.1", on, ca, own),
		at("localhost", on, ca, own, "server_name=127.0.0.1")} {
		cfg, err := etcd.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{TB: t, Store: openConfig(t, cfg)}
		tok, _ := p.take("a", cache.Exclusive)
		p.want(p.do(cache.OpRelease, cache.Exclusive, "a", tok), cache.Done)
	}
	plain := testserver.StartEtcd(t)
	fails(t, "etcd://"+plain.Addr()+"?timeout=1s&tls=true&"+ca, "TLS port")
	pair, err := tls.LoadX509KeyPair(c.client, c.clientKey)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	b, _ := os.ReadFile(c.ca)
	pool.AppendCertsFromPEM(b)
	srv.AdminTLS(&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}})
	if _, err := srv.Admin().Get(context.Background(), "x"); err != nil {
		t.Error(err)
	}
}

func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	s, err := etcd.Open(t.Context(), config(t, "", srv))
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{TB: t, Store: s}
	p.take("k", cache.Exclusive)
	as := func(n int) func() bool {
		return func() bool { return s.Connections() == n && testserver.Connections(t, srv.Addr()) == n }
	}
	p.eventually("one, as the kernel says", as(1))
	srv.Kill()
	p.eventually("none when the server has gone", as(0))
	srv.Start()
	p.eventually("one again", as(1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	p.eventually("none after the end", as(0))
}
