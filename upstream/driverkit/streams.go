package driverkit

import (
	"github.com/locksidecar/locksidecar/upstream"
)

// Hints is a driver's stream of hints. It is bounded: losing a hint is harmless, and waiting for a
// reader is not.
type Hints chan upstream.Hint

// NewHints returns an empty stream for up to size unread hints.
func NewHints(size int) Hints { return make(Hints, size) }

// Send adds h, or drops it if the stream is full. It does not block.
func (c Hints) Send(h upstream.Hint) {
	select {
	case c <- h:
	default:
	}
}

// Sessions is a driver's stream of session deadlines. It keeps only the newest.
type Sessions chan upstream.Session

// NewSessions returns an empty stream.
func NewSessions() Sessions { return make(Sessions, 1) }

// Send adds s and drops an older deadline that has not been read yet. It does not block. Calls must
// not be concurrent.
func (c Sessions) Send(s upstream.Session) {
	select {
	case <-c:
	default:
	}
	c <- s
}
