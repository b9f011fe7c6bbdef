package driverkit

import (
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// The errors of all drivers. Each driver has its own, which wrap these and name the store.
var (
	// ErrConfig means that a store URL is malformed.
	ErrConfig = errors.New("store URL")
	// ErrServer means that a server was reached that must not be used for locks.
	ErrServer = errors.New("server cannot be used")
	// ErrNothingSent means that there was no connection, so the request was not sent.
	ErrNothingSent = errors.New("no connection to")
	// ErrNoAnswer means that no answer came, or one that makes no sense. The request may have been
	// carried out.
	ErrNoAnswer = errors.New("no answer from")
	// ErrRefused means that the server, or the driver itself, refused the request.
	ErrRefused = errors.New("refused")
)

// Errors returns a driver's own errors, such as "redis server cannot be used" for the store
// "redis".
func Errors(store string) (config, server, nothingSent, noAnswer, refused error) {
	before := func(err error) error { return fmt.Errorf("%s %w", store, err) }
	after := func(err error) error { return fmt.Errorf("%w %s", err, store) }
	return before(ErrConfig), before(ErrServer),
		after(ErrNothingSent), after(ErrNoAnswer), before(ErrRefused)
}

// Down returns err as an error that is upstream.ErrDown.
func Down(err error) error {
	if errors.Is(err, upstream.ErrDown) {
		return err
	}
	return fmt.Errorf("%w: %w", upstream.ErrDown, err)
}

// Outcome is the effect of a request, as far as its error tells.
type Outcome uint8

// The outcomes.
const (
	Done        Outcome = iota // There is no error.
	NothingSent                // The request did not leave this process.
	Refused                    // The server refused it and changed nothing.
	Unknown                    // The server may have carried it out.
)

// Status returns the status of an op that failed with outcome o.
func (o Outcome) Status() cache.Status {
	if o == Unknown {
		return cache.Unknown
	}
	return cache.Refused
}
