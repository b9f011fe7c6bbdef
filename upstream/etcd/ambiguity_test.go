package etcd_test

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// wire is a proxy to a server that can lose requests or answers.
type wire struct {
	net.Listener
	to string

	mu           sync.Mutex
	conns        map[net.Conn]bool
	loseRequests bool // guarded by mu, as are the fields below
	loseAnswers  bool
	delay        time.Duration     // of answers
	hold         func([]byte) bool // says from which bytes on a connection's requests are held back
	late         []late            // what has been held back
	closed       bool
	wg           sync.WaitGroup
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, to: to, conns: map[net.Conn]bool{}}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		w.closed = true
		for _, l := range w.late {
			_ = l.Close()
		}
		w.mu.Unlock()
		w.cut()
		w.wg.Wait()
	})
	return w
}

func (w *wire) accept() {
	for {
		a, err := w.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", w.to)
		if err != nil {
			_ = a.Close()
			continue
		}
		w.mu.Lock()
		w.conns[a], w.conns[b] = true, true
		closed := w.closed
		w.mu.Unlock()
		if closed {
			w.cut()
		}
		w.wg.Go(func() { w.carry(b, a, &w.loseRequests) })
		w.wg.Go(func() { w.carry(a, b, &w.loseAnswers) })
	}
}

// late has bytes that reach a server after the client's side of the connection has ended.
type late struct {
	net.Conn
	bytes []byte
}

func (w *wire) carry(to, from net.Conn, lose *bool) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			_ = to.Close()
			return
		}
		w.mu.Lock()
		lost, delay := *lose, w.delay
		hold := lose == &w.loseRequests && w.hold != nil && w.hold(buf[:n])
		if hold {
			w.late = append(w.late, late{to, bytes.Clone(buf[:n])})
			delete(w.conns, to)
		}
		w.mu.Unlock()
		if hold {
			_ = from.Close()
			return
		}
		if lose == &w.loseAnswers && delay > 0 {
			time.Sleep(delay)
		}
		if lost {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			_ = to.Close()
			return
		}
	}
}

func (w *wire) lose(requests, answers bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loseRequests, w.loseAnswers = requests, answers
}

// holdFrom makes the wire hold back bytes that hold accepts. Their connection ends.
func (w *wire) holdFrom(hold func([]byte) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hold = hold
}

// deliver sends the requests that were held back to the server, and returns their number.
func (w *wire) deliver() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.late {
		_, _ = l.Write(l.bytes)
	}
	return len(w.late)
}

// cut ends all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
	clear(w.conns)
}

func wirePeer(t *testing.T, srv *testserver.Etcd, query string) (*peer, *wire) {
	t.Helper()
	w := newWire(t, srv.Addr())
	cfg, err := etcd.Parse("etcd://" + w.Addr().String() + "?" + query)
	if err != nil {
		t.Fatal(err)
	}
	return &peer{TB: t, Store: openConfig(t, cfg)}, w
}

// again makes the wire work again, on new connections.
func (p *peer) again(w *wire) {
	p.Helper()
	w.lose(false, false)
	w.cut()
	p.eventually("the server is reached", func() bool {
		return p.do(cache.OpPeek, 0, "reached", 0).Status == cache.Done
	})
}

func TestAnswersThatNeverCome(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, w := wirePeer(t, srv, "timeout=2s&ttl=180s")
	stands := func(lock string) bool {
		return strings.Contains(strings.Join(keys(t, srv.Admin()), " "), dir+lock+"/")
	}
	for _, happens := range []bool{true, false} {
		// An unresolved acquire is settled by a withdrawal, and by another acquire.
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			w.lose(!happens, happens)
			a, b := p.token(), p.token()
			res, err := p.apply(upstream.Op{Kind: kind, Key: "a", Token: a, TTL: long},
				upstream.Op{Kind: kind, Mode: cache.Shared, Key: "b", Token: b, TTL: long})
			p.want(res[0], cache.Unknown)
			p.want(res[1], cache.Unknown)
			if err == nil {
				t.Error("no error")
			}
			if stands("a") != happens || stands("b") != happens {
				t.Errorf("it has happened: %v, %v", stands("a"), stands("b"))
			}
			p.again(w)
			p.want(p.do(cache.OpWithdraw, cache.Exclusive, "a", a), cache.Done)
			p.want(p.do(kind, cache.Shared, "b", b), cache.Granted)
			p.want(p.do(cache.OpRelease, cache.Exclusive, "b", b), cache.Done)
		}
		// A release.
		tok, _ := p.take("c", cache.Exclusive)
		w.lose(!happens, happens)
		p.want(p.do(cache.OpRelease, cache.Exclusive, "c", tok), cache.Unknown)
		if stands("c") == happens {
			t.Error("the release has happened or not")
		}
		p.again(w)
		want := cache.Done
		if happens {
			want = cache.NotHeld
		}
		p.want(p.do(cache.OpRelease, cache.Exclusive, "c", tok), want)
		// A downgrade.
		tok, _ = p.take("d", cache.Exclusive)
		w.lose(!happens, happens)
		p.want(p.do(cache.OpDowngrade, cache.Shared, "d", tok), cache.Unknown)
		p.again(w)
		p.want(p.do(cache.OpDowngrade, cache.Shared, "d", tok), cache.Done)
		p.want(p.do(cache.OpRenew, cache.Shared, "d", tok), cache.Done)
		p.want(p.do(cache.OpRelease, cache.Shared, "d", tok), cache.Done)
		if ks := keys(t, srv.Admin()); len(ks) != 0 {
			t.Errorf("left: %q", ks)
		}
	}
}

