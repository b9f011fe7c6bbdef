package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// lease is the TTL in tests that wait for its end. It is long enough for a busy machine, which may
// stall for a second or two.
const (
	lease     = "6s"
	leaseTime = 6 * time.Second
)

// patient is how long stores may take to answer on such a machine.
const patient = "timeout=30s"

// everyStore has each kind of store. start returns the URL of a fresh store whose leases end after
// lease, and the address of its server if it has only one.
var everyStore = []struct {
	name   string
	scheme string
	start  func(t testing.TB) (url, addr string)
}{
	{"redis", "redis://%s", func(t testing.TB) (string, string) {
		s := testserver.StartRedis(t)
		return s.URL() + "?" + patient, s.Addr()
	}},
	{"redis-cluster", "redis+cluster://%s", func(t testing.TB) (string, string) {
		return testserver.StartRedisCluster(t, 3, 0).URL() + "?" + patient, ""
	}},
	{"redis-sentinel", "redis+sentinel://%s/mymaster", func(t testing.TB) (string, string) {
		return testserver.StartRedisSentinel(t, "").URL() + "?" + patient, ""
	}},
	{"redlock", "redlock://%s,127.0.0.1:1,127.0.0.1:2", func(t testing.TB) (string, string) {
		var nodes []*testserver.Redis
		var addrs []string
		for range 3 {
			s := testserver.StartRedis(t)
			nodes, addrs = append(nodes, s), append(addrs, s.Addr())
		}
		for _, s := range nodes {
			eventually(t, "it votes", func() bool {
				up, _ := strconv.Atoi(s.Info("uptime_in_seconds"))
				return up >= 8
			})
		}
		// A timeout may be at most half of the lease.
		return "redlock://" + strings.Join(addrs, ",") + "?max_ttl=" + lease + "&timeout=2500ms", ""
	}},
	{"etcd", "etcd://%s", func(t testing.TB) (string, string) {
		s := testserver.StartEtcd(t)
		return "etcd://" + s.Addr() + "?ttl=" + lease + "&" + patient, s.Addr()
	}},
	{"zookeeper", "zookeeper://%s", func(t testing.TB) (string, string) {
		s := testserver.StartZooKeeper(t)
		// half of the session is the maximum
		return s.URL() + "?session=" + lease + "&timeout=3s", s.Addr()
	}},
	{"mysql", "mysql://root@%s/locks", func(t testing.TB) (string, string) {
		s := testserver.StartMariaDB(t)
		return s.URL() + "?" + patient, s.Addr()
	}},
	{"postgres", "postgres://postgres@%s/locks", func(t testing.TB) (string, string) {
		s := testserver.StartPostgres(t)
		return s.URL() + "?" + patient, s.Addr()
	}},
}

// namesHolder checks that both hosts name the holder of a lock that the first one holds.
func namesHolder(t *testing.T, first, second *host) {
	t.Helper()
	who := func(h *host, args ...string) (code int, out string) {
		p := h.run(append([]string{"who"}, args...)...)
		out = p.rest()
		<-p.done
		return p.cmd.ProcessState.ExitCode(), out
	}
	const key = "k"
	eventually(t, "the other host is named", func() bool {
		code, out := who(second, key)
		return code == 0 && strings.HasPrefix(out, key+" is held by web-1, daemon ") &&
			strings.Contains(out, fmt.Sprintf("process %d there, acquired ", first.daemon.cmd.Process.Pid))
	})
	if code, out := who(second, "-o", "json", key); code != 0 ||
		!strings.Contains(out, `"host": "web-1"`) ||
		!strings.Contains(out, `"kind": "daemon"`) {
		t.Errorf("%d: %s", code, out)
	}
	if code, out := who(first, key); code != 0 ||
		!strings.HasPrefix(out, key+" is held by process ") ||
		!strings.Contains(out, fmt.Sprintf("of user %d on this host", os.Geteuid())) {
		t.Errorf("%d: %s", code, out)
	}
	if code, out := who(second, "free"); code != 66 || out != "nobody holds free\n" {
		t.Errorf("%d: %s", code, out)
	}
}

// Two hosts use the same store, of every kind. They exclude each other, and get the lock in order
// of arrival, with rising fences. When one of them dies, the other gets its locks.
func TestEveryStore(t *testing.T) {
	for _, c := range everyStore {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url, _ := c.start(t)
			first := newHost(t, "--upstream", url, "--ttl", lease, "--host-name", "web-1")
			second := newHost(t, "--upstream", url, "--ttl", lease, "--host-name", "web-2")
			p := first.lock(nil, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
			f1 := p.number()
			namesHolder(t, first, second)
			eventually(t, "a try names the holder, and for how long it has held the lock", func() bool {
				busy := second.lock([]string{"-n"}, "true")
				busy.ends(75)
				return strings.Contains(busy.err.String(), " is held by web-1, acquired ")
			})
			q := second.lock([]string{"--on-lost", "warn"}, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
			second.waitFor(0, 1)
			listed := second.run("locks", "--store")
			if out := listed.rest(); !strings.Contains(out, "other host") ||
				!strings.Contains(out, " web-1 ") {
				t.Errorf("the other host's lock is not in the list of what the store knows:\n%s", out)
			}
			listed.ends(0)
			p.letGo()
			p.ends(0)
			f2 := q.number()
			if f2 <= f1 {
				t.Errorf("fence %d after %d", f2, f1)
			}
			second.daemon.signal(syscall.SIGKILL)
			last := first.lock([]string{"-w", "60s"}, "echo $LOCKSIDECAR_FENCE")
			if f3 := last.number(); f3 <= f2 {
				t.Errorf("fence %d after %d", f3, f2)
			}
			last.ends(0)
			q.letGo()
			keepsOverTheEnd(t, c.name, first, "--upstream", url, "--ttl", lease)
		})
	}
}

