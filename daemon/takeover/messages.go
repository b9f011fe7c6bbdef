package takeover

import (
	"errors"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// Errors of takeovers.
var (
	ErrNobody  = errors.New("no daemon serves this socket")
	ErrRefused = errors.New("the daemon that serves refuses the takeover")
	// ErrDenied is a kind of ErrRefused.
	ErrDenied = errors.New("only root and the daemon's own user may take over")
	// ErrParked means that a parked state cannot be used: it is incomplete, or a process has taken
	// it already.
	ErrParked = errors.New("parked state cannot be taken over")
	// ErrLeft means that a process has left a parked state in a file, which this process has not used.
	// It was ending when this process looked for the file.
	ErrLeft = errors.New("the last process has left detached holds in a file")
	// ErrMessage means that a message, or what comes with it, is malformed or unexpected.
	ErrMessage = errors.New("the other process does not keep to the form of a takeover")
)

// Form is the version of the messages and of the takeover state.
const Form = 1

// Request asks for a takeover.
type Request struct {
	Form    int
	Version string
	PID     int
}

// Offer describes the process that serves, or refuses the takeover.
type Offer struct {
	Refused string // the reason of a refusal; empty if the takeover continues
	Form    int
	Version string
	PID     int
	Stores  []OfferedStore
	Socket  string
	Owned   bool // the socket is to be removed at the end
	Seen    []byte
	Clock   string // identifies the boot clock; for a parked state in a file only
}

// OfferedStore describes a store of the process that serves.
type OfferedStore struct {
	Name     string
	Key      string
	Identity string
	Moves    bool
	Locked   bool // a descriptor comes with the message
	Info     upstream.Info
	Parts    []engine.Part
}

// Prepared says that the successor has opened its stores.
type Prepared struct {
	Stores map[string]string // keys by names
}

// Contents describes the takeover state, or refuses the takeover.
type Contents struct {
	Refused string   // the reason of a refusal; empty if the takeover continues
	Admin   []string // the names of the admin listeners
	Files   int      // number of descriptors that follow, for the listeners and the connections
}

// Ready says that the successor has read everything.
type Ready struct{}

// committed is the byte by which the process that serves commits the takeover.
const committed = 'C'
