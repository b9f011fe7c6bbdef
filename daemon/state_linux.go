package daemon

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// What is passed on: a snapshot of all that the daemon knows, and descriptors.

// leave is the snapshot, and adds the descriptors that go with it. The memory of the snapshot comes behind.
func (d *Daemon) leave(files *fds) (image []byte, what stateMessage, err error) {
	image, conns, err := d.snapshot()
	if err != nil {
		return nil, what, err
	}
	before := len(files.all)
	if what.Admin, err = d.admin.pass(files); err == nil {
		err = errors.Join(files.add(d.site.ln), files.add(d.site.lock))
	}
	for _, k := range conns {
		if err == nil {
			err = files.addSession(k)
		}
	}
	what.Files = len(files.all) - before + 1
	return image, what, err
}

// daemonSnapshot writes or reads what a snapshot of the daemon has besides the engine's.
type daemonSnapshot struct {
	*cache.Coder
	engine []byte
	stores map[string][]byte // what those said that move
	conns  []connSnapshot
}

type connSnapshot struct {
	input, unsent []byte
	watched       bool // a descriptor of its process comes along
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

// snapshot is all that the daemon knows, and its connections in the order in which they stand there.
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

// fds are descriptors of our own that are passed on.
type fds struct {
	all  []int
	made []int // for that alone
}

func (f *fds) close() {
	for _, fd := range f.made {
		_ = unix.Close(fd)
	}
}

// add adds what c is, which has to stay open until it is sent.
func (f *fds) add(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f.all = append(f.all, int(fd)) })
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

// addMemory adds a file in memory with b in it.
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
