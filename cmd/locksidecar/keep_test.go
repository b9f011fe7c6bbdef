package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// manager imitates the part of systemd that keeps descriptors.
type manager struct {
	t    *testing.T
	ear  *net.UnixConn
	wg   sync.WaitGroup
	mu   sync.Mutex
	kept map[string]*os.File // guarded by mu
	said []string            // guarded by mu
}

func newManager(t *testing.T, path string) *manager {
	t.Helper()
	ear, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{t: t, ear: ear, kept: make(map[string]*os.File)}
	m.wg.Go(m.listen)
	t.Cleanup(func() {
		ear.Close()
		m.wg.Wait()
		for _, f := range m.kept {
			f.Close()
		}
	})
	return m
}

func (m *manager) listen() {
	b, oob := make([]byte, 512), make([]byte, 512)
	for {
		n, o, _, _, err := m.ear.ReadMsgUnix(b, oob)
		if err != nil {
			return
		}
		var files []*os.File
		msgs, _ := unix.ParseSocketControlMessage(oob[:o])
		for i := range msgs {
			fds, _ := unix.ParseUnixRights(&msgs[i])
			for _, fd := range fds {
				files = append(files, os.NewFile(uintptr(fd), "kept"))
			}
		}
		m.take(string(b[:n]), files)
	}
}

func (m *manager) take(state string, files []*os.File) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.said = append(m.said, state)
	lines := strings.Split(state, "\n")
	name := ""
	for _, l := range lines {
		if n, ok := strings.CutPrefix(l, "FDNAME="); ok {
			name = n
		}
	}
	switch {
	case slices.Contains(lines, "FDSTORE=1") && len(files) == 1:
		m.kept[name] = files[0]
		return
	case slices.Contains(lines, "FDSTOREREMOVE=1"):
		m.kept[name].Close()
		delete(m.kept, name)
	}
	for _, f := range files { // the descriptor of a barrier
		f.Close()
	}
}

func (m *manager) has() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.kept)
}

// drop forgets a descriptor, as a manager does that has reached its limit.
func (m *manager) drop(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[name].Close()
	delete(m.kept, name)
}

// start starts the daemon with all kept descriptors, in any order. If socket is not nil, the daemon
// also gets that.
func (m *manager) start(h *host, socket *os.File) *proc {
	m.mu.Lock() // so that no descriptor is closed before it has been passed
	defer m.mu.Unlock()
	var names []string
	var files []*os.File
	for name, f := range m.kept {
		names, files = append(names, name), append(files, f)
	}
	if socket != nil {
		names, files = append(names, "socket"), append(files, socket)
	}
	return launchWith(m.t, h.dir, h.env, files, "sh", "-c", fmt.Sprintf(
		"LISTEN_FDS=%d LISTEN_FDNAMES=%s LISTEN_PID=$$ exec locksidecar serve --keep-over-restart",
		len(files), strings.Join(names, ":")))
}

