package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// The takeover state: a snapshot of the whole state of the daemon, and descriptors.

// leave returns the snapshot and its description, and adds the descriptors that go with it to files. The caller adds the
// memory file of the snapshot last.
func (d *Daemon) leave(files *fds) (snapshot []byte, what stateMessage, err error) {
	snapshot, conns, err := d.snapshot()
	if err != nil {
		return nil, what, err
	}
	before := len(files.all)
	if what.Admin, err = files.addAll(d.admin.Listeners()); err == nil {
		err = errors.Join(files.add(d.site.ln), files.add(d.site.lock))
	}
	for _, k := range conns {
		if err == nil {
			err = files.addSession(k)
		}
	}
	what.Files = len(files.all) - before + 1
	return snapshot, what, err
}

// daemonSnapshot writes or reads the parts of a daemon's snapshot besides the engine's.
type daemonSnapshot struct {
	*cache.Coder
	engine []byte
	stores map[string][]byte // the state of those stores that move
	conns  []connSnapshot
}

type connSnapshot struct {
	input, unsent []byte
	watched       bool // a descriptor of its process is passed on, too
}

func (m *daemonSnapshot) code() {
	m.Bytes(&m.engine)
	var names []string
	for name := range m.stores {
		names = append(names, name)
	}
	cache.List(m.Coder, &names, func(name *string) {
		m.String(name)
		state := m.stores[*name]
		m.Bytes(&state)
		m.stores[*name] = state
	})
	cache.List(m.Coder, &m.conns, func(k *connSnapshot) {
		m.Bytes(&k.input)
		m.Bytes(&k.unsent)
		m.Bool(&k.watched)
	})
}

// snapshot returns the whole state of the daemon, and its connections in the order of the snapshot.
func (d *Daemon) snapshot() ([]byte, []*conn, error) {
	m := &daemonSnapshot{Coder: new(cache.Coder), stores: make(map[string][]byte)}
	var sessions []*engine.Session
	var err error
	if m.engine, sessions, err = d.engine.Snapshot(); err != nil {
		return nil, nil, err
	}
	for _, v := range d.stores.list() {
		if mv := upstream.Moves(v.StoreConfig.Store); mv != nil {
			if m.stores[v.lane.Name()], err = mv.Leave(); err != nil {
				return nil, nil, fmt.Errorf("store %s: %w", v.lane.Name(), err)
			}
			v.left = true
		}
	}
	var conns []*conn
	for _, s := range sessions {
		c := s.Transport().(*conn)
		conns = append(conns, c)
		m.conns = append(m.conns, connSnapshot{input: c.input, unsent: c.unsent, watched: c.peer.Active()})
	}
	m.B = make([]byte, 0, len(m.engine)+1<<16)
	m.code()
	return m.B, conns, nil
}

// fds collects descriptors to pass on.
type fds struct {
	all  []int
	made []int // descriptors that were made only for this
}

func (f *fds) close() {
	for _, fd := range f.made {
		_ = unix.Close(fd)
	}
}

// add adds the descriptor of c, which has to stay open until the descriptor is sent.
func (f *fds) add(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f.all = append(f.all, int(fd)) })
}

// addAll adds listeners, and returns their names in the order of the descriptors.
func (f *fds) addAll(lns map[string]net.Listener) (names []string, err error) {
	for name, ln := range lns {
		names, err = append(names, name), errors.Join(err, f.add(ln.(syscall.Conn)))
	}
	return names, err
}

func (f *fds) addSession(k *conn) error {
	err := k.sock.Control(func(fd int) error {
		f.all = append(f.all, fd)
		return nil
	})
	if fd := k.peer.FD(); fd >= 0 {
		f.all = append(f.all, fd)
	}
	return err
}

// addMemory adds a memory file with the content b.
func (f *fds) addMemory(b []byte) error {
	fd, err := unix.MemfdCreate("locksidecar-estate", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	f.all, f.made = append(f.all, fd), append(f.made, fd)
	for at := int64(0); len(b) > 0; {
		n, err := unix.Pwrite(fd, b, at)
		if err != nil {
			return os.NewSyscallError("pwrite", err)
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}
