// Package listen makes the Unix sockets at which a daemon serves, and the lock file that decides
// which process serves a socket. It starts no goroutine.
package listen

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

// Errors of this package.
var (
	ErrInUse  = errors.New("another daemon serves this socket")
	ErrSocket = errors.New("socket cannot be made")
)

// Lock locks a file beside the socket at path, which decides between daemons that start at the same
// time. The socket belongs to the process that has locked the file: it has to be removed before
// that file is closed. Lock makes the socket's directory if it does not exist, and refuses a
// directory in which other users could replace the socket.
func Lock(path string) (*os.File, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if err := checkDir(filepath.Dir(path)); err != nil {
		return nil, socketError(path, err)
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, socketError(path, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrInUse, path)
		}
		return nil, socketError(path, err)
	}
	return lock, nil
}

// CheckPath returns an error if there is something at path that is neither a socket nor a link.
// Nothing may be made beside it: /etc/passwd.lock would keep programs from changing /etc/passwd.
func CheckPath(path string) error {
	if st, err := os.Lstat(path); err == nil && st.Mode()&(fs.ModeSocket|fs.ModeSymlink) == 0 {
		return notSocket(path)
	}
	return nil
}

func notSocket(path string) error {
	return fmt.Errorf("%w: %s is there and not a socket", ErrSocket, path)
}

// Unix makes a socket. The group is a name or a number; the process's own when empty. Unix replaces
// a stale socket, and fails if a process listens on the socket.
func Unix(path string, mode fs.FileMode, group string) (*net.UnixListener, error) {
	if err := clearStale(path); err != nil {
		return nil, err
	}
	ln, err := bind(path, mode, group)
	if err != nil {
		return nil, socketError(path, err)
	}
	return ln, nil
}

func socketError(path string, err error) error {
	return fmt.Errorf("%w: %s: %w", ErrSocket, path, err)
}

// Duplicate makes another listener on the same socket.
func Duplicate(ln *net.UnixListener) (*net.UnixListener, error) {
	f, err := ln.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	again, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return again.(*net.UnixListener), nil
}

// checkDir makes the socket's directory if it does not exist. It refuses a directory in which
// other users could replace the socket.
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
		return fmt.Errorf("directory %s can be written by everybody; "+
			"make it 0755 or set its sticky bit", dir)
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
		return notSocket(path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("%w: %s", ErrInUse, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: another process may serve %s: %w", ErrInUse, path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("%w: %w", ErrSocket, err)
	}
	return nil
}

// bind makes the socket under another name and moves it into place once its
// owner and mode are right, so that no client connects before.
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
		return fail(fmt.Errorf("mode is %o and not %o, as asked for", st.Mode().Perm(),
			mode.Perm()))
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
