package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// A takeover without a successor yet: the daemon leaves its descriptors with the service manager and ends. The next
// process gets them from the manager. The order of the descriptors identifies them.

// ErrParked means that a parked state cannot be used: it is incomplete, or a process has taken it already.
var ErrParked = errors.New("parked state cannot be taken over")

// The first byte of the memory file of a parked state.
const (
	parkedFresh = 'F'
	parkedTaken = 'T' // by a process that serves, or has served: the state is out of date
)

// parkedState is the state that a daemon has left with the service manager.
type parkedState struct {
	what     stateMessage
	snapshot []byte
	files    *passed
	gone     map[string]offered // the stores that this process does not have: see Match
}

// Park freezes the daemon, and calls keep with all descriptors that the next process needs, in their order. If keep
// returns no error, this process serves no more, and Serve returns ErrTakenOver. After an error this process continues.
func (d *Daemon) Park(keep func(files []int) error) error {
	select {
	case <-d.started:
	case <-d.halt:
	}
	if !d.lockTransferring() {
		return errors.New("a takeover is under way, or the daemon ends")
	}
	defer d.transferring.Unlock()
	if isClosed(d.transferred) || d.halted() || d.engine.Draining() {
		return errors.New("the daemon is going away")
	}
	if err := d.stores.closeDropped(); err != nil {
		return err
	}
	began := time.Now()
	err := d.freeze(began.Add(d.standTime()))
	if err == nil {
		err = d.parkState(keep)
	}
	if err != nil {
		d.thaw()
		return err
	}
	d.log.Info("state parked for the next process", zap.String("event", "bequeathed"), zap.Duration("stood_still", time.Since(began)))
	d.endTransferred()
	return nil
}

func (d *Daemon) parkState(keep func(files []int) error) error {
	o, locks := d.offer()
	files := fds{all: locks}
	defer files.close()
	snapshot, what, err := d.leave(&files)
	if err != nil {
		return err
	}
	head, err := json.Marshal([]any{o, what})
	if err != nil {
		return err
	}
	c := &cache.Coder{B: []byte{parkedFresh}}
	c.Bytes(&head)
	c.Bytes(&snapshot)
	if err := files.addMemory(c.B); err != nil {
		return err
	}
	return keep(files.all)
}

// FindParked returns the takeover state that a daemon has parked. It can be taken only once: whatever happens to it, the
// next process that finds the same descriptors gets ErrParked. If the state is not used, its holds end with the validity
// stated to their owners. The files belong to FindParked.
func FindParked(files []*os.File) (e *TakeoverState, err error) {
	in := &passed{files: files}
	found := &TakeoverState{locks: make(map[string]*os.File), left: &parkedState{files: in}}
	defer func() {
		if err != nil {
			found.Close()
		}
	}()
	if len(files) == 0 {
		return nil, ErrParked
	}
	memory := files[len(files)-1]
	b, err := contents(memory)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParked, err)
	}
	if len(b) == 0 || b[0] != parkedFresh {
		return nil, fmt.Errorf("%w: it has been taken before", ErrParked)
	}
	if _, err := memory.WriteAt([]byte{parkedTaken}, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParked, err)
	}
	c := &cache.Coder{B: b[1:], Reading: true}
	var head []byte
	c.Bytes(&head)
	c.Bytes(&found.left.snapshot)
	if c.Err == nil {
		c.Err = json.Unmarshal(head, &[]any{&found.offer, &found.left.what})
	}
	if c.Err != nil || found.offer.Form != takeoverForm {
		return nil, fmt.Errorf("%w: form %d (%v)", ErrParked, found.offer.Form, c.Err)
	}
	for _, s := range found.offer.Stores {
		if s.Locked {
			found.locks[s.Name] = in.next()
		}
	}
	if len(files)-in.at != found.left.what.Files {
		return nil, fmt.Errorf("%w: %d of %d descriptors are there", ErrParked, len(files)-in.at, found.left.what.Files)
	}
	return found, nil
}

// Left reports whether the takeover state is a parked state. Then no daemon serves.
func (e *TakeoverState) Left() bool { return e.left != nil }

// Match compares the stores of a parked state with the stores of this process, given as keys by names. It returns the
// names of the stores that this process does not have. Their locks are lost, and Successor returns nil for them. Match
// has to be called before a store is opened. If a daemon serves, it returns nothing, because that daemon refuses the
// takeover in such a case.
func (e *TakeoverState) Match(stores map[string]string) (gone []string) {
	if e.left == nil {
		return nil
	}
	e.left.gone = make(map[string]offered)
	for _, s := range e.offer.Stores {
		if key, ok := stores[s.Name]; ok && key == s.Key {
			continue
		}
		e.left.gone[s.Name] = s
		gone = append(gone, s.Name)
		if f := e.locks[s.Name]; f != nil { // another store of this process may need the same file
			_ = f.Close()
			delete(e.locks, s.Name)
		}
	}
	return gone
}

// isGone reports whether this process does not have the store with that name in the takeover state.
func (e *TakeoverState) isGone(store string) bool {
	if e.left == nil {
		return false
	}
	_, gone := e.left.gone[store]
	return gone
}

// standIns makes stand-ins for the stores that this process does not have.
func (e *TakeoverState) standIns(to *engine.Engine) (gone map[string]*engine.StoreLane, err error) {
	if e.left == nil {
		return nil, nil
	}
	gone = make(map[string]*engine.StoreLane)
	for name, s := range e.left.gone {
		if s.Info.Name == "" {
			return nil, fmt.Errorf("the process that has left it is too old to tell what kind of store %q is", name)
		}
		if gone[name], err = to.StandIn(name, s.Info, s.Parts); err != nil {
			return nil, err
		}
	}
	return gone, nil
}

// inheritLeft is Inherit for a parked state. After an error no other daemon serves, so the caller can use cfg to serve
// anew.
func (e *TakeoverState) inheritLeft(cfg Config, has prepared) (*Daemon, error) {
	in := e.left.files
	defer in.close()
	if was := e.offer.Socket; was != cfg.Socket {
		return nil, fmt.Errorf("%w: its socket is %s, and this process serves %s", ErrParked, was, cfg.Socket)
	}
	e.Match(has.Stores)
	given := cfg.Listener
	if given != nil { // which the daemon that is made here closes if it fails
		var err error
		if cfg.Listener, err = duplicate(given); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrParked, err)
		}
	}
	d, err := e.take(cfg, e.left.what, e.left.snapshot, in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrParked, err)
	}
	if given != nil {
		_ = given.Close()
	}
	d.site.shared = false
	return d, nil
}

// duplicate makes another listener on the same socket.
func duplicate(ln *net.UnixListener) (*net.UnixListener, error) {
	f, err := ln.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	again, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return again.(*net.UnixListener), nil
}
