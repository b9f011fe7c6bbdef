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

// A takeover with nobody there yet: the daemon leaves its descriptors with a manager that keeps them,
// and ends; the next process gets them from it. Which of them is which is the order.

// ErrParked says that what was left behind is of no use: it is not whole, or has been taken
// already.
var ErrParked = errors.New("what was left behind cannot be taken over")

// The first byte of the memory that comes with a parked state.
const (
	parkedFresh = 'F'
	parkedTaken = 'T' // by a process that serves, or has served: everything in it is out of date
)

// parkedState is what was left behind.
type parkedState struct {
	what     stateMessage
	snapshot []byte
	files    *passed
	gone     map[string]offered // the stores that this process does not have: see Match
}

// Park stands still, and has keep take all descriptors that another process needs to go on, in
// their order. When keep has returned without an error this process does nothing any more, and Serve
// ends with ErrTakenOver; with one it goes on.
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
	d.log.Info("left to the next process", zap.String("event", "bequeathed"), zap.Duration("stood_still", time.Since(began)))
	d.endTransferred()
	return nil
}

func (d *Daemon) parkState(keep func(files []int) error) error {
	o, locks := d.offer()
	files := fds{all: locks}
	defer files.close()
	image, what, err := d.leave(&files)
	if err != nil {
		return err
	}
	head, err := json.Marshal([]any{o, what})
	if err != nil {
		return err
	}
	c := &cache.Coder{B: []byte{parkedFresh}}
	c.Bytes(&head)
	c.Bytes(&image)
	if err := files.addMemory(c.B); err != nil {
		return err
	}
	return keep(files.all)
}

// FindParked is a takeover state that a daemon has left behind. It can be had once: whatever becomes of it, the
// next process that finds the same descriptors gets ErrParked, and what was held is over when what
// was stated of it is. The files belong to Found.
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

// Left says that a daemon has left the takeover state behind: nobody serves.
func (e *TakeoverState) Left() bool { return e.left != nil }

// Match compares the stores of a takeover state that was left behind with those that this process is to have: keys by
// names. It returns the names of those that this process does not have. Their locks are lost, and Successor knows
// nothing of them. Match has to be called before a store is opened. Of a daemon that serves it returns nothing,
// because that refuses to hand over then.
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

// isGone says that this process does not have the store of the takeover state with that name.
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

// inheritLeft is Inherit for what was left behind. There is nobody to go on otherwise, so cfg can be used to serve
// anew after an error.
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
