package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
)

// A takeover with nobody there yet: the daemon leaves its descriptors with a manager that keeps them,
// and ends; the next process gets them from it. Which of them is which is the order.

// ErrBequest says that what was left behind is of no use: it is not whole, or has been taken
// already.
var ErrBequest = errors.New("what was left behind cannot be taken over")

// The first byte of the memory that comes with a bequest.
const (
	bequestFresh = 'F'
	bequestTaken = 'T' // by a process that serves, or has served: everything in it is out of date
)

// bequest is what was left behind.
type bequest struct {
	what  estate
	image []byte
	files *passed
}

// Bequeath stands still, and has keep take all descriptors that another process needs to go on, in
// their order. When keep has returned without an error this process does nothing any more, and Serve
// ends with ErrTakenOver; with one it goes on.
func (d *Daemon) Bequeath(keep func(files []int) error) error {
	select {
	case <-d.started:
	case <-d.halt:
	}
	if !d.lockHanding() {
		return errors.New("a takeover is under way, or the daemon ends")
	}
	defer d.handing.Unlock()
	if isClosed(d.handed) || d.halted() || d.engine.draining.Load() {
		return errors.New("the daemon is going away")
	}
	if err := d.stores.closeDropped(); err != nil {
		return err
	}
	began := time.Now()
	err := d.freeze(began.Add(d.standTime()))
	if err == nil {
		err = d.bequeath(keep)
	}
	if err != nil {
		d.thaw()
		return err
	}
	d.log.Info("left to the next process", zap.String("event", "bequeathed"), zap.Duration("stood_still", time.Since(began)))
	d.handedOver()
	return nil
}

func (d *Daemon) bequeath(keep func(files []int) error) error {
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
	c := &cache.Coder{B: []byte{bequestFresh}}
	c.Bytes(&head)
	c.Bytes(&image)
	if err := files.addMemory(c.B); err != nil {
		return err
	}
	return keep(files.all)
}

// Found is an estate that a daemon has left behind. It can be had once: whatever becomes of it, the
// next process that finds the same descriptors gets ErrBequest, and what was held is over when what
// was stated of it is. The files belong to Found.
func Found(files []*os.File) (e *Estate, err error) {
	in := &passed{files: files}
	found := &Estate{locks: make(map[string]*os.File), left: &bequest{files: in}}
	defer func() {
		if err != nil {
			found.Close()
		}
	}()
	if len(files) == 0 {
		return nil, ErrBequest
	}
	memory := files[len(files)-1]
	b, err := contents(memory)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBequest, err)
	}
	if len(b) == 0 || b[0] != bequestFresh {
		return nil, fmt.Errorf("%w: it has been taken before", ErrBequest)
	}
	if _, err := memory.WriteAt([]byte{bequestTaken}, 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBequest, err)
	}
	c := &cache.Coder{B: b[1:], Reading: true}
	var head []byte
	c.Bytes(&head)
	c.Bytes(&found.left.image)
	if c.Err == nil {
		c.Err = json.Unmarshal(head, &[]any{&found.offer, &found.left.what})
	}
	if c.Err != nil || found.offer.Form != takeoverForm {
		return nil, fmt.Errorf("%w: form %d (%v)", ErrBequest, found.offer.Form, c.Err)
	}
	for _, s := range found.offer.Stores {
		if s.Locked {
			found.locks[s.Name] = in.next()
		}
	}
	if len(files)-in.at != found.left.what.Files {
		return nil, fmt.Errorf("%w: %d of %d descriptors are there", ErrBequest, len(files)-in.at, found.left.what.Files)
	}
	return found, nil
}

// inheritLeft is Inherit for what was left behind: there is nobody to go on otherwise.
func (e *Estate) inheritLeft(cfg Config, has prepared) (*Daemon, error) {
	in := e.left.files
	defer in.close()
	for _, s := range e.offer.Stores {
		if key, ok := has.Stores[s.Name]; !ok || key != s.Key {
			return nil, fmt.Errorf("%w: store %q is not the same in this configuration", ErrBequest, s.Name)
		}
	}
	d, err := e.take(cfg, e.left.what, e.left.image, in)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBequest, err)
	}
	d.site.borrowed = false
	return d, nil
}
