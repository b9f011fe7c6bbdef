package zookeeper_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// refused opens a store, which must fail with an error that contains parts.
func refused(t *testing.T, url string, parts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	s, err := zookeeper.Open(ctx, config(t, url))
	if err == nil {
		_ = s.Close()
	}
	says(t, err, parts...)
	if ctx.Err() != nil {
		t.Errorf("it takes for ever to say so: %v", err)
	}
}

// listener answers each connection with f.
func listener(t *testing.T, f func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); f(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

func TestWhatIsNotZooKeeper(t *testing.T) {
	t.Parallel()
	drain := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	http := listener(t, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"); drain(c) })
	refused(t, "zookeeper://"+http, http, "not ZooKeeper's protocol", "port")
	mute := listener(t, drain)
	refused(t, "zookeeper://"+mute+"?session=2s&timeout=200ms", mute, "says nothing")
	shut := listener(t, func(net.Conn) {})
	refused(t, "zookeeper://"+shut, shut, "tls=true", "quorum")
	refused(t, "zookeeper://127.0.0.1:1", "127.0.0.1:1", "refused")
	refused(t, "zookeeper://no-such-host.invalid", "no-such-host.invalid")
	redis := testserver.StartRedis(t)
	refused(t, "zookeeper://"+redis.Addr(), redis.Addr())
	// The server sends a connect response and then malformed frames.
	hello := make([]byte, 4+37)
	hello[3], hello[4+4+2], hello[4+8+7], hello[4+16+3] = 37, 0x20, 9, 16
	for _, nonsense := range []string{"\x00\x00\x00\x03abc", "\xff\xff\xff\xff", "\x00\x00\x00\x00"} {
		odd := listener(t, func(c net.Conn) {
			buf := make([]byte, 44)
			_, _ = io.ReadFull(c, buf)
			_, _ = c.Write(append(hello[:len(hello):len(hello)], nonsense...))
			drain(c)
		})
		refused(t, "zookeeper://"+odd+"?session=2s&timeout=200ms", odd)
	}
}

func TestFilesThatAreNotThere(t *testing.T) {
	for _, url := range []string{"zookeeper://u@a?password_file=/nowhere/pass",
		"zookeeper://a?tls=true&ca=/nowhere/ca"} {
		_, err := zookeeper.OpenLazy(config(t, url))
		says(t, err, "/nowhere/")
	}
	cfg := config(t, "zookeeper://a")
	cfg.Clock = nil
	_, err := zookeeper.OpenLazy(cfg)
	says(t, err, "clock")
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	file := filepath.Join(t.TempDir(), "pass")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := srv.Addr()
	p := newPeer(t, "zookeeper://ann:s3cret@"+addr+"/ann/locks")
	tok, _ := p.take("a", cache.Exclusive)
	q := newPeer(t, "zookeeper://ann@"+addr+"/ann/locks?password_file="+file)
	q.want(q.try("a", q.token()), cache.Busy)
	for _, url := range []string{"zookeeper://ann:wr0ng@" + addr + "/ann/locks",
		"zookeeper://" + addr + "/ann/locks"} {
		refused(t, url, addr, "password", "/ann/locks")
	}
	// Below an accessible path, only the key without access is refused.
	open := newPeer(t, "zookeeper://"+addr)
	res, err := open.apply(upstream.Op{Kind: cache.OpTry, Key: "ann", Token: open.token(), TTL: long},
		upstream.Op{Kind: cache.OpTry, Key: "b", Token: open.token(), TTL: long},
		upstream.Op{Kind: cache.OpPeek, Key: "ann"})
	open.want(res[0], cache.Refused)
	says(t, res[0].Err, addr, "password")
	open.want(res[1], cache.Granted)
	if errors.Is(err, upstream.ErrDown) {
		t.Errorf("the store is not down: %v", err)
	}
	// A change of the password does not affect open sessions.
	p.want(p.renew("a", tok), cache.Done)
	p.want(p.release("a", tok), cache.Done)
}

func TestChrootIsMade(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"/x/y/z")
	tok, _ := p.take("a", cache.Exclusive)
	if got := children(t, srv, "/x/y/z/a"); len(got) != 1 {
		t.Errorf("below the lock there is %v", got)
	}
	p.want(p.release("a", tok), cache.Done)
	// An ephemeral node of the path can have no children.
	if _, err := srv.Admin().Create("/e", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	refused(t, srv.URL()+"/e/f", "/e/f")
}

func TestLazyStoreWaitsForItsServer(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	srv.Kill()
	p := lazyPeer(t, srv.URL())
	p.eventually("it says why", func() bool {
		r := p.want(p.try("a", p.token()), cache.Refused)
		if !errors.Is(r.Err, upstream.ErrDown) {
			t.Fatalf("the reason is %v", r.Err)
		}
		return strings.Contains(r.Err.Error(), "connection refused")
	})
	srv.Start()
	p.soon(cache.OpTry, "a", p.token())
}

func TestTLS(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"keeper.example"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		0o600); err != nil {
		t.Fatal(err)
	}
	conf := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	// A proxy terminates TLS here, because the server would need Netty for it.
	addr := listener(t, func(c net.Conn) {
		s := tls.Server(c, conf)
		up, err := net.Dial("tcp", srv.Addr())
		if err != nil || s.Handshake() != nil {
			return
		}
		defer up.Close()
		go func() { _, _ = io.Copy(up, s); _ = up.Close() }()
		_, _ = io.Copy(s, up)
	})
	p := newPeer(t, "zookeeper://"+addr+"?tls=true&server_name=keeper.example&ca="+ca)
	p.take("a", cache.Exclusive)
	// A certificate is refused at once. A slow machine must have the time to get it.
	slow := "zookeeper://" + addr + "?session=40s&timeout=20s&tls=true"
	refused(t, slow+"&ca="+ca, addr, "server_name=")
	refused(t, slow+"&server_name=keeper.example", addr, "ca=")
	refused(t, "zookeeper://"+addr+"?session=2s&timeout=300ms", addr)
	refused(t, srv.URL()+"?tls=true&session=2s&timeout=300ms", srv.Addr())
}

// A store that does not wait for its server states the session that it asks for. The news of the
// session state the TTL that the server has granted.
func TestTheNewsOfASessionStateItsTTL(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t, "maxSessionTimeout=5000")
	cfg := config(t, srv.URL()+"?session=30s&timeout=5s")
	s, err := zookeeper.OpenLazy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	select {
	case n := <-s.Sessions():
		if n.TTL != 5*time.Second || n.No != 1 || n.Lost {
			t.Errorf("%+v", n)
		}
	case <-time.After(time.Minute):
		t.Error("there is no session")
	}
}