// keepsOverTheEnd ends two daemons, first and one that it starts, each while it keeps a lock for
// longer than the lease. It checks that the locks stay taken, if the store can do that. Otherwise
// the command says that it cannot. If the daemon was not killed, the next one on its socket knows
// the lock, and can release it. ZooKeeper cannot take a session over.
func keepsOverTheEnd(t *testing.T, store string, first *host, args ...string) {
	t.Helper()
	if store == "redlock" {
		return // where a keep is at most max_ttl, which is the lease here
	}
	bound := store == "etcd" || store == "zookeeper"
	keep := func(h *host, key string) (fence int) {
		t.Helper()
		p := h.run("lock", "--keep", "1h", key, "--", "sh", "-c", "echo $LOCKSIDECAR_FENCE")
		fence = p.number()
		p.ends(0)
		if got := strings.Contains(p.err.String(), "this store forgets a kept lock"); got != bound {
			t.Errorf("says that the store does not keep it: %v; %s", got, p.err)
		}
		return fence
	}
	other := newHost(t, args...)
	keep(other, "killed")
	fence := keep(first, "stopped")
	eventually(t, "the stores have been told", func() bool {
		p := first.run("locks", "--store", "-o", "json")
		out := p.rest()
		p.ends(0)
		return bound || strings.Count(out, `"left_ms": 3`) == 2 // of 3,600,000
	})
	other.daemon.signal(syscall.SIGKILL)
	first.daemon.signal(syscall.SIGTERM)
	first.daemon.ends(0)
	if store == "zookeeper" {
		return
	}
	first.serve(args...)
	last := newHost(t, args...)
	last.run("lock", "-w", "2s", "stopped", "--", "true").ends(75)
	if !bound {
		last.run("lock", "-n", "killed", "--", "true").ends(75)
	}
	first.run("unlock", "--fence", fmt.Sprint(fence), "stopped").ends(0)
	last.run("lock", "-w", "8s", "stopped", "--", "true").ends(0)
}

// If the server is of another kind than the URL says, the daemon reports that in words, at the
// start and soon.
func TestServersOfTheWrongKind(t *testing.T) {
	addrs := map[string]string{}
	for _, c := range everyStore {
		if _, addr := c.start(t); addr != "" {
			addrs[c.name] = addr
		}
	}
	for _, c := range everyStore {
		for kind, addr := range addrs {
			if kind == c.name || kind == "redis" && c.name == "redlock" {
				continue
			}
			t.Run(c.name+" at "+kind, func(t *testing.T) {
				t.Parallel()
				h := &host{t: t, dir: t.TempDir()}
				url := fmt.Sprintf(c.scheme, addr)
				p := h.run("serve", "--socket", h.dir+"/s", "--upstream", url)
				p.ends(69)
				msg := p.err.String()
				if !strings.Contains(msg, addr) || strings.Contains(msg, "panic") ||
					strings.Contains(msg, "goroutine ") {
					t.Errorf("it does not say where, or more than that:\n%s", msg)
				}
			})
		}
	}
}

// A daemon that may decide alone starts without its store, and reports that. Another daemon does
// not start.
func TestStartWithoutTheStore(t *testing.T) {
	for _, c := range everyStore {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := fmt.Sprintf(c.scheme, "127.0.0.1:3")
			dir, err := os.MkdirTemp("", "ls")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			h := &host{t: t, dir: dir, socket: dir + "/s.sock",
				env: []string{"LOCKSIDECAR_SOCKET=" + dir + "/s.sock"}}
			// it serves, but it is not ready
			h.daemon = h.run("serve", "--upstream", url, "--outage", "local")
			eventually(t, "it serves", func() bool { return strings.Contains(h.daemon.err.String(), `"event":"serving"`) })
			p := h.lock([]string{"-w", "20s"}, "echo ${LOCKSIDECAR_FENCE:-none}")
			if f := p.line(); f != "none" {
				t.Errorf("granted with fence %s without a store", f)
			}
			p.ends(0)
			if log := h.daemon.err.String(); !strings.Contains(log, `"event":"store_down"`) {
				t.Errorf("the log does not say that the store is down:\n%s", log)
			}
			strict := h.run("serve", "--socket", h.dir+"/other", "--upstream", url)
			strict.ends(69)
		})
	}
}
