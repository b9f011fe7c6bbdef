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

// This file exchanges messages with the service manager that has started the daemon: systemd, or
// another program that sets NOTIFY_SOCKET, WATCHDOG_USEC and LISTEN_FDS.

// activated returns the socket that the manager has created, or nil if there is none. It also
// returns the descriptors that an earlier process has parked with the manager.
func activated(c *config.Config) (found *net.UnixListener, kept []*os.File, err error) {
	sockets, kept := splitGiven(activation.Files(true))
	for _, f := range sockets {
		l, err := net.FileListener(f)
		_ = f.Close()
		if u, ok := l.(*net.UnixListener); err == nil && ok && found == nil &&
			u.Addr().String() == c.Socket {
			found = u
			continue
		}
		return nil, nil, exit(exitUsage, "the service manager has passed an unknown socket (%s); "+
			"this daemon serves %s (%s)",
			listenerName(l), c.Socket, c.FromPath("socket"))
	}
	return found, kept, nil
}

// listenerName describes a listener in a message; l is nil if the descriptor is something else.
func listenerName(l net.Listener) string {
	if l == nil {
		return "not a listening socket"
	}
	return fmt.Sprint(l.Addr())
}

// tellWithin bounds how long a write to the manager may block.
const tellWithin = time.Second

// tell sends a state to the manager, if there is one. It does not use the function of go-systemd,
// which waits forever for a manager that does not read.
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
		s.log.Warn("the service manager cannot be reached",
			zap.String("event", "notify_failed"), zap.Error(err))
	}
}

// tellReloading reports that a reload begins. The state "ready" reports its end.
func (s *server) tellReloading() {
	s.tell(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec())
}

// feedWatchdog notifies the manager's watchdog while renewals make progress. It blocks until ctx
// ends.
func (s *server) feedWatchdog(ctx context.Context) {
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
			s.log.Error("watchdog not notified: renewals make no progress",
				zap.String("event", "stuck"), zap.Error(err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
