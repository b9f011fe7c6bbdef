package redis_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// These tests check the table in doc.go.

func TestRestartEndsLeasesAndFencesGoOnRising(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	a, base := p.take("a", cache.Exclusive)
	b, base2 := p.take("b", cache.Shared)
	srv.Kill()
	// The store may notice only after the send that the existing connection is cut.
	p.eventually("the server's absence is noticed", func() bool {
		r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
		if r.Status != cache.Refused && r.Status != cache.Unknown {
			t.Fatalf("without a server it is %v", r.Status)
		}
		return r.Status == cache.Refused
	})
	for range 10 {
		p.want(p.do(cache.OpTry, cache.Exclusive, "c", p.token()), cache.Refused)
	}
	srv.Start()
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	p.want(p.do(cache.OpRenew, cache.Shared, "b", b), cache.NotHeld)
	if _, next := p.take("a", cache.Exclusive); next <= max(base, base2) {
		t.Errorf("base %d after %d and %d", next, base, base2)
	}
}

func TestCutInTheMiddleIsUnknownAndRepeatable(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "timeout=20s")
	first, _ := p.take("a", cache.Exclusive)
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", first), cache.Done)
	srv.Pause()
	tok := p.token()
	done := make(chan cache.Result)
	go func() { done <- p.do(cache.OpTry, cache.Exclusive, "a", tok) }()
	// The server is killed before or after it receives the request. In both cases the result must not
	// be Granted.
	runtime.Gosched()
	srv.Kill()
	if r := <-done; r.Status != cache.Unknown && r.Status != cache.Refused {
		t.Fatalf("it is %v", r.Status)
	}
	p.eventually("the server has ended", func() bool {
		return p.do(cache.OpPeek, 0, "a", 0).Status == cache.Refused
	})
	srv.Start()
	p.want(p.do(cache.OpTry, cache.Exclusive, "a", tok), cache.Granted)
}

func TestFlushEndsLeasesAndFencesGoOnRising(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	a, base := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Shared)
	srv.Do("FLUSHALL")
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.NotHeld)
	p.want(p.do(cache.OpRenew, cache.Shared, "b", b), cache.NotHeld)
	p.want(p.do(cache.OpDowngrade, cache.Shared, "a", a), cache.NotHeld)
	p.want(p.do(cache.OpRelease, cache.Exclusive, "a", a), cache.NotHeld)
	if _, next := p.take("a", cache.Exclusive); next <= base {
		t.Errorf("base %d after %d", next, base)
	}
}

func TestStoppedServerIsUnknownThenSettled(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "timeout=200ms")
	held := p.repeated("held")
	asked := p.unanswered("a", srv.Pause, srv.Resume)
	// The store closes the connection. The kernel accepts a new one, which gets no answer, so no
	// request is sent.
	p.eventually("no connection is left", func() bool {
		return p.do(cache.OpTry, cache.Exclusive, "b", p.token()).Status == cache.Refused
	})
	srv.Resume()
	p.settle("a", asked)
	p.eventually("the lease is renewed", func() bool {
		return p.do(cache.OpRenew, cache.Exclusive, "held", held).Status == cache.Done
	})
	p.repeated("a")
}

// unanswered returns the token of an acquire that was sent while the server was stopped, and not
// answered in time.
func (p *peer) unanswered(key string, stop, resume func()) (token uint64) {
	p.Helper()
	p.eventually("it is asked and not answered", func() bool {
		p.eventually("it is there", func() bool { return p.do(cache.OpPeek, 0, key, 0).Status == cache.Done })
		token = p.token()
		stop()
		r := p.do(cache.OpTry, cache.Exclusive, key, token)
		if r.Status == cache.Unknown {
			return true
		}
		resume() // this process stalled, so it sent nothing in time or the server was no longer stopped
		p.settle(key, token)
		return false
	})
	return token
}

func TestPausedClientsAreUnknownThenSettled(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "timeout=200ms")
	held := p.repeated("held")
	for _, mode := range []string{"ALL", "WRITE"} {
		asked := p.unanswered("a", func() { srv.Do("CLIENT", "PAUSE", "1000", mode) }, func() {})
		p.settle("a", asked)
		p.eventually("the lease is renewed", func() bool {
			return p.do(cache.OpRenew, cache.Exclusive, "held", held).Status == cache.Done
		})
		p.settle("a", p.repeated("a"))
	}
}

