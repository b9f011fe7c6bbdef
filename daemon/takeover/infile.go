package takeover

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/locksidecar/locksidecar/daemon/listen"
	"github.com/locksidecar/locksidecar/upstream"
)

// This file handles a parked state in a file beside the socket. A daemon that has drained writes
// the file if it still has detached holds. These belong to no connection, so the state needs no
// descriptors.

func parkedFile(socket string) string { return socket + ".parked" }

// ParkInFile writes a parked state without descriptors, for the next process that serves the socket
// of o. Its times are on the boot clock, so no process can use it after a reboot.
func ParkInFile(o Offer, snapshot []byte) error {
	var err error
	if o.Clock, err = clock(); err != nil {
		return err
	}
	for i := range o.Stores { // the next process locks these files itself
		o.Stores[i].Locked = false
	}
	b, err := encodeParked(o, Contents{}, snapshot)
	if err != nil {
		return err
	}
	path := parkedFile(o.Socket)
	_ = os.Remove(path + ".new") // a process may have been killed while it wrote this file
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// FindInFile returns the parked state in the file beside a socket. It returns nil if there is none,
// or if a daemon serves the socket. Receive removes the file, so that a state is used only once.
// FindInFile removes a file that cannot be used, and returns ErrParked.
func FindInFile(socket string) (*State, error) {
	path := parkedFile(socket)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	lock, err := listen.Lock(socket)
	if err != nil {
		return nil, nil // the caller gets the same error when it makes the socket
	}
	s, err := readParked(socket)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%w: %w", ErrParked, errors.Join(err, os.Remove(path)))
	}
	s.file, s.lock = path, lock
	return s, nil
}

// LeftInFile reports whether there is a parked state in the file beside a socket. This process has
// locked the socket. A daemon must not start without that state: a later process would mistake the
// old state for the state of this daemon. LeftInFile removes a file that cannot be used.
func LeftInFile(socket string) bool {
	_, err := readParked(socket)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(parkedFile(socket))
	}
	return err == nil
}

// readParked reads the file that ParkInFile has written for a socket since the last boot. It checks
// the owner, because in a directory such as /tmp another user may have made the file.
func readParked(socket string) (*State, error) {
	f, err := os.OpenFile(parkedFile(socket), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, _ := st.Sys().(*syscall.Stat_t)
	if !st.Mode().IsRegular() || st.Mode().Perm() != 0o600 || owner == nil ||
		int(owner.Uid) != os.Geteuid() {
		return nil, errors.New("it is not a file that only this user can read")
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	s, err := decodeParked(b)
	if err != nil {
		return nil, err
	}
	if s.offer.Socket != socket {
		return nil, fmt.Errorf("its socket is %s", s.offer.Socket)
	}
	now, err := clock()
	if err == nil && s.offer.Clock != now {
		err = errors.New("it was written before the last boot, or in another time namespace")
	}
	return s, err
}

// clock returns an id of the boot clock of this process. Two processes with the same id read the
// same clock: they run on the same boot, in the same time namespace.
func clock() (string, error) {
	id, err := upstream.BootID()
	if err != nil {
		return "", err
	}
	space, err := os.Readlink("/proc/self/ns/time")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it does not exist before Linux 5.6
		return "", err
	}
	return id + " " + space, nil
}

// SocketLock returns the lock file of the socket, which FindInFile has locked. The file belongs to
// the caller from now on. SocketLock returns nil for a state that is not from a file.
func (s *State) SocketLock() *os.File {
	lock := s.lock
	s.lock = nil
	return lock
}

// consume removes the file of a state, so that no other process uses the state. Before that, it
// marks the content as taken, because the file may have a second name.
func (s *State) consume() error {
	if s.file == "" {
		return nil
	}
	f, err := os.OpenFile(s.file, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if err == nil {
		_, err = f.WriteAt([]byte{parkedTaken}, 0)
		err = errors.Join(err, f.Close())
	}
	err = errors.Join(err, os.Remove(s.file))
	s.file = ""
	if err != nil {
		return fmt.Errorf("%w: %w", ErrParked, err)
	}
	return nil
}

// Discard closes a parked state that this process does not use, so that no other process uses it
// either.
func (s *State) Discard() {
	_ = s.consume()
	s.Close()
}
