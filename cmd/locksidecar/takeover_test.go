package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// takenOver makes another process take over from the host's daemon. On a busy machine, clients
// might have to wait for more than a tenth of the TTL. The takeover then fails, the daemon
// continues, and takenOver tries again.
func (h *host) takenOver(args ...string) {
	h.t.Helper()
	old := h.daemon
	for end := time.Now().Add(bound); ; {
		h.daemon = h.run(append([]string{"serve", "--log-format", "json", "--takeover"}, args...)...)
		select {
		case <-old.done:
		case <-time.After(bound):
		case <-h.daemon.done:
			if strings.Contains(old.err.String(), "i/o timeout") && time.Now().Before(end) {
				h.daemon = old
				continue
			}
		}
		break
	}
	old.ends(0)
	if log := old.err.String(); !strings.Contains(log, `"event":"taken_over"`) {
		h.t.Errorf("the old one says nothing of it:\n%s", log)
	}
}

// On every kind of store except ZooKeeper, a lock stays held over a takeover. The new process
// renews it, and grants it to the next waiter, first to one on this host. In ZooKeeper the lock is
// lost, and its holder is told.
func TestTakeoverOnEveryStore(t *testing.T) {
	stores := append([]struct {
		name   string
		scheme string
		start  func(t testing.TB) (url, addr string)
	}{{"embedded", "", func(testing.TB) (string, string) { return "memory:", "" }}}, everyStore...)
	for _, c := range stores {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url, _ := c.start(t)
			args := []string{"--upstream", url, "--ttl", lease}
			first, second := newHost(t, args...), newHost(t, args...)
			p := first.lock([]string{"--on-lost", "warn"}, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
			f1 := p.number()
			r := first.run("lock", "-s", "read", "--", "sh", "-c", "echo up; read x; exit 0")
			r.line()
			first.waitFor(1, 0)
			q := first.lock(nil, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
			first.waitFor(1, 1)
			first.takenOver(args...)
			if c.name == "zookeeper" {
				eventually(t, "the holder is told", func() bool {
					return strings.Contains(p.err.String(), "lost")
				})
				if f2 := q.number(); f2 <= f1 {
					t.Errorf("fence %d after %d", f2, f1)
				}
				q.letGo()
				q.ends(0)
				return
			}
			if c.name != "embedded" {
				busy := second.lock([]string{"-w", "7s"}, "true") // longer than a lease that is not renewed
				busy.ends(75)
			}
			p.letGo()
			p.ends(0)
			f2 := q.number()
			if f2 <= f1 {
				t.Errorf("fence %d after %d", f2, f1)
			}
			first.takenOver(args...)
			q.letGo()
			q.ends(0)
			if c.name != "embedded" {
				last := second.lock([]string{"-w", "60s"}, "echo $LOCKSIDECAR_FENCE")
				if f3 := last.number(); f3 <= f2 {
					t.Errorf("fence %d after %d", f3, f2)
				}
				last.ends(0)
			}
			r.letGo()
			r.ends(0)
			if strings.Contains(first.daemon.err.String(), `"event":"lost"`) {
				t.Error("something was lost")
			}
			first.daemon.signal(syscall.SIGTERM)
			first.daemon.ends(0)
		})
	}
}

// load starts clients that acquire and release locks: each client a key of its own, and all clients
// one common key. No request may fail and no hold may be lost until stop is called. stop returns
// the number of turns.
func (h *host) load(clients int) (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var done atomic.Int64
	for i := range clients {
		c := h.client(func(l client.Lost) { h.t.Errorf("%s is lost: %v", l.Key, l.Reason) })
		wg.Go(func() {
			for owner := uint64(1); ctx.Err() == nil && !h.t.Failed(); owner++ {
				for _, key := range []string{"hot", fmt.Sprint("own", i)} {
					hold, err := c.Lock(context.Background(),
						client.AcquireArgs{Key: key, Owner: owner, Wait: client.Forever})
					if err == nil {
						err = hold.Release(context.Background())
					}
					if err != nil {
						h.t.Errorf("%s: %v", key, err)
						return
					}
					done.Add(1)
				}
			}
		})
	}
	return func() int64 { cancel(); wg.Wait(); return done.Load() }
}

