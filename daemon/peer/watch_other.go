//go:build !linux

package peer

import (
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// Watcher does nothing. Without pidfds, only the end of its connection shows that a client has
// ended.
type Watcher struct{}

// Watch is the watch of one process.
type Watch struct{}

// NewWatcher makes a Watcher.
func NewWatcher() (*Watcher, error) { return &Watcher{}, nil }

// Watch identifies no process.
func (*Watcher) Watch(*sock.Conn, func()) (engine.Peer, *Watch) {
	return engine.Unknown, &Watch{}
}

// Of identifies no process.
func Of(int) engine.Peer { return engine.Unknown }

// Close does nothing.
func (*Watcher) Close() {}

// Close does nothing.
func (*Watch) Close() {}
