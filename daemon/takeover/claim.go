package takeover

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/daemon/admin"
)

// Claim asks the daemon that serves a socket for a takeover. That daemon serves until the takeover
// is committed: see State.AwaitCommit. If the State is closed before that, the daemon continues to
// serve. Claim blocks until the daemon has answered, or ctx ends. ErrNobody means that no process
// listens at the admin socket, and ErrRefused that the daemon does not allow the takeover. After
// any other error the caller does not know whether a daemon serves.
func Claim(ctx context.Context, socket, version string) (*State, error) {
	if runtime.GOOS != "linux" {
		return nil, ErrRefused
	}
	c, err := Dial(ctx, socket)
	if err != nil {
		return nil, err
	}
	s := &State{c: c, locks: make(map[string]*os.File)}
	if err := s.request(version); err != nil {
		s.Close()
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	_ = c.SetDeadline(time.Time{})
	return s, nil
}

// Dial connects to the daemon that serves a socket, ready for the messages of a takeover.
// The deadline of ctx applies to the connection. It returns the same errors as Claim.
func Dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, "unix", admin.Socket(socket))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrNobody, err)
	case err != nil:
		return nil, fmt.Errorf("connect to the admin socket: %w", err)
	}
	if at, ok := ctx.Deadline(); ok {
		_ = nc.SetDeadline(at)
	}
	if err := upgrade(nc); err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nc.(*net.UnixConn), nil
}

// upgrade switches the connection from HTTP to the messages of a takeover.
func upgrade(c net.Conn) error {
	_, err := fmt.Fprintf(c, "GET /takeover HTTP/1.1\r\nHost: localhost\r\n"+
		"Connection: Upgrade\r\nUpgrade: %s\r\n\r\n", admin.TakeoverProtocol)
	if err != nil {
		return err
	}
	in := bufio.NewReader(c) // the other process sends nothing more before the first message
	r, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	_ = r.Body.Close()
	if r.StatusCode == http.StatusForbidden {
		return ErrDenied
	}
	if r.StatusCode != http.StatusSwitchingProtocols || in.Buffered() > 0 {
		return fmt.Errorf("the daemon answered %s", r.Status)
	}
	return nil
}

// request sends the request and reads the offer.
func (s *State) request(version string) error {
	if err := Send(s.c, Request{Form: Form, Version: version, PID: os.Getpid()}, nil); err != nil {
		return err
	}
	files, err := Receive(s.c, &s.offer)
	if err != nil {
		return err
	}
	for _, o := range s.offer.Stores { // the descriptors of the locks come in this order
		if o.Locked && len(files) > 0 {
			s.locks[o.Name], files = files[0], files[1:]
		}
	}
	closeFiles(files)
	if s.offer.Refused != "" {
		return errors.New(s.offer.Refused)
	}
	if s.offer.Form != Form {
		return fmt.Errorf("%w: form %d", ErrMessage, s.offer.Form)
	}
	return nil
}
