package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// The messages between a process that takes over and the one that serves.

// Claim asks the daemon that serves a socket for a takeover. That daemon serves until Inherit; if the TakeoverState is
// closed instead, it continues to serve. Claim blocks until the daemon has answered, or ctx ends. ErrNobody means that
// no process listens at the admin socket, and ErrRefused that the daemon does not allow the takeover. After any other
// error it is not known whether a daemon serves.
func Claim(ctx context.Context, socket, version string) (*TakeoverState, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", admin.Socket(socket))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNobody, err)
	case err != nil:
		return nil, fmt.Errorf("connect to the admin socket: %w", err)
	}
	e := &TakeoverState{c: nc.(*net.UnixConn), locks: make(map[string]*os.File)}
	if at, ok := ctx.Deadline(); ok {
		_ = e.c.SetDeadline(at)
	}
	if err := e.ask(version); err != nil {
		e.Close()
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	_ = e.c.SetDeadline(time.Time{})
	return e, nil
}

func (e *TakeoverState) ask(version string) error {
	if _, err := fmt.Fprintf(e.c, "GET /takeover HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", admin.TakeoverProtocol); err != nil {
		return err
	}
	in := bufio.NewReader(e.c) // the other process sends nothing after the answer before it has received a message
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	_ = r.Body.Close()
	if r.StatusCode == http.StatusForbidden {
		return ErrDenied
	}
	if r.StatusCode != http.StatusSwitchingProtocols || in.Buffered() > 0 {
		return fmt.Errorf("it answers %s", r.Status)
	}
	if err := putMessage(e.c, claim{Form: takeoverForm, Version: version, PID: os.Getpid()}, nil); err != nil {
		return err
	}
	files, err := getMessage(e.c, &e.offer)
	if err != nil {
		return err
	}
	for _, s := range e.offer.Stores {
		if s.Locked && len(files) > 0 {
			e.locks[s.Name], files = files[0], files[1:]
		}
	}
	closeFiles(files)
	if e.offer.Refused != "" {
		return errors.New(e.offer.Refused)
	}
	if e.offer.Form != takeoverForm {
		return fmt.Errorf("%w: form %d", errPassing, e.offer.Form)
	}
	return nil
}

// receive waits for the takeover state and its descriptors.
func (e *TakeoverState) receive() (in *passed, what stateMessage, err error) {
	if _, err := getMessage(e.c, &what); err != nil {
		return nil, what, err
	}
	if what.Refused != "" {
		return nil, what, fmt.Errorf("%w: %s", ErrRefused, what.Refused)
	}
	in = &passed{}
	for len(in.files) < what.Files {
		files, err := getMessage(e.c, &struct{}{})
		if err == nil && len(files) == 0 {
			err = errPassing
		}
		if err != nil {
			in.close()
			return nil, what, err
		}
		in.files = append(in.files, files...)
	}
	return in, what, nil
}

// committed waits for the byte by which the other process commits the takeover.
func (e *TakeoverState) committed() error {
	var b [1]byte
	if _, err := e.c.Read(b[:]); err != nil {
		return fmt.Errorf("the other process did not commit: %w", err)
	}
	if b[0] != committed {
		return errPassing
	}
	return nil
}

// passed has the descriptors that were received, in their order.
type passed struct {
	files []*os.File
	at    int
}

func (p *passed) next() *os.File {
	if p.at == len(p.files) {
		return nil
	}
	f := p.files[p.at]
	p.files[p.at] = nil
	p.at++
	return f
}

// close closes the files that have not been taken. A taken file is nil here, and closing nil does nothing.
func (p *passed) close() { closeFiles(p.files) }

// memory returns the content of the last file.
func (p *passed) memory() ([]byte, error) {
	last := len(p.files) - 1
	if last < p.at {
		return nil, errPassing
	}
	f := p.files[last]
	p.files = p.files[:last]
	defer f.Close()
	return contents(f)
}

func contents(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, st.Size())
	_, err = f.ReadAt(b, 0)
	return b, err
}

func (p *passed) listener() (net.Listener, error) {
	f := p.next()
	if f == nil {
		return nil, errPassing
	}
	defer f.Close()
	return net.FileListener(f)
}

func (p *passed) conn() (*sock.Conn, error) {
	f := p.next()
	if f == nil {
		return nil, errPassing
	}
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	s, ok := nc.(sock.Stream)
	if !ok {
		_ = nc.Close()
		return nil, errPassing
	}
	return sock.New(s)
}
