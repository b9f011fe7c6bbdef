package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Errors of Listen.
var (
	ErrInUse  = errors.New("another daemon serves this socket")
	ErrSocket = errors.New("socket cannot be made")
)

// site is where a daemon serves.
type site struct {
	ln    *net.UnixListener
	lock  *os.File                // decides who serves the socket
	admin map[string]net.Listener // listeners that exist already
	// shared is set while another process uses the same sockets and files. The takeover may still fail.
	shared bool
}

// closeSocket removes the socket, while the lock file is still held and the socket is surely this daemon's.
func (p *site) closeSocket(cfg *Config) {
	_ = p.ln.Close()
	if cfg.Listener == nil && !p.shared {
		_ = os.Remove(cfg.Socket)
	}
}

func (p *site) close(cfg *Config) {
	p.closeSocket(cfg)
	_ = p.lock.Close()
}

// listen makes the socket. It checks the directory, and locks a file beside the socket, which decides between daemons
// that start at the same time. It replaces a stale socket, and fails if a process listens on the socket. The socket
// belongs to the holder of the lock file: it has to be removed before that file is closed. For a socket that another
// program has made, listen only locks the file.
func listen(cfg *Config) (at *site, err error) {
	path := cfg.Socket
	wrap := func(err error) error { return fmt.Errorf("%w: %s: %w", ErrSocket, path, err) }
	if err := checkDir(filepath.Dir(path)); err != nil {
		return nil, wrap(err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, wrap(err)
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrInUse, path)
		}
		return nil, wrap(err)
	}
	if cfg.Listener != nil {
		return &site{ln: cfg.Listener, lock: lock}, nil
	}
	if err := clearStale(path); err != nil {
		return nil, err
	}
	ln, err := bind(path, cfg.SocketMode, cfg.SocketGroup)
	if err != nil {
		return nil, wrap(err)
	}
	return &site{ln: ln, lock: lock}, nil
}

// checkDir makes the socket's directory if it does not exist. It refuses a directory in which other users could replace
// the socket.
func checkDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if st.Mode().Perm()&0o002 != 0 && st.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("directory %s can be written by everybody; make it 0755 or set its sticky bit", dir)
	}
	return nil
}

// clearStale removes a socket on which no process listens.
func clearStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	if st.Mode()&fs.ModeSocket == 0 {
		return fmt.Errorf("%w: %s is there and not a socket", ErrSocket, path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("%w: %s", ErrInUse, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: somebody may serve %s: %w", ErrInUse, path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	return nil
}

// bind makes the socket under another name and moves it into place once its
// owner and mode are right, so that nobody connects before.
func bind(path string, mode fs.FileMode, group string) (*net.UnixListener, error) {
	tmp := path + ".new"
	_ = os.Remove(tmp)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	fail := func(err error) (*net.UnixListener, error) {
		_ = ln.Close()
		_ = os.Remove(tmp)
		return nil, err
	}
	if group != "" {
		gid, err := groupID(group)
		if err != nil {
			return fail(err)
		}
		if err := os.Chown(tmp, -1, gid); err != nil {
			return fail(err)
		}
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return fail(err)
	}
	st, err := os.Stat(tmp)
	if err != nil {
		return fail(err)
	}
	if st.Mode().Perm() != mode.Perm() {
		return fail(fmt.Errorf("mode is %o and not %o, as asked for", st.Mode().Perm(), mode.Perm()))
	}
	if err := os.Rename(tmp, path); err != nil {
		return fail(err)
	}
	return ln, nil
}

func groupID(name string) (int, error) {
	if id, err := strconv.Atoi(name); err == nil {
		return id, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}
