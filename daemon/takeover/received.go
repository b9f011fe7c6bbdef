package takeover

import (
	"net"
	"os"

	"github.com/locksidecar/locksidecar/protocol/sock"
)

// Received is the takeover state as another process has passed it on. Its descriptors are taken
// in the order in which they were added to Files.
type Received struct {
	Contents
	Snapshot []byte
	files    []*os.File // nil where Next has returned the file
	at       int        // the index of the next file
}

// receiveFiles receives the descriptors and reads the memory file, which is the last of them.
func (r *Received) receiveFiles(c *net.UnixConn) error {
	for len(r.files) < r.Files {
		files, err := Receive(c, &struct{}{})
		if err == nil && len(files) == 0 {
			err = ErrMessage
		}
		if err != nil {
			return err
		}
		r.files = append(r.files, files...)
	}
	if len(r.files) == 0 {
		return ErrMessage
	}
	last := len(r.files) - 1
	memory := r.files[last]
	r.files = r.files[:last]
	defer memory.Close()
	var err error
	r.Snapshot, err = readAll(memory)
	return err
}

// readAll returns the content of a file.
func readAll(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, st.Size())
	_, err = f.ReadAt(b, 0)
	return b, err
}

// Next returns the next descriptor, which then belongs to the caller; nil if there is none.
func (r *Received) Next() *os.File {
	if r.at == len(r.files) {
		return nil
	}
	f := r.files[r.at]
	r.files[r.at] = nil
	r.at++
	return f
}

// Sockets are the descriptors with which a daemon serves.
type Sockets struct {
	Admin    map[string]net.Listener // the admin listeners, by name
	Listener *net.UnixListener
	Lock     *os.File // decides which process serves the socket
}

// Close closes the sockets and files. Some of them may be missing, or closed already.
func (s *Sockets) Close() {
	for _, ln := range s.Admin {
		_ = ln.Close()
	}
	_ = s.Listener.Close()
	_ = s.Lock.Close()
}

// Sockets returns the next descriptors, which Files.AddSockets has added. They belong to the
// caller, even after an error.
func (r *Received) Sockets() (s Sockets, err error) {
	s.Admin = make(map[string]net.Listener)
	for _, name := range r.Admin {
		ln, err := r.listener()
		if err != nil {
			return s, err
		}
		s.Admin[name] = ln
	}
	ln, err := r.listener()
	if err != nil {
		return s, err
	}
	var ok bool
	if s.Listener, ok = ln.(*net.UnixListener); !ok {
		_ = ln.Close()
		return s, ErrMessage
	}
	s.Listener.SetUnlinkOnClose(false)
	if s.Lock = r.Next(); s.Lock == nil {
		return s, ErrMessage
	}
	return s, nil
}

// listener returns the next descriptor as a listener.
func (r *Received) listener() (net.Listener, error) {
	f := r.Next()
	if f == nil {
		return nil, ErrMessage
	}
	defer f.Close()
	return net.FileListener(f)
}

// Conn returns the next descriptor as a connection.
func (r *Received) Conn() (*sock.Conn, error) {
	f := r.Next()
	if f == nil {
		return nil, ErrMessage
	}
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	s, ok := nc.(sock.Stream)
	if !ok {
		_ = nc.Close()
		return nil, ErrMessage
	}
	return sock.New(s)
}

// Close closes the descriptors that have not been taken. A taken one is nil here, and closing nil
// does nothing.
func (r *Received) Close() { closeFiles(r.files) }
