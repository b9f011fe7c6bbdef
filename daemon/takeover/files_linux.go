package takeover

import (
	"errors"
	"net"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Files collects descriptors to pass on. They have to stay open until they are sent.
type Files struct {
	all  []int
	made []int // the memory files among them, which Close closes
}

// Close closes the descriptors that were made only to be passed on. The others belong to their
// owners.
func (f *Files) Close() {
	for _, fd := range f.made {
		_ = unix.Close(fd)
	}
}

// All returns the descriptors in their order.
func (f *Files) All() []int { return f.all }

// AddFD adds a descriptor.
func (f *Files) AddFD(fd int) { f.all = append(f.all, fd) }

// Add adds the descriptor of c.
func (f *Files) Add(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f.AddFD(int(fd)) })
}

// AddSockets adds the descriptors of s, and returns the names of the admin listeners in their
// order.
func (f *Files) AddSockets(s *Sockets) (admin []string, err error) {
	for name, ln := range s.Admin {
		admin, err = append(admin, name), errors.Join(err, f.Add(ln.(syscall.Conn)))
	}
	return admin, errors.Join(err, f.Add(s.Listener), f.Add(s.Lock))
}

// AddMemory adds a memory file with the content b.
func (f *Files) AddMemory(b []byte) error {
	fd, err := unix.MemfdCreate("locksidecar-state", unix.MFD_CLOEXEC)
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

// Revoke marks a parked state as taken, so that no process can use it that has received its
// descriptors. The memory file is shared with such a process.
func (f *Files) Revoke() {
	for _, fd := range f.made {
		_, _ = unix.Pwrite(fd, []byte{parkedTaken}, 0)
	}
}

// SendAll sends all descriptors, in as many messages as they need.
func (f *Files) SendAll(c *net.UnixConn) error {
	for some := range slices.Chunk(f.all, maxFiles) {
		if err := Send(c, struct{}{}, some); err != nil {
			return err
		}
	}
	return nil
}
