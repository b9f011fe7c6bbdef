package takeover

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// A parked state is for a takeover without a successor yet: the daemon leaves its descriptors with
// the service manager and ends. The next process gets them from the manager. The order of the
// descriptors identifies them. A state without descriptors can also be in a file: see ParkInFile.

// The first byte of the memory file of a parked state.
const (
	parkedFresh = 'F'
	parkedTaken = 'T' // a process has served with this state, so the state is out of date
)

var errTaken = errors.New("another process has taken it before")

// encodeParked returns the content of the memory file of a parked state.
func encodeParked(o Offer, contents Contents, snapshot []byte) ([]byte, error) {
	head, err := json.Marshal([]any{o, contents})
	if err != nil {
		return nil, err
	}
	c := &cache.Coder{B: []byte{parkedFresh}}
	c.Bytes(&head)
	c.Bytes(&snapshot)
	return c.B, nil
}

// FindParked returns the takeover state that a daemon has parked. A state can be taken only once:
// FindParked marks it, and the next process that finds the same descriptors gets ErrParked. If the
// state is not used, its holds end with the validity stated to their owners. FindParked takes
// ownership of files.
func FindParked(files []*os.File) (found *State, err error) {
	r := &Received{files: files}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	if len(files) == 0 || runtime.GOOS != "linux" {
		return nil, ErrParked
	}
	memory := files[len(files)-1]
	b, err := readAll(memory)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParked, err)
	}
	if len(b) > 0 && b[0] != parkedFresh {
		return nil, fmt.Errorf("%w: %w", ErrParked, errTaken)
	}
	if _, err := memory.WriteAt([]byte{parkedTaken}, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParked, err)
	}
	if found, err = decodeParked(b); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParked, err)
	}
	r.Contents, r.Snapshot = found.parked.Contents, found.parked.Snapshot
	found.parked = r
	for _, s := range found.offer.Stores {
		if s.Locked {
			found.locks[s.Name] = r.Next()
		}
	}
	if left := len(files) - r.at; left != r.Files {
		found.Close()
		return nil, fmt.Errorf("%w: %d of %d descriptors are there", ErrParked, left, r.Files)
	}
	return found, nil
}

// decodeParked reads what encodeParked has returned.
func decodeParked(b []byte) (*State, error) {
	switch {
	case len(b) == 0:
		return nil, errors.New("it is empty")
	case b[0] != parkedFresh:
		return nil, errTaken
	}
	s := &State{locks: make(map[string]*os.File), parked: new(Received)}
	c := &cache.Coder{B: b[1:], Reading: true}
	var head []byte
	c.Bytes(&head)
	c.Bytes(&s.parked.Snapshot)
	if c.Err == nil {
		c.Err = json.Unmarshal(head, &[]any{&s.offer, &s.parked.Contents})
	}
	if c.Err != nil || s.offer.Form != Form {
		return nil, fmt.Errorf("form %d (%v)", s.offer.Form, c.Err)
	}
	return s, nil
}

// Parked reports whether the takeover state is a parked state. Then no daemon serves.
func (s *State) Parked() bool { return s.parked != nil }

// Match compares the stores of a parked state with the stores of this process, given as keys by
// names. It returns the names of the stores that this process does not have. Their locks are lost,
// and Successor returns nil for them. The caller calls Match before it opens a store. For a state
// that is not parked, Match returns nothing: the serving daemon refuses the takeover itself if a
// store is missing.
func (s *State) Match(stores map[string]string) (gone []string) {
	if !s.Parked() {
		return nil
	}
	s.gone = make(map[string]OfferedStore)
	for _, o := range s.offer.Missing(stores) {
		s.gone[o.Name] = o
		gone = append(gone, o.Name)
		if f := s.locks[o.Name]; f != nil { // another store of this process may need the same file
			_ = f.Close()
			delete(s.locks, o.Name)
		}
	}
	return gone
}

// StandIns adds a stand-in to the engine for each store that Match has found missing. It returns
// the stand-ins by the names of these stores.
func (s *State) StandIns(to *engine.Engine) (map[string]*engine.StoreLane, error) {
	lanes := make(map[string]*engine.StoreLane)
	for name, o := range s.gone {
		if o.Info.Name == "" {
			return nil, fmt.Errorf("the parked state does not tell what kind of store "+
				"%q is: a daemon of an older version wrote it", name)
		}
		lane, err := to.StandIn(name, o.Info, o.Parts)
		if err != nil {
			return nil, err
		}
		lanes[name] = lane
	}
	return lanes, nil
}

// IsGone reports whether Match has found that this process does not have the store with that name.
func (s *State) IsGone(store string) bool {
	_, gone := s.gone[store]
	return gone
}
