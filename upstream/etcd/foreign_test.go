package etcd_test

import (
	"bufio"
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The other party here is etcd's own lock recipe, and etcdctl lock.

func session(t testing.TB, srv *testserver.Etcd) *concurrency.Session {
	t.Helper()
	s, err := concurrency.NewSession(srv.Admin(), concurrency.WithTTL(30))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestMutexFirst(t *testing.T) {
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "")
	m := concurrency.NewMutex(session(t, srv), dir+"k")
	if err := m.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.want(p.do(cache.OpTry, cache.Exclusive, "k", p.token()), cache.Busy)
	p.want(p.do(cache.OpTry, cache.Shared, "k", p.token()), cache.Busy)
	if r := p.do(cache.OpPeek, 0, "k", 0); r.Status != cache.Busy || r.Mode != cache.Exclusive {
		t.Errorf("the peek says %v %v", r.Status, r.Mode)
	}
	tok := p.token()
	p.want(p.do(cache.OpJoin, cache.Exclusive, "k", tok), cache.Queued)
	locks, _, err := p.List(t.Context(), "", "", 10)
	if err != nil || len(locks) != 1 || !locks[0].Foreign || locks[0].Mine || locks[0].Waiters != 1 ||
		locks[0].Name != m.Key() {
		t.Errorf("listed as %+v, %v", locks, err)
	}
	rev := m.Header().Revision
	if err := m.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.hinted(cache.HintAvailable, "k")
	r := p.do(cache.OpJoin, cache.Exclusive, "k", tok)
	p.want(r, cache.Granted)
	if r.Base <= uint64(rev) {
		t.Errorf("base %d after revision %d", r.Base, rev)
	}
}

func TestMutexSecond(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "")
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		tok, _ := p.take("k", mode)
		m := concurrency.NewMutex(session(t, srv), dir+"k")
		if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Fatalf("the other party's try ends with %v", err)
		}
		got := make(chan error, 1)
		go func() { got <- m.Lock(t.Context()) }()
		p.hinted(cache.HintContended, "k")
		// The hint may be about the try of the other client.
		p.eventually("the renewal says that another waits", func() bool {
			r := p.do(cache.OpRenew, mode, "k", tok)
			p.want(r, cache.Done)
			return r.Contended
		})
		p.want(p.do(cache.OpTry, cache.Shared, "k", p.token()), cache.Busy)
		reader := p.token()
		if mode == cache.Exclusive {
			p.want(p.do(cache.OpDowngrade, cache.Shared, "k", tok), cache.Done)
		}
		select {
		case err := <-got:
			t.Fatalf("the other party is let in beside us: %v", err)
		default:
		}
		p.want(p.do(cache.OpRelease, mode, "k", tok), cache.Done)
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		p.want(p.do(cache.OpJoin, cache.Shared, "k", reader), cache.Queued)
		if err := m.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.hinted(cache.HintAvailable, "k")
		p.want(p.do(cache.OpJoin, cache.Shared, "k", reader), cache.Granted)
		p.want(p.do(cache.OpRelease, cache.Shared, "k", reader), cache.Done)
	}
}

