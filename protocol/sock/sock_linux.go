package sock

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a net.Conn. One goroutine may read while another writes. Close may be called by any
// goroutine, and ends both.
type Conn struct {
	in            *gate
	local, remote net.Addr
	closed        atomic.Bool

	mu     sync.RWMutex // held while fd is used, except by Read, for which Close waits in another way
	fd     int          // guarded by mu; -1 after Close
	out    *gate        // guarded by mu: set while a Write waits
	wuntil time.Time    // guarded by mu: the deadline of Write

	// These belong to the reader.
	rfd  int // fd; stays open while Read uses it
	rbuf []byte
	rn   int
	rerr error
	try  func(uintptr) bool
	dry  uint32
}

// New takes over the socket of a net.UnixConn or net.TCPConn. The caller must not use c afterwards,
// even after an error.
func New(c Stream) (*Conn, error) {
	fd, err := detach(c)
	if err != nil {
		return nil, err
	}
	s := &Conn{fd: fd, rfd: fd, local: c.LocalAddr(), remote: c.RemoteAddr()}
	if s.in, err = newGate(fd, unix.EPOLLIN|unix.EPOLLRDHUP); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s.try = s.tryRead // made once, so that a read does not allocate
	return s, nil
}

// detach returns a descriptor of c's socket that no poller watches, and closes c.
func detach(c Stream) (int, error) {
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	dup := -1
	cerr := raw.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if cerr != nil {
		return -1, cerr
	}
	return dup, os.NewSyscallError("fcntl", err)
}

// Read reads the available bytes into b, and waits while there are none. After the other side has
// closed the connection, it returns io.EOF.
func (s *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	s.rbuf = b
	err := s.in.raw.Read(s.try)
	s.rbuf = nil
	switch {
	case err != nil:
		return 0, ended(err)
	case s.rerr != nil:
		return 0, os.NewSyscallError("read", s.rerr)
	case s.rn == 0:
		return 0, io.EOF
	}
	return s.rn, nil
}

// tryRead tries to read and reports whether Read is done.
func (s *Conn) tryRead(uintptr) bool {
	s.rn, s.rerr = read(s.rfd, s.rbuf)
	if s.rerr != unix.EAGAIN {
		return true
	}
	s.dry++
	return false
}

// Dry returns how often Read has found nothing so far and had to wait. Only the reader may call it.
func (s *Conn) Dry() uint32 { return s.dry }

// TryWrite writes as much of b as the socket accepts now, and does not wait. After an error the
// connection cannot be used any more.
func (s *Conn) TryWrite(b []byte) (n int, err error) {
	err = s.Control(func(fd int) error {
		for n < len(b) {
			m, err := write(fd, b[n:])
			if err == unix.EAGAIN {
				return nil
			}
			if err != nil {
				return os.NewSyscallError("write", err)
			}
			n += m
		}
		return nil
	})
	return n, err
}

// Write writes all of b, and waits while the socket is full.
func (s *Conn) Write(b []byte) (n int, err error) {
	if n, err = s.TryWrite(b); n == len(b) || err != nil {
		return n, err
	}
	g, err := s.openOut()
	if err != nil {
		return n, err
	}
	defer s.closeOut(g)
	werr := g.raw.Read(func(uintptr) bool {
		var m int
		m, err = s.TryWrite(b[n:])
		n += m
		return n == len(b) || err != nil
	})
	if werr != nil {
		err = ended(werr)
	}
	if s.closed.Load() {
		err = net.ErrClosed
	}
	return n, err
}

func (s *Conn) openOut() (*gate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil, net.ErrClosed
	}
	g, err := newGate(s.fd, unix.EPOLLOUT)
	if err != nil {
		return nil, err
	}
	if err := g.f.SetReadDeadline(s.wuntil); err != nil {
		g.close()
		return nil, err
	}
	s.out = g
	return g, nil
}

func (s *Conn) closeOut(g *gate) {
	s.mu.Lock()
	s.out = nil
	s.mu.Unlock()
	g.close()
}

// Idle returns nil while the connection is open and there is nothing to read. Otherwise it returns
// an error, which is io.EOF after the other side has closed the connection. It does not wait, and
// reads nothing.
func (s *Conn) Idle() error {
	return s.Control(func(fd int) error {
		var b [1]byte
		n, err := peek(fd, b[:])
		switch {
		case err == unix.EAGAIN:
			return nil
		case err != nil:
			return os.NewSyscallError("recvfrom", err)
		case n == 0:
			return io.EOF
		}
		return errUnread
	})
}

// SetDeadline calls SetReadDeadline and SetWriteDeadline.
func (s *Conn) SetDeadline(t time.Time) error {
	if err := s.SetReadDeadline(t); err != nil {
		return err
	}
	return s.SetWriteDeadline(t)
}

// SetReadDeadline makes a Read that has to wait fail with os.ErrDeadlineExceeded from t on. A zero
// t means never.
func (s *Conn) SetReadDeadline(t time.Time) error { return ended(s.in.f.SetReadDeadline(t)) }

// SetWriteDeadline makes a Write that has to wait fail with os.ErrDeadlineExceeded from t on. A
// zero t means never.
func (s *Conn) SetWriteDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return net.ErrClosed
	}
	s.wuntil = t
	if s.out == nil {
		return nil
	}
	return ended(s.out.f.SetReadDeadline(t))
}

// CloseRead makes Read return io.EOF after it has read what has arrived.
func (s *Conn) CloseRead() error {
	return s.Control(func(fd int) error {
		return os.NewSyscallError("shutdown",
			unix.Shutdown(fd, unix.SHUT_RD))
	})
}

// CloseWrite tells the other side that nothing more will be sent.
func (s *Conn) CloseWrite() error {
	return s.Control(func(fd int) error {
		return os.NewSyscallError("shutdown",
			unix.Shutdown(fd, unix.SHUT_WR))
	})
}

// Control calls f with the descriptor, which is valid until f returns.
func (s *Conn) Control(f func(fd int) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.fd < 0 {
		return net.ErrClosed
	}
	return f(s.fd)
}

// LocalAddr is this side's address.
func (s *Conn) LocalAddr() net.Addr { return s.local }

// RemoteAddr is the other side's address.
func (s *Conn) RemoteAddr() net.Addr { return s.remote }

// Close ends the connection.
func (s *Conn) Close() error {
	if s.closed.Swap(true) {
		return net.ErrClosed
	}
	s.in.close() // waits until Read no longer uses the descriptor
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != nil {
		s.out.expire()
	}
	err := unix.Close(s.fd)
	s.fd = -1
	return os.NewSyscallError("close", err)
}

// gate is an epoll with one descriptor in it. Go's poller waits for the epoll to become readable,
// which means that the descriptor has an event.
type gate struct {
	f   *os.File
	raw syscall.RawConn
}

func newGate(fd int, events uint32) (*gate, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events})
	if err == nil {
		err = unix.SetNonblock(ep, true) // otherwise package os would not register it with the poller
	}
	if err != nil {
		_ = unix.Close(ep)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	g := &gate{f: os.NewFile(uintptr(ep), "epoll")}
	if g.raw, err = g.f.SyscallConn(); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// expire ends a wait in progress, and all later waits at once.
func (g *gate) expire() { _ = g.f.SetReadDeadline(time.Unix(1, 0)) }

func (g *gate) close() { _ = g.f.Close() }

// ended converts an error of an os.File into the error that a net.Conn would return.
func ended(err error) error {
	if err == nil || os.IsTimeout(err) {
		return err
	}
	return net.ErrClosed
}
