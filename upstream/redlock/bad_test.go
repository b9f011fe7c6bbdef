package redlock_test

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// fails returns the error of opening a store.
func fails(t *testing.T, url string) string {
	t.Helper()
	cfg, err := redlock.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redlock.Open(t.Context(), cfg, member)
	if err == nil {
		_ = s.Close()
		t.Fatalf("%v can be opened", cfg)
	}
	return err.Error()
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	c := start(t, 2, "--requirepass", "hunter2")
	plain := start(t, 1)
	all := append(plain, c...)
	secret := strings.Replace(all.url("timeout=2s"), "//", "//:hunter3@", 1)
	if msg := fails(t, secret); !strings.Contains(msg, c[0].Addr()) ||
		!strings.Contains(msg, c[1].Addr()) ||
		!strings.Contains(msg, "password") || strings.Contains(msg, "hunter") {
		t.Errorf("a wrong password: %s", msg)
	}
	// A quorum is enough to begin. The log names the missing node.
	core, logs := observer.New(zap.WarnLevel)
	two := append(start(t, 1), plain[0], c[0])
	p := newPeer(t, two.url("timeout=2s"), func(c *redlock.Config) { c.Log = zap.New(core) })
	p.take("k", cache.Exclusive)
	if n := logs.FilterMessage("node does not vote").FilterField(zap.String("node",
		c[0].Addr())).Len(); n == 0 {
		t.Errorf("the logs say %v", logs.All())
	}
	plain[0].Do("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	evicts := append(start(t, 1, "--maxmemory-policy", "allkeys-lru"), plain[0], c[0])
	if msg := fails(t, evicts.url("timeout=2s")); !strings.Contains(msg, "maxmemory-policy") ||
		!strings.Contains(msg, "allow_eviction") {
		t.Errorf("nodes that evict: %s", msg)
	}
	if msg := fails(t, "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3?timeout=1s"); !strings.Contains(msg, "127.0.0.1:2") {
		t.Errorf("nobody there: %s", msg)
	}
	cfg, err := redlock.Parse(two.url("password_file=/nowhere"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redlock.OpenLazy(cfg, member); err == nil ||
		!strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("a password file that is not there: %v", err)
	}
}

func TestAnOpThatNobodyTakesIsRefusedAndTheStoreIsNotDown(t *testing.T) {
	c := start(t, 3)
	p := newPeer(t, c.url(patient))
	// Two nodes decide. If the third is the last to answer, its effect is not known yet.
	var res []upstream.Result
	var err error
	var b uint64
	soon(t, "the third node answers before the others have decided", func() bool {
		a := p.token()
		b = p.token()
		res, err = p.apply(upstream.Op{Kind: cache.OpTry, Key: "a", Token: a, TTL: long,
			Floor: cache.MaxBase},
			upstream.Op{Kind: cache.OpTry, Key: "b", Token: b, TTL: long})
		p.want(res[1], cache.Granted)
		if res[0].Status == cache.Unknown {
			p.release("b", b)
			return false
		}
		return true
	})
	p.want(res[0], cache.Refused)
	if err == nil || errors.Is(err, upstream.ErrDown) || !strings.Contains(err.Error(), "floor") {
		t.Errorf("the error is %v", err)
	}
	for _, s := range c[:2] {
		s.Do("CONFIG", "SET", "maxmemory", "1")
	}
	soon(t, "the third node answers before the others have decided", func() bool {
		res, err = p.apply(upstream.Op{Kind: cache.OpTry, Key: "c", Token: p.token(), TTL: long})
		return res[0].Status != cache.Unknown
	})
	p.want(res[0], cache.Refused)
	if err == nil || errors.Is(err, upstream.ErrDown) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("without memory: %v", err)
	}
	p.renew("b", b)
	p.release("b", b)
	p.settled()
	c.empty(t)
}

func TestTLS(t *testing.T) {
	authority := testserver.NewAuthority(t, t.TempDir())
	authority.Issue("node")
	ca, crt, key := authority.File("ca.crt"), authority.File("node.crt"), authority.File("node.key")
	var hosts []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		_ = l.Close()
		start(t, 1, "--tls-port", port, "--tls-ca-cert-file", ca, "--tls-cert-file", crt,
			"--tls-key-file", key)
		hosts = append(hosts, "127.0.0.1:"+port)
	}
	url := "redlocks://" + strings.Join(hosts, ",") + "?timeout=5s"
	ours := "&ca=" + ca + "&cert=" + crt + "&key=" + key
	p := newPeer(t, url+ours)
	tok, _ := p.take("k", cache.Exclusive)
	p.release("k", tok)
	if msg := fails(t, url); !strings.Contains(msg, "certificate") {
		t.Errorf("an unknown authority: %s", msg)
	}
	if msg := fails(t, url+ours+"&server_name=elsewhere"); !strings.Contains(msg, "elsewhere") {
		t.Errorf("another name: %s", msg)
	}
}