// The session's deadline counts from before the send of the renewal. So a slow answer moves it by
// less.
func TestDeadlineIsFromTheSending(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	w := newWire(t, srv.Addr())
	cfg, err := etcd.Parse("etcd://" + w.Addr().String() + "?ttl=6s&timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	clock := func() int64 { return int64(time.Since(begun)) + 1 }
	cfg.Clock = clock
	s, err := etcd.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	p := &peer{TB: t, Store: s}
	// An answer may come in two pieces, and the machine may be busy.
	const ttl, delay = 6 * time.Second, 500 * time.Millisecond
	w.mu.Lock()
	w.delay = delay
	w.mu.Unlock()
	late := clock()
	for n := 0; n < 3; {
		x := p.session("renewed", func(upstream.Session) bool { return true })
		if x.Lost {
			t.Fatal("lost")
		}
		if x.Until > late+int64(ttl) { // it was sent after delay was set
			n++
		}
		if now := clock(); n > 0 && x.Until > now-int64(delay)+int64(ttl) {
			t.Errorf("the deadline is %v away", time.Duration(x.Until-now))
		}
	}
}

// A machine that is suspended for longer than the TTL has lost its session when it resumes,
// whatever the server says.
func TestSleepBeyondTheTTLLosesTheSession(t *testing.T) {
	srv := testserver.StartEtcd(t)
	var slept atomic.Int64
	begun := time.Now()
	cfg := config(t, "ttl=10s", srv)
	cfg.Clock = func() int64 { return int64(time.Since(begun)) + slept.Load() + 1 }
	s, err := etcd.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, s)
	p := &peer{TB: t, Store: s}
	a, base := p.take("a", cache.Exclusive)
	slept.Add(int64(time.Hour))
	p.want(p.do(cache.OpTry, cache.Exclusive, "b", p.token()), cache.Refused)
	p.lost(1)
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	if _, next := p.comes(cache.OpTry, "a"); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

// If a cut connection is found before anything is sent, the op is Refused. After the send, it is
// Unknown.
func TestCutConnections(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p, w := wirePeer(t, srv, "timeout=2s&ttl=30s")
	held, _ := p.take("held", cache.Exclusive)
	for range 30 {
		go w.cut()
		tok := p.token()
		switch r := p.do(cache.OpTry, cache.Exclusive, "a", tok); r.Status {
		case cache.Granted:
			p.released("a", tok)
		case cache.Refused:
			p.want(p.seen(srv, "a"), cache.Done)
		case cache.Unknown:
			p.eventually("the unresolved request is withdrawn", func() bool {
				return p.do(cache.OpWithdraw, cache.Exclusive, "a", tok).Status == cache.Done
			})
			p.want(p.seen(srv, "a"), cache.Done)
		default:
			t.Fatalf("it is %v (%v)", r.Status, r.Err)
		}
	}
	p.eventually("the lease stands", func() bool {
		r := p.do(cache.OpRenew, cache.Exclusive, "held", held)
		if r.Status == cache.NotHeld {
			t.Fatal("lost")
		}
		return r.Status == cache.Done
	})
}

// seen peeks at a lock through another connection. It is Done if the lock is free.
func (p *peer) seen(srv *testserver.Etcd, lock string) cache.Result {
	p.Helper()
	for _, k := range keys(p.TB, srv.Admin()) {
		if strings.HasPrefix(k, dir+lock+"/") {
			return cache.Result{Status: cache.Busy}
		}
	}
	return cache.Result{Status: cache.Done}
}