// A manager that keeps descriptors restarts the daemon, and no client notices. A parked state that
// is incomplete, or was taken before, is not taken.
func TestKeptOverARestart(t *testing.T) {
	h := bareHost(t)
	ear := filepath.Join(h.dir, "n")
	h.env = append(h.env, "NOTIFY_SOCKET="+ear)
	m := newManager(t, ear)

	h.serve("--keep-over-restart")
	p := h.lock(nil, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
	f1 := p.number()
	q := h.lock(nil, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
	h.waitFor(1, 1)
	for range 2 {
		h.daemon.signal(syscall.SIGTERM)
		h.daemon.ends(0)
		if m.has() == 0 {
			t.Fatal("nothing is left")
		}
		early := h.lock([]string{"-n"}, "true") // it waits in the socket's queue for a daemon
		h.daemon = m.start(h, nil)
		early.ends(75)
		eventually(t, "the manager has nothing any more", func() bool { return m.has() == 0 })
	}
	p.letGo()
	p.ends(0)
	if f2 := q.number(); f2 != f1+1 {
		t.Errorf("fence %d after %d: it is not the same lease", f2, f1)
	}

	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	m.drop(keptName(3))
	d := m.start(h, nil)
	eventually(t, "it says so", func() bool { return strings.Contains(d.err.String(), `"event":"parked_unusable"`) })
	q.ends(79)
	d.signal(syscall.SIGTERM)
	d.ends(0)
}

// keeping returns a host whose manager keeps descriptors, and a daemon with this configuration.
func keeping(t *testing.T, yaml string, socket func(*host) *os.File) (h *host,
	m *manager, f *os.File) {
	t.Helper()
	h = bareHost(t)
	ear := filepath.Join(h.dir, "n")
	h.env = append(h.env, "NOTIFY_SOCKET="+ear, "LOCKSIDECAR_CONFIG="+filepath.Join(h.dir, "c.yaml"))
	m = newManager(t, ear)
	h.configure(yaml)
	if socket != nil {
		f = socket(h)
	}
	h.daemon = m.start(h, f)
	h.ready()
	return h, m, f
}

func (h *host) configure(yaml string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "c.yaml"), []byte(yaml), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// restarts ends the daemon, and starts the next one with the state that the first one has parked.
func (m *manager) restarts(h *host, socket *os.File) {
	m.t.Helper()
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	if m.has() == 0 {
		m.t.Fatal("nothing is left")
	}
	h.daemon = m.start(h, socket)
	h.ready()
	eventually(m.t, "the manager has nothing any more", func() bool { return m.has() == 0 })
}

// The configuration file is edited, and the daemon is restarted without a reload. The next daemon
// serves. Holds at stores that are the same continue. Holds at other stores are lost; their keys
// become free at the present store once no client can rely on the holds.
func TestKeptOverARestartWithOtherStores(t *testing.T) {
	redis := func() string { return testserver.StartRedis(t).URL() + "?prefix=PREFIX" }
	a, b, c := redis(), redis(), redis()
	const embedded = "memory:"
	conf := func(main, other string) string {
		text := "upstream: '" + main + "'\n"
		if other != "" {
			text += "stores: {b: {upstream: '" + other + "'}}\nnamespaces: {'x:': {store: b}}\n"
		}
		return text
	}
	const stays, goes = "k", "x:k"
	for n, k := range []struct {
		name       string
		was, is    string
		stays      string
		goes, gone string // a key that is lost, and its store
	}{
		{"a store is removed", conf(a, b), conf(a, ""), stays, goes, "b"},
		{"a store is another one", conf(a, b), conf(a, c), stays, goes, "b"},
		{"the main store is another one", conf(a, b), conf(c, b), goes, stays, "default"},
		{"the main store was embedded", conf(embedded, b), conf(c, b), goes, stays, "default"},
		{"the main store becomes embedded", conf(a, b), conf(embedded, b), goes, stays, "default"},
		{"beside an embedded store", conf(embedded, b), conf(embedded, c), stays, goes, "b"},
		{"a store is added", conf(a, ""), conf(a, b), stays, "", ""},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			own := strings.NewReplacer("PREFIX", fmt.Sprint(n, ":"))
			h, m, _ := keeping(t, own.Replace(k.was), nil)
			lock := func(key string, flags ...string) *proc {
				return h.run(append(append([]string{"lock"}, flags...), key, "--", "sh", "-c",
					"echo $LOCKSIDECAR_FENCE; read x; exit 0")...)
			}
			p := lock(k.stays, "--ttl", "30s")
			f1 := p.number()
			q := lock(k.stays)
			eventually(t, "it waits", func() bool { _, n := h.holdersOf(k.stays); return n == 1 })
			var lost *proc
			if k.goes != "" {
				lost = lock(k.goes, "--ttl", "2s")
				lost.number()
			}
			h.configure(own.Replace(k.is))
			m.restarts(h, nil)
			if log := h.daemon.err.String(); strings.Contains(log,
				`"event":"parked_without"`) != (k.gone != "") ||
				k.gone != "" && !strings.Contains(log, `"store":"`+k.gone+`"`) ||
				!strings.Contains(log, `"event":"took_over"`) {
				t.Errorf("the log:\n%s", log)
			}
			if k.goes != "" {
				lost.ends(79)
				again := lock(k.goes)
				again.number()
				again.letGo()
				again.ends(0)
			}
			p.letGo()
			p.ends(0)
			if f2 := q.number(); f2 != f1+1 {
				t.Errorf("fence %d after %d: it is not the same lease", f2, f1)
			}
			q.letGo()
			q.ends(0)
			h.daemon.signal(syscall.SIGTERM)
			h.daemon.ends(0)
		})
	}
}

// restartsWithout has a program hold a lock, ends the daemon, and stops a store by calling kill.
// The next process serves, and the program still holds the lock.
func (h *host) restartsWithout(m *manager, kill func()) *proc {
	h.t.Helper()
	p := h.run("lock", "--ttl", "5m", "k", "--", "sh", "-c", "echo $LOCKSIDECAR_FENCE; read x; exit 0")
	p.number()
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	kill()
	h.daemon = m.start(h, nil)
	eventually(h.t, "it serves", func() bool {
		log := h.daemon.err.String()
		return strings.Contains(log, `"event":"store_down"`) &&
			strings.Contains(log, `"event":"took_over"`)
	})
	if n, _ := h.holders(); n != 1 {
		h.t.Errorf("%d holders", n)
	}
	return p
}