// A session shorter than two ticks of its server could expire there before its deadline here.
func TestSessionsShorterThanTwoTicks(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t, "tickTime=12000", "minSessionTimeout=1000")
	refused(t, srv.URL()+"?session=20s&timeout=10s", srv.Addr(), "20s", "tickTime is 12s",
		"minSessionTimeout", "session=", "24s or more")
	safe := lazyPeer(t, srv.URL()+"?session=24s&timeout=10s")
	safe.soon(cache.OpTry, "a", safe.token())

	mute := testserver.StartZooKeeper(t, "minSessionTimeout=1000", "4lw.commands.whitelist=srvr")
	p := lazyPeer(t, mute.URL()+"?session=3900ms&timeout=1900ms")
	var why error
	p.eventually("the error names the reason", func() bool {
		r := p.want(p.try("a", p.token()), cache.Refused)
		if !errors.Is(r.Err, upstream.ErrDown) {
			t.Fatalf("the reason is %v", r.Err)
		}
		why = r.Err
		return errors.Is(why, zookeeper.ErrServer)
	})
	says(t, why, mute.Addr(), "3.9s", "tickTime", "session=", "4s or more", "4lw.commands.whitelist")
	safe = lazyPeer(t, mute.URL()+"?session=4s&timeout=2s")
	safe.soon(cache.OpTry, "a", safe.token())
}