// settle withdraws a token as a daemon does, until the key is free: the server
// may carry out the acquire after the first withdrawal.
func (p *peer) settle(key string, token uint64) {
	p.Helper()
	p.eventually("the unresolved request is withdrawn", func() bool {
		return p.do(cache.OpWithdraw, cache.Exclusive, key, token).Status == cache.Done &&
			p.do(cache.OpPeek, 0, key, 0).Status == cache.Done
	})
}

func TestFlushedScriptsAreNotNoticed(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := newPeer(t, srv, "")
	a, _ := p.take("a", cache.Exclusive)
	b, _ := p.take("b", cache.Shared)
	srv.Do("SCRIPT", "FLUSH")
	ops := []upstream.Op{
		{Kind: cache.OpRelease, Key: "a", Token: a},
		{Kind: cache.OpTry, Key: "c", Token: p.token(), TTL: long},
		{Kind: cache.OpRenew, Mode: cache.Shared, Key: "b", Token: b, TTL: long},
		{Kind: cache.OpTry, Mode: cache.Shared, Key: "d", Token: p.token(), TTL: long},
		{Kind: cache.OpPeek, Key: "e"},
	}
	res := make([]cache.Result, len(ops))
	if err := p.Apply(t.Context(), ops, res); err != nil {
		t.Error(err)
	}
	for i, st := range []cache.Status{cache.Done, cache.Granted, cache.Done,
		cache.Granted, cache.Done} {
		p.want(res[i], st)
	}
}

func TestChangedPasswordKeepsConnectionsAndRefusesNewOnes(t *testing.T) {
	srv := testserver.StartRedis(t, "--requirepass", "first")
	srv.Admin().Options().Password = "first"
	file := filepath.Join(t.TempDir(), "password")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	p := newPeer(t, srv, "password_file="+file)
	a, _ := p.take("a", cache.Exclusive)
	srv.Do("CONFIG", "SET", "requirepass", "second")
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
	srv.Do("CLIENT", "KILL", "TYPE", "normal")
	p.eventually("the connection is gone", func() bool {
		r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
		if r.Status == cache.Refused && strings.Contains(r.Err.Error(), "WRONGPASS") {
			if !strings.Contains(r.Err.Error(), "password_file") ||
				strings.Contains(r.Err.Error(), "first") {
				t.Errorf("the reason is %v", r.Err)
			}
			return true
		}
		return false
	})
	write("second")
	p.want(p.do(cache.OpRenew, cache.Exclusive, "a", a), cache.Done)
	// If the file is removed, the error names the setting.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	srv.Admin().Options().Password = "second"
	srv.Do("CLIENT", "KILL", "TYPE", "normal")
	p.eventually("the file is missed", func() bool {
		r := p.do(cache.OpRenew, cache.Exclusive, "a", a)
		return r.Status == cache.Refused && strings.Contains(r.Err.Error(), "password file")
	})
}

func TestLazyStoreWaitsForItsServer(t *testing.T) {
	srv := testserver.StartRedis(t)
	srv.Kill()
	cfg, err := redis.Parse(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := redis.Open(t.Context(), cfg); err == nil ||
		!strings.Contains(err.Error(), srv.Addr()) || !strings.Contains(err.Error(), "store URL") {
		t.Errorf("opening it: %v", err)
	}
	p := lazyPeer(t, srv.URL())
	for range 20 { // however many attempts fail, the store works once the server is back
		p.want(p.do(cache.OpTry, cache.Exclusive, "a", p.token()), cache.Refused)
	}
	srv.Start()
	p.take("a", cache.Exclusive)
	q := newPeer(t, srv, "")
	p.eventually("hints arrive", func() bool {
		tok := q.token()
		q.want(q.do(cache.OpJoin, cache.Exclusive, "a", tok), cache.Queued)
		q.want(q.do(cache.OpWithdraw, cache.Exclusive, "a", tok), cache.Done)
		select {
		case h := <-p.Hints():
			return h == upstream.Hint{Kind: cache.HintContended, Key: "a"}
		default:
			return false
		}
	})
}

func TestHintsComeBackAfterARestart(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, q := newPeer(t, srv, ""), newPeer(t, srv, "")
	srv.Restart()
	p.eventually("the server is back", func() bool {
		return p.do(cache.OpTry, cache.Exclusive, "a", p.token()).Status == cache.Granted
	})
	p.eventually("hints arrive", func() bool {
		tok := q.token()
		if q.do(cache.OpJoin, cache.Exclusive, "a", tok).Status == cache.Queued {
			q.want(q.do(cache.OpWithdraw, cache.Exclusive, "a", tok), cache.Done)
		}
		select {
		case h := <-p.Hints():
			return h == upstream.Hint{Kind: cache.HintContended, Key: "a"}
		default:
			return false
		}
	})
}
