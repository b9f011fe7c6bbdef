package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	sd "github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
)

// What the daemon and the manager that has started it tell each other: systemd, or whoever else
// sets NOTIFY_SOCKET, WATCHDOG_USEC and LISTEN_FDS. Without them nothing is said.

// activated is the socket that the manager has made, nil when it has made none, and what an earlier
// process has left with it.
func activated(c *config.Config) (found *net.UnixListener, kept []*os.File, err error) {
	sockets, kept := split(activation.Files(true))
	for _, f := range sockets {
		l, err := net.FileListener(f)
		_ = f.Close()
		if u, ok := l.(*net.UnixListener); err == nil && ok && found == nil && u.Addr().String() == c.Socket {
			found = u
			continue
		}
		return nil, nil, exit(exitUsage, "the manager has given a socket that nothing is known of (%s); this one serves %s (%s)",
			name(l), c.Socket, c.FromPath("socket"))
	}
	return found, kept, nil
}

func name(l net.Listener) string {
	if l == nil {
		return "not one that listens"
	}
	return fmt.Sprint(l.Addr())
}

// tellWithin is how long a manager may keep the daemon that tells it something.
const tellWithin = time.Second

// tell gives the manager a word. The library's own function waits for ever for one that does
// not read.
func (s *server) tell(state string) {
	at, _ := s.m.Env("NOTIFY_SOCKET")
	if at == "" {
		return
	}
	c, err := net.DialTimeout("unixgram", at, tellWithin)
	if err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(tellWithin))
		_, err = c.Write([]byte(state))
		_ = c.Close()
	}
	if err != nil {
		s.log.Warn("the manager does not listen", zap.String("event", "notify_failed"), zap.Error(err))
	}
}

// tellReloading is for the time of a reload; the end of it is told as being ready.
func (s *server) tellReloading() {
	s.tell(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec())
}

// feed tells the manager's watchdog that all is well for as long as renewals make progress. It
// blocks until ctx ends.
func (s *server) feed(ctx context.Context) {
	every, err := sd.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		if err := s.Live(); err == nil {
			s.tell(sd.SdNotifyWatchdog)
		} else {
			s.log.Error("not telling the watchdog that all is well", zap.String("event", "stuck"), zap.Error(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
