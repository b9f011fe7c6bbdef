package upstream

import "os"

// Mover is a Store whose leases another process can continue after a takeover.
type Mover interface {
	Store

	// Identity is what the other process has to be told before it opens the store; it does not
	// change.
	Identity() string

	// Leave returns what else it has to know. No Apply and no Sweep is under way, and none comes
	// before Stay; until then the Store changes nothing for good. It does not wait for the server.
	Leave() ([]byte, error)

	// Stay is called when the other process does not go on after all: the Store does.
	Stay()

	// Arrive has a Store that was opened by an Identity go on from what Leave returned there. It
	// changes nothing at the store: begin does, and is called when the other process is sure not
	// to go on, before any Apply.
	Arrive(state []byte) (begin func(), err error)
}

// Successor is the information with which a process that takes over opens a store.
type Successor struct {
	Identity string
	Lock     *os.File // that the other process has locked for the store; nil for none
}

// Moves is s as a Mover; nil when it is none, or has something in it that is none.
func Moves(s Store) Mover {
	if x, ok := s.(interface{ Moves() bool }); ok && !x.Moves() {
		return nil
	}
	m, _ := s.(Mover)
	return m
}