// The only store is down when the next process starts. The process serves nevertheless, and the
// holds continue.
func TestKeptOverARestartWhileTheStoreIsDown(t *testing.T) {
	redis := testserver.StartRedis(t)
	h, m, _ := keeping(t, "upstream: '"+redis.URL()+"'\n", nil)
	p := h.restartsWithout(m, redis.Kill)
	h.daemon.signal(syscall.SIGKILL)
	h.daemon.ends(-1)
	p.ends(79)
}

// All keys are in two stores, and the new store is down when the next process starts. The process
// serves nevertheless, and the holds continue. All keys can be acquired once that store is up
// again.
func TestKeptOverARestartWhileOneOfTwoStoresIsDown(t *testing.T) {
	t.Parallel()
	redis, etcd := testserver.StartRedis(t), testserver.StartEtcd(t)
	h, m, _ := keeping(t, "upstream: '"+redis.URL()+"'\nstores: {n: {upstream: 'etcd://"+etcd.Addr()+
		"?ttl=5m'}}\nnamespaces: {'': {both: n}}\n", nil)
	p := h.restartsWithout(m, etcd.Kill)
	etcd.Start()
	eventually(t, "the store is up", func() bool {
		return strings.Contains(h.daemon.err.String(), `"event":"store_up"`)
	})
	p.letGo()
	p.ends(0)
	h.run("lock", "-w", "30s", "k", "--", "true").ends(0)
	if log := h.daemon.err.String(); strings.Contains(log, `"event":"lost"`) {
		t.Errorf("the log:\n%s", log)
	}
}

// If a parked state cannot be taken over, the next process closes it, logs the reason, and serves
// without it.
func TestWhatWasLeftBehindIsOfNoUse(t *testing.T) {
	redis := testserver.StartRedis(t).URL() + "?prefix=PREFIX"
	damaged := func(t *testing.T, h *host, m *manager) {
		m.mu.Lock()
		defer m.mu.Unlock()
		b := make([]byte, 1<<20)
		f := m.kept[keptName(len(m.kept)-1)]
		n, _ := f.ReadAt(b, 0)
		at := bytes.LastIndexByte(b[:n], '}') + 12 // somewhere in the snapshot, after the head
		if n <= at {
			t.Fatal("there is no snapshot")
		}
		if _, err := f.WriteAt(bytes.Repeat([]byte{0xff}, n-at), int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	for n, k := range []struct {
		name, upstream string
		socket         func(*host) *os.File
		damage         func(*testing.T, *host, *manager)
	}{
		{"a damaged snapshot", redis, nil, damaged},
		{"a damaged snapshot and the manager's socket", redis, (*host).listens, damaged},
		{"a damaged snapshot and an embedded store", "memory:", nil, damaged},
		{"another socket", redis, nil, func(_ *testing.T, h *host, _ *manager) {
			h.socket += "2"
			h.env = append(h.env, "LOCKSIDECAR_SOCKET="+h.socket)
		}},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			h, m, socket := keeping(t, fmt.Sprintf("ttl: 2s\nupstream: '%s'\n",
				strings.ReplaceAll(k.upstream, "PREFIX", fmt.Sprint(n, ":"))), k.socket)
			p := h.lock(nil, "echo up; read x; exit 0")
			p.line()
			h.daemon.signal(syscall.SIGTERM)
			h.daemon.ends(0)
			k.damage(t, h, m)
			h.daemon = m.start(h, socket)
			h.ready()
			if log := h.daemon.err.String(); !strings.Contains(log, `"event":"parked_unusable"`) ||
				strings.Contains(log, `"event":"took_over"`) {
				t.Errorf("the log:\n%s", log)
			}
			p.ends(79)
			h.lock(nil, "true").ends(0)
			h.daemon.signal(syscall.SIGTERM)
			h.daemon.ends(0)
		})
	}
}

// A manager keeps a limited number of descriptors, and says nothing about the others. A daemon that
// has more drains, so that its clients are told.
func TestMoreDescriptorsThanAreKept(t *testing.T) {
	t.Parallel()
	h := bareHost(t)
	ear := filepath.Join(h.dir, "n")
	h.env = append(h.env, "NOTIFY_SOCKET="+ear, "FDSTORE=6")
	m := newManager(t, ear)
	h.serve("--keep-over-restart", "--drain", "100ms")
	p := h.lock(nil, "echo up; read x; exit 0")
	p.line()
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	if log := h.daemon.err.String(); !strings.Contains(log, `"event":"park_failed"`) ||
		!strings.Contains(log, `"event":"draining"`) {
		t.Errorf("the log:\n%s", log)
	}
	if n := m.has(); n != 0 {
		t.Errorf("%d descriptors are kept", n)
	}
	p.ends(79)
}
