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

// Estate is what a daemon that serves has offered to hand over.
type Estate struct{}

// Claim asks the daemon that serves a socket to hand over.
func Claim(context.Context, string, string) (*Estate, error) { return nil, ErrRefused }

// PID is the process that serves.
func (*Estate) PID() int { return 0 }

// Heir is what is to be known of a store before it is opened.
func (*Estate) Heir(string) *upstream.Heir { return nil }

// Left says that a daemon has left the estate behind.
func (*Estate) Left() bool { return false }

// Match names the stores of the estate that this process does not have.
func (*Estate) Match(map[string]string) []string { return nil }

// Seen is the result of the other process's Config.Seen.
func (*Estate) Seen() []byte { return nil }

// Lost are the stores of which nothing can be taken over.
func (*Estate) Lost() []string { return nil }

// Close gives the estate up.
func (*Estate) Close() {}

// Inherit makes a daemon that goes on in place of the one that serves.
func (*Estate) Inherit(Config) (*Daemon, error) { return nil, ErrRefused }

// Bequeath leaves everything to the next process.
func (*Daemon) Bequeath(func([]int) error) error { return ErrRefused }

// ErrBequest says that what was left behind is of no use.
var ErrBequest = ErrRefused

// Found is an estate that a daemon has left behind.
func Found([]*os.File) (*Estate, error) { return nil, ErrBequest }
