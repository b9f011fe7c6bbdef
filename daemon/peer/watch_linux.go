package peer

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// soPeerPIDFD is SO_PEERPIDFD, of Linux 6.5.
const soPeerPIDFD = 77

// Watcher reports the end of clients' processes. It has one epoll for all of their pidfds, and one
// goroutine.
type Watcher struct {
	ep *os.File
	wg sync.WaitGroup

	mu   sync.Mutex
	last uint64 // guarded by mu
	// gone has the functions to call, by the number of the watch, because descriptor numbers are
	// used again. It is guarded by mu.
	gone map[uint64]func()
}

// Watch watches one process.
type Watch struct {
	w  *Watcher
	id uint64 // 0 if no process is watched
	fd int
}

// NewWatcher starts the goroutine, which Close ends.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // an epoll can itself be waited for
		return nil, err
	}
	w := &Watcher{ep: os.NewFile(uintptr(fd), "peers"), gone: make(map[uint64]func())}
	w.wg.Go(w.run)
	return w, nil
}

// Watch identifies the process at the other end of a connection. It calls gone once, when that
// process ends. If the process cannot be watched, gone is never called, and only the end of the
// connection shows that the client has ended.
func (w *Watcher) Watch(c *sock.Conn, gone func()) (engine.Peer, *Watch) {
	p, pidfd := engine.Unknown, -1
	_ = c.Control(func(fd int) error {
		p = Of(fd)
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPIDFD); err == nil {
			pidfd = n
		}
		return nil
	})
	if pidfd < 0 && p.PID > 0 {
		pidfd = openPID(p.PID)
	}
	pw := w.watchPIDFD(pidfd, gone)
	p.Watched = pw.id != 0
	return p, pw
}

// Adopt watches a process by a pidfd that a takeover has brought. It does not keep f.
func (w *Watcher) Adopt(f *os.File, gone func()) *Watch {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return &Watch{}
	}
	return w.watchPIDFD(fd, gone)
}

// watchPIDFD watches a process by its pidfd, and closes the pidfd at the end. fd is less than 0 if
// there is none.
func (w *Watcher) watchPIDFD(fd int, gone func()) *Watch {
	if fd < 0 {
		return &Watch{}
	}
	w.mu.Lock()
	w.last++
	pw := &Watch{w, w.last, fd}
	w.gone[pw.id] = gone
	w.mu.Unlock()
	if err := w.add(pw); err != nil {
		pw.Close()
		return &Watch{}
	}
	return pw
}

// Of identifies the process at the other end of a Unix socket.
func Of(fd int) engine.Peer {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return engine.Unknown
	}
	return engine.Peer{PID: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid),
		Groups: groups(fd)}
}

// openPID opens a process by number, on kernels without SO_PEERPIDFD. The number
// may have been used again since: the start time is read on both sides.
func openPID(pid int) int {
	before, err := startTime(pid)
	if err != nil {
		return -1
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	if after, err := startTime(pid); err != nil || after != before {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// startTime is field 22 of /proc/PID/stat: clock ticks since boot.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 {
		return 0, fmt.Errorf("stat of %d is short", pid)
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}

func (w *Watcher) add(p *Watch) error {
	rc, err := w.ep.SyscallConn()
	if err != nil {
		return err
	}
	var e error
	err = rc.Control(func(ep uintptr) {
		e = unix.EpollCtl(int(ep), unix.EPOLL_CTL_ADD, p.fd,
			&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(p.id),
				Pad: int32(p.id >> 32)})
	})
	if err == nil {
		err = e
	}
	return err
}

// Active reports whether the process is watched.
func (p *Watch) Active() bool { return p.id != 0 }

// FD returns the pidfd of the process, which the watch owns; -1 if it is not watched.
func (p *Watch) FD() int {
	if p.id == 0 {
		return -1
	}
	return p.fd
}

// Close ends the watch. Closing the pidfd takes it out of the epoll.
func (p *Watch) Close() {
	if p.id == 0 {
		return
	}
	p.w.mu.Lock()
	_, there := p.w.gone[p.id]
	delete(p.w.gone, p.id)
	p.w.mu.Unlock()
	if there {
		_ = unix.Close(p.fd)
	}
}

func (w *Watcher) run() {
	rc, err := w.ep.SyscallConn()
	if err != nil {
		return
	}
	var events [64]unix.EpollEvent
	for {
		n := 0
		err := rc.Read(func(ep uintptr) bool {
			n, err = unix.EpollWait(int(ep), events[:], 0)
			return n > 0 || err != nil && err != unix.EINTR
		})
		if err != nil || n < 0 {
			return // closed
		}
		for _, ev := range events[:n] {
			w.mu.Lock()
			gone := w.gone[uint64(uint32(ev.Fd))|uint64(uint32(ev.Pad))<<32]
			w.mu.Unlock()
			if gone != nil {
				gone()
			}
		}
	}
}

// Close ends the goroutine.
func (w *Watcher) Close() {
	_ = w.ep.Close()
	w.wg.Wait()
}

// groups returns the supplementary groups of the process at the other end of a socket; nil if they
// are not known.
func groups(fd int) []int {
	const limit = 65536 // NGROUPS_MAX
	for n := uint32(64); n <= limit; {
		ids := make([]uint32, n)
		size := n * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET,
			unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno == unix.ERANGE && size/4 > n {
			n = size / 4
			continue
		}
		if errno != 0 {
			return nil
		}
		all := make([]int, size/4)
		for i := range all {
			all[i] = int(ids[i])
		}
		return all
	}
	return nil
}