func TestMutexesAndUsTakeTurns(t *testing.T) {
	t.Parallel()
	srv := testserver.StartEtcd(t)
	var inside atomic.Int32
	var fence atomic.Uint64
	enter := func(base uint64) {
		if n := inside.Add(1); n != 1 {
			t.Errorf("%d are inside", n)
		}
		if last := fence.Swap(base); last >= base {
			t.Errorf("fence %d after %d", base, last)
		}
		inside.Add(-1)
	}
	var wg sync.WaitGroup
	for range 2 {
		p, s := newPeer(t, srv, ""), session(t, srv)
		wg.Go(func() {
			for range 15 {
				tok := p.token()
				for {
					r := p.do(cache.OpJoin, cache.Exclusive, "k", tok)
					if r.Status == cache.Granted {
						enter(r.Base)
						break
					}
					if r.Status != cache.Queued {
						t.Errorf("it is %v (%v)", r.Status, r.Err)
						return
					}
					<-p.Hints()
				}
				if r := p.do(cache.OpRelease, cache.Exclusive, "k", tok); r.Status != cache.Done {
					t.Errorf("the release is %v (%v)", r.Status, r.Err)
				}
			}
		})
		wg.Go(func() {
			m := concurrency.NewMutex(s, dir+"k")
			for range 15 {
				if err := m.Lock(context.Background()); err != nil {
					t.Error(err)
					return
				}
				r, err := s.Client().Get(context.Background(), m.Key())
				if err != nil || len(r.Kvs) != 1 {
					t.Errorf("its key: %v, %v", r, err)
				} else {
					enter(uint64(r.Kvs[0].CreateRevision))
				}
				if err := m.Unlock(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if ks := keys(t, srv.Admin()); len(ks) != 0 {
		t.Errorf("left: %q", ks)
	}
}

// ctl is a running etcdctl lock.
type ctl struct {
	*testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

func lockByCtl(t *testing.T, srv *testserver.Etcd, name string) *ctl {
	t.Helper()
	cmd := srv.Ctl("lock", "--ttl", "30", name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return &ctl{t, cmd, bufio.NewReader(out)}
}

// held waits until etcdctl has the lock. It then prints its key.
func (c *ctl) held(name string) {
	c.Helper()
	if line, err := c.out.ReadString('\n'); err != nil || !strings.HasPrefix(line, name+"/") {
		c.Fatalf("etcdctl says %q, %v", line, err)
	}
}

// end makes etcdctl release the lock.
func (c *ctl) end() {
	c.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		c.Error(err)
	}
}

func TestEtcdctlFirstAndSecond(t *testing.T) {
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "")
	theirs := lockByCtl(t, srv, dir+"k")
	theirs.held(dir + "k")
	p.want(p.do(cache.OpTry, cache.Exclusive, "k", p.token()), cache.Busy)
	tok := p.token()
	p.want(p.do(cache.OpJoin, cache.Exclusive, "k", tok), cache.Queued)
	theirs.end()
	p.hinted(cache.HintAvailable, "k")
	p.want(p.do(cache.OpJoin, cache.Exclusive, "k", tok), cache.Granted)

	waits := lockByCtl(t, srv, dir+"k")
	p.hinted(cache.HintContended, "k")
	p.want(p.do(cache.OpRelease, cache.Exclusive, "k", tok), cache.Done)
	waits.held(dir + "k")
	p.want(p.do(cache.OpTry, cache.Shared, "k", p.token()), cache.Busy)
	waits.end()
	p.take("k", cache.Exclusive)
}

func TestForeignKeysAreBusy(t *testing.T) {
	srv := testserver.StartEtcd(t)
	p := newPeer(t, srv, "")
	for _, k := range []string{"a/by hand", "b/deeper/still", "c/"} {
		if _, err := srv.Admin().Put(t.Context(), dir+k, "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []string{"a", "b", "c"} {
		p.want(p.do(cache.OpTry, cache.Exclusive, k, p.token()), cache.Busy)
		p.want(p.do(cache.OpTry, cache.Shared, k, p.token()), cache.Busy)
		p.want(p.do(cache.OpPeek, 0, k, 0), cache.Busy)
	}
	p.take("a/by hand", cache.Exclusive) // a lock of that name is independent
	tok := p.token()
	p.want(p.do(cache.OpJoin, cache.Exclusive, "a", tok), cache.Queued)
	if _, err := srv.Admin().Delete(t.Context(), dir+"a/by hand"); err != nil {
		t.Fatal(err)
	}
	p.hinted(cache.HintAvailable, "a")
	p.want(p.do(cache.OpJoin, cache.Exclusive, "a", tok), cache.Granted)
}
