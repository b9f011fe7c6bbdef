//go:build !linux

package daemon

import (
	"context"
	"net"
	"os"

	"github.com/locksidecar/locksidecar/upstream"
)

// Takeovers need Linux. On other systems these functions refuse.

type (
	inherited struct{}
)

// takeoverHandler is nil: no process can take over.
func (*Daemon) takeoverHandler() func(*net.UnixConn) { return nil }

func (*Daemon) begin(*inherited) {}

// TakeoverState is the state that a daemon offers for a takeover.
type TakeoverState struct{}

// Claim asks the daemon that serves a socket for a takeover.
func Claim(context.Context, string, string) (*TakeoverState, error) { return nil, ErrRefused }

// PID returns the id of the process that serves.
func (*TakeoverState) PID() int { return 0 }

// Successor returns the information that is needed to open a store.
func (*TakeoverState) Successor(string) *upstream.Successor { return nil }

// Left reports whether the takeover state is a parked state.
func (*TakeoverState) Left() bool { return false }

// Match returns the names of the stores that this process does not have.
func (*TakeoverState) Match(map[string]string) []string { return nil }

// Seen returns the result of the other process's Config.Seen.
func (*TakeoverState) Seen() []byte { return nil }

// Lost returns the names of the stores whose leases cannot be taken over.
func (*TakeoverState) Lost() []string { return nil }

// Close discards the takeover state.
func (*TakeoverState) Close() {}

// Inherit makes a daemon that replaces the one that serves.
func (*TakeoverState) Inherit(Config) (*Daemon, error) { return nil, ErrRefused }

// Park leaves the daemon's state to the next process.
func (*Daemon) Park(func([]int) error) error { return ErrRefused }

// ErrParked means that a parked state cannot be used.
var ErrParked = ErrRefused

// FindParked returns the takeover state that a daemon has parked.
func FindParked([]*os.File) (*TakeoverState, error) { return nil, ErrParked }
