//go:build !linux

package daemon

import (
	"context"
	"net/http"
	"os"
	"syscall"

	"github.com/locksidecar/locksidecar/upstream"
)

// Without passing descriptors as Linux does there is no takeover.

type (
	fds       struct{}
	inherited struct{}
)

func (*fds) add(syscall.Conn) error { return nil }

func (*admin) takeover(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "not on this system", http.StatusNotImplemented)
}

func (*Daemon) begin(*inherited) {}

// TakeoverState is what a daemon that serves has offered to hand over.
type TakeoverState struct{}

// Claim asks the daemon that serves a socket to hand over.
func Claim(context.Context, string, string) (*TakeoverState, error) { return nil, ErrRefused }

// PID is the process that serves.
func (*TakeoverState) PID() int { return 0 }

// Successor is what is to be known of a store before it is opened.
func (*TakeoverState) Successor(string) *upstream.Successor { return nil }

// Left says that a daemon has left the takeover state behind.
func (*TakeoverState) Left() bool { return false }

// Match names the stores of the takeover state that this process does not have.
func (*TakeoverState) Match(map[string]string) []string { return nil }

// Seen is the result of the other process's Config.Seen.
func (*TakeoverState) Seen() []byte { return nil }

// Lost are the stores of which nothing can be taken over.
func (*TakeoverState) Lost() []string { return nil }

// Close gives the takeover state up.
func (*TakeoverState) Close() {}

// Inherit makes a daemon that goes on in place of the one that serves.
func (*TakeoverState) Inherit(Config) (*Daemon, error) { return nil, ErrRefused }

// Park leaves everything to the next process.
func (*Daemon) Park(func([]int) error) error { return ErrRefused }

// ErrParked says that what was left behind is of no use.
var ErrParked = ErrRefused

// FindParked is a takeover state that a daemon has left behind.
func FindParked([]*os.File) (*TakeoverState, error) { return nil, ErrParked }
