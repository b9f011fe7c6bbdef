package main

import (
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
)

// manager stands in for systemd, as far as it keeps descriptors.
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
	for _, f := range files { // a barrier's
		f.Close()
	}
}

func (m *manager) has() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.kept)
}

// drop forgets a descriptor, as a manager does that keeps only so many.
func (m *manager) drop(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[name].Close()
	delete(m.kept, name)
}

// start starts the daemon with all that is kept, in any order.
func (m *manager) start(h *host) *proc {
	m.mu.Lock() // so that none is closed before it has been passed on
	defer m.mu.Unlock()
	var names []string
	var files []*os.File
	for name, f := range m.kept {
		names, files = append(names, name), append(files, f)
	}
	return launchWith(m.t, h.dir, h.env, files, "sh", "-c", fmt.Sprintf(
		"LISTEN_FDS=%d LISTEN_FDNAMES=%s LISTEN_PID=$$ exec locksidecar serve --keep-over-restart", len(files), strings.Join(names, ":")))
}

// A restart by a manager that keeps descriptors: nobody notices. What is not whole, or was taken
// before, is not taken.
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
		early := h.lock([]string{"-n"}, "true") // waits in the socket for a daemon
		h.daemon = m.start(h)
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
	d := m.start(h)
	eventually(t, "it says so", func() bool { return strings.Contains(d.err.String(), `"event":"bequest_unusable"`) })
	q.ends(79)
	d.signal(syscall.SIGTERM)
	d.ends(0)
}
