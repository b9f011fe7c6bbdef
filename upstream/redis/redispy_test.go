package redis_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// redispy is a separate process with redis-py's Lock.
type redispy struct {
	*testing.T
	in    io.WriteCloser
	lines chan string
}

func startRedispy(t *testing.T, srv *testserver.Redis) *redispy {
	t.Helper()
	python := os.Getenv("LOCKSIDECAR_TEST_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import redis").CombinedOutput(); err != nil {
		t.Skipf("%s has no redis-py (LOCKSIDECAR_TEST_PYTHON names one that has): %v: %s",
			python, err, out)
	}
	cmd := exec.Command(python, "testdata/redispy_peer.py", srv.URL())
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &redispy{T: t, in: in, lines: make(chan string, 16)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close() // its main loop ends, and its waits end with it
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("redis-py: %v\n%s", err, stderr.String())
		}
	})
	return p
}

func (p *redispy) send(command ...any) {
	p.Helper()
	b, err := json.Marshal(command)
	if err != nil {
		p.Fatal(err)
	}
	if _, err := p.in.Write(append(b, '\n')); err != nil {
		p.Fatal(err)
	}
}

// says waits for the next answer, which must be want.
func (p *redispy) says(want any) {
	p.Helper()
	select {
	case line := <-p.lines:
		var got any
		if err := json.Unmarshal([]byte(line), &got); err != nil || !reflect.DeepEqual(got, want) {
			p.Fatalf("redis-py says %s, not %v (%v)", line, want, err)
		}
	case <-time.After(bound):
		p.Fatalf("redis-py does not say %v", want)
	}
}

func (p *redispy) silent() {
	p.Helper()
	select {
	case line := <-p.lines:
		p.Fatalf("redis-py says %s", line)
	default:
	}
}

const pyTTL = 60

func TestRedisPyIsKeptOutByEitherMode(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	py, p := startRedispy(t, srv), newPeer(t, srv, "")
	for _, mode := range modes {
		tok, _ := p.take("k", mode)
		py.send("locked", "lock:k")
		py.says(true)
		py.send("try", "a", "lock:k", pyTTL)
		py.says(false)
		// redis-py waits until we release.
		py.send("wait", "a", "lock:k", pyTTL, bound.Seconds())
		for range 20 {
			p.want(p.do(cache.OpRenew, mode, "k", tok), cache.Done)
			py.silent()
		}
		p.want(p.do(cache.OpRelease, mode, "k", tok), cache.Done)
		py.says([]any{"a", true})
		p.want(p.do(cache.OpTry, mode, "k", p.token()), cache.Busy)
		py.send("release", "a")
		py.says("ok")
	}
}

func TestRedisPyKeepsBothModesOut(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	py, p := startRedispy(t, srv), newPeer(t, srv, "")
	for _, mode := range modes {
		py.send("try", "a", "lock:k", pyTTL)
		py.says(true)
		p.want(p.do(cache.OpTry, mode, "k", p.token()), cache.Busy)
		w := p.token()
		p.want(p.do(cache.OpJoin, mode, "k", w), cache.Queued)
		py.send("owned", "a")
		py.says(true)
		py.send("extend", "a", 2*pyTTL)
		py.says(true)
		p.want(p.do(cache.OpJoin, mode, "k", w), cache.Queued)
		py.send("release", "a")
		py.says("ok")
		p.want(p.do(cache.OpJoin, mode, "k", w), cache.Granted)
		p.want(p.do(cache.OpRelease, mode, "k", w), cache.Done)
	}
}

func TestRedisPyAndWeTakeTurns(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	py, p, q := startRedispy(t, srv), newPeer(t, srv, ""), newPeer(t, srv, "")
	for _, mode := range modes {
		a, _ := p.take("k", mode)
		if mode == cache.Shared {
			b, _ := q.take("k", mode)
			defer func() { q.want(q.do(cache.OpRelease, mode, "k", b), cache.NotHeld) }()
			py.send("try", "x", "lock:k", pyTTL)
			py.says(false)
			q.want(q.do(cache.OpRelease, mode, "k", b), cache.Done)
		}
		py.send("wait", "x", "lock:k", pyTTL, bound.Seconds())
		w := q.token()
		q.want(q.do(cache.OpJoin, cache.Exclusive, "k", w), cache.Queued)
		p.want(p.do(cache.OpRelease, mode, "k", a), cache.Done)
		py.says([]any{"x", true}) // redis-py ignores our queue
		q.want(q.do(cache.OpJoin, cache.Exclusive, "k", w), cache.Queued)
		// Our earlier lease does not affect its present one, and vice versa.
		p.want(p.do(cache.OpRelease, mode, "k", a), cache.NotHeld)
		p.want(p.do(cache.OpRenew, mode, "k", a), cache.NotHeld)
		py.send("release", "x")
		py.says("ok")
		q.want(q.do(cache.OpJoin, cache.Exclusive, "k", w), cache.Granted)
		py.send("try", "x", "lock:k", pyTTL)
		py.says(false)
		q.want(q.do(cache.OpRelease, 0, "k", w), cache.Done)
	}
}

func TestRedisPyFindsItsLockLostAfterItsEnd(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	py, p := startRedispy(t, srv), newPeer(t, srv, "")
	py.send("try", "a", "lock:k", 0.1)
	py.says(true)
	tok := p.token()
	p.eventually("its lock is over", func() bool {
		return p.do(cache.OpTry, cache.Exclusive, "k", tok).Status == cache.Granted
	})
	py.send("release", "a")
	py.says("LockNotOwnedError")
	p.want(p.do(cache.OpRenew, cache.Exclusive, "k", tok), cache.Done)
}
