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
	// ErrParked means that a parked state cannot be used: for example, it is incomplete, or another
	// process has taken it already.
	ErrParked = errors.New("parked state cannot be taken over")
	// ErrLeft means that there is a parked state in a file, which this process has not used. The
	// earlier process wrote the file only after this process had checked for one.
	ErrLeft = errors.New("the last process has left detached holds in a file")
	// ErrMessage means that a message, or what comes with it, is malformed or unexpected.
	ErrMessage = errors.New("malformed or unexpected message from the other process of a takeover")
)

// Form is the version of the messages and of the takeover state. Both processes need the same.
const Form = 1

// Request asks for a takeover.
type Request struct {
	Form    int
	Version string
	PID     int
}

// Offer describes the serving process, or refuses the takeover.
type Offer struct {
	Refused string // the reason of a refusal; empty if the takeover continues
	Form    int
	Version string
	PID     int
	Stores  []OfferedStore
	Socket  string
	Owned   bool   // a daemon made the socket, so the last daemon has to remove it
	Seen    []byte // the result of daemon.Config.Seen
	Clock   string // identifies the boot clock; for a parked state in a file only
}

// OfferedStore describes a store of the serving process.
type OfferedStore struct {
	Name     string
	Key      string // as in daemon.StoreConfig
	Identity string // the result of the store's upstream.Mover
	Moves    bool   // the store has a Mover, so its leases can be taken over
	Locked   bool   // the descriptor of its lock file comes with the message
	Info     upstream.Info
	Parts    []engine.Part
}

// Prepared says that the successor has opened its stores.
type Prepared struct {
	Stores map[string]string // the stores' keys, by their names
}

// Contents describes the takeover state, or refuses the takeover.
type Contents struct {
	Refused string   // the reason of a refusal; empty if the takeover continues
	Admin   []string // the names of the admin listeners
	Files   int      // number of descriptors that follow, for the listeners and the connections
}

// Ready says that the successor has read everything.
type Ready struct{}

// committed is the byte with which the serving process commits the takeover.
const committed = 'C'
