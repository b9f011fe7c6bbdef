package client

import (
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// Error is a failure that the daemon has reported for a request or for the connection. Test for
// one kind with errors.Is and the sentinels.
type Error struct {
	Code protocol.Code
	Msg  string
	// Detail is, for Busy, the milliseconds until the present lease ends (-1 when not known). For a
	// failed AcquireMany it is the index of the key. Otherwise it is 0.
	Detail int64
}

func (e *Error) Error() string {
	if e.Msg == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Msg
}

// Is reports whether target is the sentinel of this error's code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Msg == "" && t.Code == e.Code
}

// The sentinels for errors.Is, one for each code of the protocol.
var (
	ErrBusy        error = &Error{Code: protocol.Busy}
	ErrTimeout     error = &Error{Code: protocol.Timeout}
	ErrNotHeld     error = &Error{Code: protocol.NotHeld}
	ErrCanceled    error = &Error{Code: protocol.Canceled}
	ErrUpgrade     error = &Error{Code: protocol.Upgrade}
	ErrUnavailable error = &Error{Code: protocol.Unavailable}
	ErrUnknown     error = &Error{Code: protocol.Unknown}
	ErrLimit       error = &Error{Code: protocol.Limit}
	ErrInvalid     error = &Error{Code: protocol.Invalid}
	ErrUnsupported error = &Error{Code: protocol.Unsupported}
	ErrDraining    error = &Error{Code: protocol.Draining}
	ErrDenied      error = &Error{Code: protocol.Denied}
	ErrBadFrame    error = &Error{Code: protocol.BadFrame}
	ErrBadVersion  error = &Error{Code: protocol.BadVersion}
	ErrTooSlow     error = &Error{Code: protocol.TooSlow}
	ErrOverlong    error = &Error{Code: protocol.Overlong}
)

// ErrClosed means that the connection, and every hold with it, has ended, by Close or by the
// daemon. If the daemon has sent a reason, errors.As finds that *Error.
var ErrClosed = errors.New("connection closed")

// ErrExpired means that a hold's stated validity has run out. errors.Is finds
// ErrNotHeld.
var ErrExpired error = expired{}

type expired struct{}

func (expired) Error() string { return "validity ran out" }

// Is reports whether target is ErrNotHeld, since the hold is no longer valid.
func (expired) Is(target error) bool { return target == ErrNotHeld }

// ErrReleased means that Release has ended the hold.
var ErrReleased = errors.New("released")

// LostError means that the daemon has reported a hold as lost. errors.Is finds ErrNotHeld.
type LostError struct{ Reason protocol.Reason }

func (e *LostError) Error() string { return "lost: " + e.Reason.String() }

// Is reports whether target is ErrNotHeld, since a lost hold is no longer held, or a loss with
// the same reason.
func (e *LostError) Is(target error) bool {
	t, ok := target.(*LostError)
	return target == ErrNotHeld || ok && *t == *e
}

var errForced error = &LostError{protocol.LostForced}

func closedBy(cause error) error {
	if cause == nil || errors.Is(cause, ErrClosed) {
		return ErrClosed
	}
	return fmt.Errorf("%w: %w", ErrClosed, cause)
}
