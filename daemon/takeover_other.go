//go:build !linux

package daemon

import (
	"net"

	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// Takeovers need Linux. On other systems these functions refuse.

type inherited struct{}

// takeoverHandler returns nil, because no process can take over.
func (*Daemon) takeoverHandler() func(*net.UnixConn) { return nil }

func (*Daemon) begin(*inherited) {}

// Inherit makes a daemon that replaces the serving one.
func Inherit(*takeover.State, Config) (*Daemon, error) { return nil, takeover.ErrRefused }

// Park leaves the daemon's state to the next process.
func (*Daemon) Park(func([]int) error) error { return takeover.ErrRefused }

func (*Daemon) parkDetached() bool { return false }
