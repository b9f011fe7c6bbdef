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

// A parked state in a file beside the socket. A daemon that has drained leaves it if it still has
// detached holds, which belong to no connection. So the state has no descriptors.

func parkedFile(socket string) string { return socket + ".parked" }

// ParkInFile writes a parked state without descriptors, for the next process that serves the socket
// of o. Its times are of the boot clock, so it is of no use after a boot of the machine.
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
	_ = os.Remove(path + ".new") // of a process that was killed while it wrote it
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
		return nil, nil // the caller finds the same out when it makes the socket
	}
	s, err := readParked(socket)
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%w: %w", ErrParked, errors.Join(err, os.Remove(path)))
	}
	s.file, s.lock = path, lock
	return s, nil
}

// LeftInFile reports whether there is a parked state in the file beside a socket, which this
// process has locked. A daemon may not serve anew beside such a file: a later process would take
// its state for the state of that daemon. LeftInFile removes a file that cannot be used.
func LeftInFile(socket string) bool {
	_, err := readParked(socket)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(parkedFile(socket))
	}
	return err == nil
}

// readParked reads the file that ParkInFile has written for a socket, on this boot of the machine.
// In a directory such as /tmp another user may have made it.
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
		return nil, errors.New("it is not a file of this user alone")
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
		err = errors.New("it is of another boot of the machine, or of another time namespace")
	}
	return s, err
}

// clock identifies the boot clock of this process: two processes with the same id read the same
// clock.
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

// SocketLock returns the lock of the socket that FindInFile has taken, which belongs to the caller
// from now on; nil for other states.
func (s *State) SocketLock() *os.File {
	lock := s.lock
	s.lock = nil
	return lock
}

// use removes the file of a state, so that no other process uses the state. First it marks the
// file, which may have another name as well.
func (s *State) use() error {
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

// Discard closes a parked state that this process does not use. No other process uses it.
func (s *State) Discard() {
	_ = s.use()
	s.Close()
}