func (h *host) client(lost func(client.Lost)) *client.Client {
	h.t.Helper()
	c, err := client.Dial(h.t.Context(), h.socket, client.Options{Name: "test", OnLost: lost})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// Ten takeovers happen one after the other, with many locks held and clients at work. No client
// notices.
func TestTenTakeoversUnderLoad(t *testing.T) {
	const sessions = 40
	held := storetest.Rounds(5_000, 20_000)
	server := testserver.StartRedis(t)
	// The pause may take 5 s, because everything is slow under the race detector.
	args := []string{"--upstream", server.URL() + "?" + patient, "--ttl", "5m"}
	h := newHost(t, args...)
	lost := func(l client.Lost) { t.Errorf("%s is lost: %v", l.Key, l.Reason) }
	var holds [sessions][]*client.Hold
	var wg sync.WaitGroup
	for i := range sessions {
		c := h.client(lost)
		wg.Go(func() {
			for n := range held / sessions {
				hold, err := c.Lock(t.Context(), client.AcquireArgs{Key: fmt.Sprint(i, "/", n)})
				if err != nil {
					t.Error(err)
					return
				}
				holds[i] = append(holds[i], hold)
			}
		})
	}
	wg.Wait()
	stop := h.load(8)
	for range 10 {
		h.takenOver(args...)
	}
	if n := stop(); n == 0 {
		t.Error("there was no load")
	}
	for i := range sessions {
		wg.Go(func() {
			for _, hold := range holds[i] {
				if err := hold.Release(t.Context()); err != nil {
					t.Errorf("%s: %v", hold.Key(), err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := server.Do("EXISTS", "lock:0/0"); n != int64(0) {
		t.Error("what was released stands in the store")
	}
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}

// Either process may be killed at any moment of a takeover. Two processes never serve at the same
// time. While one of them serves, the lock that it knows has only one holder.
func TestKilledWhileTakingOver(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(uint64(seed), 0))
	for round := range 12 {
		h := newHost(t)
		c := h.client(nil)
		if _, err := c.Lock(t.Context(), client.AcquireArgs{Key: "k"}); err != nil {
			t.Fatal(err)
		}
		old, successor := h.daemon, h.run("serve", "--takeover")
		victim, other := old, successor
		if round%2 == 1 {
			victim, other = successor, old
		}
		// The process has to start first.
		wait := time.NewTimer(time.Duration(random.IntN(150)) * time.Millisecond)
		select {
		case <-wait.C:
		case <-old.done:
		}
		_ = victim.cmd.Process.Kill()
		<-victim.done
		// The other process serves, or has ended as well. In the second case, the next process serves.
		probe := h.run("lock", "-w", "1ms", "k", "--", "true")
		<-probe.done
		switch code := exitCode(probe.cmd.ProcessState); code {
		// it serves, and k is held; or it has started anew and waits for the validity stated earlier
		case 75:
			if c.Err() != nil && !strings.Contains(successor.err.String(), "takeover_nobody") {
				t.Errorf("round %d: k is held, and its session has ended", round)
			}
			select {
			case <-other.done:
				t.Errorf("round %d: somebody serves, and it is neither", round)
			default:
			}
		case 0: // it has started anew
			if c.Err() == nil {
				t.Errorf("round %d: two hold k", round)
			}
		case 69: // no process serves
		default:
			t.Errorf("round %d: exit code %d: %s", round, code, probe.err)
		}
		_ = other.cmd.Process.Kill()
		<-other.done
		c.Close()
	}
}

// A manager is told which process is the daemon. Its socket stays in place when that process ends.
func TestSuccessorUnderAManager(t *testing.T) {
	h := bareHost(t)
	ear := filepath.Join(h.dir, "n")
	h.env = append(h.env, "NOTIFY_SOCKET="+ear, "WATCHDOG_USEC=30000000")
	hears := newEar(t, ear)
	f := h.listens()
	old := launchWith(t, h.dir, h.env, []*os.File{f}, "sh", "-c",
		"LISTEN_FDS=1 LISTEN_PID=$$ WATCHDOG_PID=$$ exec locksidecar serve")
	hears("READY=1")
	p := h.lock(nil, "echo up; read x; exit 0")
	p.line()
	pid := old.cmd.Process.Pid
	for range 2 {
		before := pid
		if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		var err error
		if pid, err = strconv.Atoi(hears("MAINPID=")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		hears("READY=1")
		hears("WATCHDOG=1")
		eventually(t, "the other has ended", func() bool { return !runs(before) })
	}
	old.ends(0)
	busy := h.lock([]string{"-n"}, "true")
	busy.ends(75)
	p.letGo()
	p.ends(0)
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	hears("STOPPING=1")
	eventually(t, "it has ended", func() bool { return !runs(pid) })
	if _, err := os.Stat(h.socket); err != nil {
		t.Error(err)
	}
}

// A successor opens a store that does not answer. Meanwhile the daemon is told to end, is killed,
// or gets a configuration without that store. The successor ends, and reports the state of the
// daemon.
func TestASuccessorSaysWhatHasBecomeOfTheDaemon(t *testing.T) {
	for _, c := range []struct {
		name, says string
		meanwhile  func(*host)
	}{
		{"it has ended", "which has ended", func(h *host) {
			h.daemon.signal(syscall.SIGTERM)
			h.daemon.ends(0)
		}},
		{"it was killed", "which has ended", func(h *host) {
			h.daemon.signal(syscall.SIGKILL)
			h.daemon.ends(-1)
		}},
		{"it drains", "which is ending", func(h *host) {
			p := h.lock(nil, "echo up; read x; exit 0")
			p.line()
			h.daemon.signal(syscall.SIGTERM)
			eventually(h.t, "it drains", func() bool {
				return strings.Contains(h.daemon.err.String(), `"event":"draining"`)
			})
		}},
		{"it serves", "which continues to serve", func(*host) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			h := newHost(t, "--drain", "1h")
			file := filepath.Join(h.dir, "c.yaml")
			yaml := "stores: {s: {upstream: 'redis://" + ln.Addr().String() +
				"'}, e: {upstream: 'memory:'}}\nnamespaces: {'x:': {store: s}}\n"
			if c.says == "which continues to serve" {
				// without the store of the daemon
				yaml = strings.Replace(yaml, "'x:'", "'': {store: e}, 'x:'", 1)
			}
			if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
				t.Fatal(err)
			}
			next := h.run("serve", "--takeover", "--config", file)
			conn, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c.meanwhile(h)
			_ = conn.Close()
			_ = ln.Close() // so that the store is down
			next.ends(75)
			if log := next.err.String(); !strings.Contains(log, c.says) {
				t.Errorf("it does not say %q:\n%s", c.says, log)
			}
			ends := strings.Contains(h.daemon.err.String(), `"event":"signal"`)
			if log := h.daemon.err.String(); ends && strings.Contains(log, "continues to serve") {
				t.Errorf("a daemon that ends says that it serves:\n%s", log)
			}
		})
	}
}

// A takeover closes an admin listener that the successor's configuration does not have, and opens
// the one that it has.
func TestTakeoverWithAnotherAdminListener(t *testing.T) {
	addrs := [2]string{freeAddr(t), freeAddr(t)}
	serves := func(addr string) bool {
		r, err := http.Get("http://" + addr + "/livez")
		if err == nil {
			_ = r.Body.Close()
		} else if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err,
			syscall.ECONNRESET) && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		return err == nil
	}
	defer http.DefaultClient.CloseIdleConnections()
	h := newHost(t, "--admin-listen", addrs[0])
	eventually(t, "it serves the first", func() bool { return serves(addrs[0]) })
	h.takenOver("--admin-listen", addrs[1])
	eventually(t, "it serves the second and has closed the first", func() bool {
		return serves(addrs[1]) && !serves(addrs[0])
	})
	h.takenOver()
	eventually(t, "it has closed the second", func() bool { return !serves(addrs[1]) })
}
