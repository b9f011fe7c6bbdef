package takeover

import (
	"fmt"
	"net"
	"os"

	"github.com/locksidecar/locksidecar/upstream"
)

// State is the state that a daemon offers for a takeover, or has left as parked state.
type State struct {
	c      *net.UnixConn // nil for a parked state
	offer  Offer
	locks  map[string]*os.File // the stores' lock files, by the stores' names
	parked *Received           // the parked state; nil when a daemon serves
	// gone has the stores of a parked state that this process does not have: see Match.
	gone map[string]OfferedStore
	// file is the path of a parked state in a file; empty for other states. lock is the lock file of
	// the socket, until SocketLock returns it.
	file string
	lock *os.File
}

// PID returns the id of the serving process, or of the process that has parked the state.
func (s *State) PID() int { return s.offer.PID }

// Socket returns the path of the socket that the other process serves.
func (s *State) Socket() string { return s.offer.Socket }

// OwnsSocket reports whether a daemon has made that socket, so that the last daemon has to remove
// it.
func (s *State) OwnsSocket() bool { return s.offer.Owned }

// Seen returns the result of the other process's daemon.Config.Seen. It is empty if that process
// has none, as in older versions.
func (s *State) Seen() []byte { return s.offer.Seen }

// Successor returns the information with which this process opens the store of that name as a
// successor. It is nil if the other process has no such store, or its leases cannot be taken over.
// It may be called on nil.
func (s *State) Successor(store string) *upstream.Successor {
	if s == nil {
		return nil
	}
	for _, o := range s.offer.Stores {
		if o.Name == store && o.Moves && !s.IsGone(store) {
			return &upstream.Successor{Identity: o.Identity, Lock: s.locks[store]}
		}
	}
	return nil
}

// Lost returns the names of the stores whose leases cannot be taken over.
func (s *State) Lost() (names []string) {
	for _, o := range s.offer.Stores {
		if !o.Moves {
			names = append(names, o.Name)
		}
	}
	return names
}

// Accepts reports whether the serving process accepts a successor with these stores, given as keys
// by names. A parked state accepts all stores: see Match.
func (s *State) Accepts(stores map[string]string) bool {
	return s.Parked() || len(s.offer.Missing(stores)) == 0
}

// Missing returns the offered stores that another process does not have. Its stores are given as
// keys by names.
func (o *Offer) Missing(stores map[string]string) (missing []OfferedStore) {
	for _, s := range o.Stores {
		if key, ok := stores[s.Name]; !ok || key != s.Key {
			missing = append(missing, s)
		}
	}
	return missing
}

// Receive asks the serving process to pass its state on to a successor with these stores, given as
// keys by names. It blocks until the state has arrived. It returns a parked state at once.
func (s *State) Receive(stores map[string]string) (*Received, error) {
	if s.Parked() {
		s.Match(stores)
		return s.parked, s.consume()
	}
	if err := Send(s.c, Prepared{stores}, nil); err != nil {
		return nil, err
	}
	r := new(Received)
	if _, err := Receive(s.c, &r.Contents); err != nil {
		return nil, err
	}
	if r.Refused != "" {
		return nil, fmt.Errorf("%w: %s", ErrRefused, r.Refused)
	}
	err := r.receiveFiles(s.c)
	if err == nil && !s.Accepts(stores) {
		err = ErrMessage
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// AwaitCommit tells the serving process that this process has read everything, and blocks until
// that process has committed. After an error the other process continues to serve. AwaitCommit
// returns at once for a parked state.
func (s *State) AwaitCommit() error {
	if s.Parked() {
		return nil
	}
	if err := Send(s.c, Ready{}, nil); err != nil {
		return err
	}
	var b [1]byte
	if _, err := s.c.Read(b[:]); err != nil {
		return fmt.Errorf("the other process did not commit: %w", err)
	}
	if b[0] != committed {
		return ErrMessage
	}
	_ = s.c.Close()
	return nil
}

// Close discards the takeover state. The serving daemon continues.
func (s *State) Close() {
	if s.Parked() {
		s.parked.Close()
	} else {
		_ = s.c.Close()
	}
	for _, f := range s.locks {
		_ = f.Close()
	}
	_ = s.lock.Close()
}
