package redis_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func openURL(t *testing.T, url string, set ...func(*redis.Config)) (*peer, error) {
	t.Helper()
	cfg, err := redis.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), storetest.With(cfg, set))
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = s.Close() })
	return &peer{T: t, Store: s}, nil
}

func TestUnixSocketServes(t *testing.T) {
	srv := testserver.StartRedis(t)
	for _, scheme := range []string{"unix", "redis+unix"} {
		p, err := openURL(t, scheme+"://"+srv.Socket()+"?db=1")
		if err != nil {
			t.Fatal(err)
		}
		p.take(scheme, cache.Exclusive)
	}
	if n := srv.Do("DBSIZE"); n != int64(0) {
		t.Errorf("there are %v keys in database 0", n)
	}
}

func TestAtMostFourConnections(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "timeout=10s")
	var wg sync.WaitGroup
	for n := range 16 {
		wg.Go(func() {
			res := make([]cache.Result, 64)
			ops := make([]upstream.Op, 64)
			for round := range 20 {
				for i := range ops {
					ops[i] = upstream.Op{Kind: cache.OpTry, Key: strconv.Itoa(n*64 + i),
						Token: uint64(round + 1), TTL: long}
				}
				if err := p.Apply(t.Context(), ops, res); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	list := srv.Do("CLIENT", "LIST").(string)
	if n := strings.Count(list, "name=locksidecar"); n < 2 || n > 4 {
		t.Errorf("there are %d connections:\n%s", n, list)
	}
}

func TestRestrictedUserIsEnough(t *testing.T) {
	srv := testserver.StartRedis(t)
	acl := []any{"ACL", "SETUSER", "locker", "on", ">geheim", "~lock:*", "~locksidecar:*",
		"&locksidecar:*"}
	full := strings.Fields("+@read +@write +@scripting +@connection +time +info +role +publish +subscribe")
	grant := func(rights ...string) {
		for _, r := range rights {
			acl = append(acl, r)
		}
		srv.Do(acl...)
	}
	grant(full...)
	url := "redis://locker:geheim@" + srv.Addr()
	core, logs := observer.New(zap.WarnLevel)
	p, err := openURL(t, url, func(c *redis.Config) { c.Log = zap.New(core) })
	if err != nil {
		t.Fatal(err)
	}
	q := newPeer(t, srv, "")
	a, _ := p.take("a", cache.Exclusive)
	w := q.token()
	q.want(q.do(cache.OpJoin, cache.Shared, "a", w), cache.Queued)
	p.want(p.do(cache.OpDowngrade, 0, "a", a), cache.Done)
	q.want(q.do(cache.OpJoin, cache.Shared, "a", w), cache.Granted)
	p.want(p.do(cache.OpRelease, 0, "a", a), cache.Done)
	if logs.Len() != 0 {
		t.Errorf("with all rights it says %v", logs.All())
	}
	// Without the rights for its checks, the store only warns.
	grant("-info", "-role", "-config")
	core, logs = observer.New(zap.WarnLevel)
	if _, err := openURL(t, url, func(c *redis.Config) { c.Log = zap.New(core) }); err != nil {
		t.Error(err)
	}
	if n := logs.FilterMessageSnippet("maxmemory-policy").Len(); n != 1 {
		t.Errorf("it says %v", logs.All())
	}
	// Without the rights for its ops, the store refuses them and names the right.
	p.last++
	for _, right := range []string{"-evalsha", "-time", "-set"} {
		grant(right)
		r := p.do(cache.OpTry, 0, "b", p.last)
		p.want(r, cache.Refused)
		if !strings.Contains(r.Err.Error(), "NOPERM") &&
			!strings.Contains(r.Err.Error(), "can't run this command") {
			t.Errorf("%s: the reason is %v", right, r.Err)
		}
		grant("+" + right[1:])
	}
	p.take("b", cache.Exclusive)
	// The error names these once a batch has more than one permit.
	for _, right := range []string{"-zadd", "-zcard", "-zremrangebyscore"} {
		grant(right)
		r := p.permit(cache.OpTry, right, 1, p.token())
		if r.Status == cache.Granted {
			r = p.permit(cache.OpTry, right, 1, p.token())
		}
		p.want(r, cache.Refused)
		grant("+" + right[1:])
	}
	p.joinPermits("c", 1, len(p.takePermits("c", 1, 1)))
	p.want(p.permit(cache.OpRenew, "c", 1, p.last-1), cache.Done)
	p.want(p.permit(cache.OpRelease, "c", 1, p.last-1), cache.Done)
	p.want(p.permit(cache.OpJoin, "c", 1, p.last), cache.Granted)
	grant("-script")
	if _, err := openURL(t, url); err == nil || !strings.Contains(err.Error(), "+@scripting") {
		t.Errorf("without SCRIPT LOAD: %v", err)
	}
}

func TestWrongPasswordNamesTheSettingAndNotThePassword(t *testing.T) {
	srv := testserver.StartRedis(t, "--requirepass", "geheim")
	for _, user := range []string{"", ":falsch@", "nobody:falsch@"} {
		_, err := openURL(t, "redis://"+user+srv.Addr())
		if err == nil {
			t.Fatal("it opens")
		}
		for _, says := range []string{srv.Addr(), "password_file", "store URL"} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%v does not say %s", err, says)
			}
		}
		if strings.Contains(err.Error(), "falsch") {
			t.Errorf("%v shows the password", err)
		}
	}
	if _, err := openURL(t, "redis://"+srv.Addr()+"?password_file=/nowhere/pw"); !errors.Is(err,
		os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	p, err := openURL(t, "redis://:geheim@"+srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	p.take("a", cache.Exclusive)
}

func TestAnInstanceGoesOnWithItsLeases(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	a, _ := p.take("a", cache.Exclusive)
	q := &peer{T: t, Store: open(t, srv, "", continuing(p.Instance())), last: p.last}
	q.want(q.do(cache.OpRenew, 0, "a", a), cache.Done)
	q.want(q.do(cache.OpRelease, 0, "a", a), cache.Done)
	cfg, _ := redis.Parse(srv.URL())
	for _, id := range []string{"x", "AAAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAA.A"} {
		cfg.Instance = id
		if _, err := redis.OpenLazy(cfg); err == nil {
			t.Errorf("%q is accepted", id)
		}
	}
}

func TestAConnectionThatSaysNothingIsGivenUp(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg, err := redis.Parse("redis://" + l.Addr().String() + "?timeout=100ms")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redis.Open(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), "timeout") {
		t.Errorf("opening it: %v", err)
	}
	p := lazyPeer(t, "redis://"+l.Addr().String()+"?timeout=100ms")
	r := p.do(cache.OpTry, 0, "a", p.token())
	p.want(r, cache.Refused)
	if !errors.Is(r.Err, redis.ErrNothingSent) {
		t.Errorf("the reason is %v", r.Err)
	}
}

func TestTLSWithBothSidesChecked(t *testing.T) {
	authority := testserver.NewAuthority(t, t.TempDir())
	authority.Issue("server")
	authority.Issue("client")
	file := authority.File
	port := unusedPort(t)
	srv := testserver.StartRedis(t, "--tls-port", port, "--tls-ca-cert-file", file("ca.crt"),
		"--tls-cert-file", file("server.crt"), "--tls-key-file", file("server.key"))
	url := "rediss://127.0.0.1:" + port + "?timeout=30s" // a handshake takes long on a busy machine
	p, err := openURL(t, url+"&ca="+file("ca.crt")+"&cert="+file("client.crt")+"&key="+
		file("client.key"))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := p.take("a", cache.Exclusive)
	srv.Restart()
	p.eventually("it connects again", func() bool {
		return p.do(cache.OpRenew, 0, "a", a).Status == cache.NotHeld
	})

	for query, says := range map[string]string{
		"": "certificate", // signed by an unknown authority
		// the server requires our certificate, and may just close the connection.
		"&ca=" + file("ca.crt"): "",
		"&server_name=elsewhere&ca=" + file("ca.crt") + "&cert=" + file("client.crt") + "&key=" +
			file("client.key"): "elsewhere",
		"&ca=" + file("none"):                                  "none",
		"&ca=" + file("client.key"):                            "no certificate",
		"&cert=" + file("client.crt") + "&key=" + file("none"): "none",
	} {
		if _, err := openURL(t, url+query); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", query, err)
		}
	}
}

func unusedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func TestOpsEndWithTheirContext(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "timeout=30s")
	srv.Pause()
	defer srv.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	res := make([]cache.Result, 1)
	_ = p.Apply(ctx, []upstream.Op{{Kind: cache.OpTry, Key: "a", Token: 1, TTL: long}}, res)
	p.want(res[0], cache.Unknown)
}

func TestConnectionsAreCounted(t *testing.T) {
	srv := testserver.StartRedis(t)
	cfg, err := redis.Parse("unix://" + srv.Socket())
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{T: t, Store: s}
	p.take("k", cache.Exclusive)
	p.eventually("as many as the server sees, but for the one that asks", func() bool {
		return s.Connections() == strings.Count(srv.Do("CLIENT", "LIST").(string), "\n")-1
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := s.Connections(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
