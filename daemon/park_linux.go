package daemon

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// Park freezes the daemon, and calls keep with all descriptors that the next process needs, in
// their order. If keep returns no error, this process stops serving, and Serve returns
// ErrTakenOver. After an error this process continues to serve.
func (d *Daemon) Park(keep func(files []int) error) error {
	select {
	case <-d.started:
	case <-d.halt:
	}
	if !d.lockTransferring() {
		return errors.New("a takeover or a reload is in progress, or the daemon is ending")
	}
	defer d.transferring.Unlock()
	if isClosed(d.transferred) || d.halted() || d.engine.Draining() {
		return errors.New(goingAway)
	}
	o, locks, err := d.offer()
	if err != nil {
		return err
	}
	var files takeover.Files
	defer files.Close()
	if err = d.freeze(time.Now().Add(d.freezeTime())); err == nil {
		err = takeover.Park(&files, o, locks, giver{d})
	}
	if err == nil {
		err = keep(files.All())
	}
	if err != nil {
		files.Revoke()
		d.thaw()
		return err
	}
	d.log.Info("state parked for the next process",
		zap.String("event", "parked"), zap.Duration("frozen_for", time.Since(d.frozeAt)))
	d.markTransferred()
	return nil
}

// parkDetached writes the detached holds to a file for the next process, after the drain. It
// reports whether it has done so. If it has, this process must not change anything at the stores.
func (d *Daemon) parkDetached() bool {
	n := d.engine.Detached()
	if n == 0 {
		return false
	}
	d.stores.pause()
	if err := d.park(); err != nil {
		d.stores.resume()
		d.log.Warn("detached holds not parked: the next process cannot release them early, and a "+
			"store that depends on this process frees their keys now",
			zap.String("event", "park_failed"), zap.Int64("detached", n), zap.Error(err))
		return false
	}
	d.log.Info("detached holds parked for the next process",
		zap.String("event", "parked"), zap.Int64("detached", n))
	return true
}

// park writes the parked state with the detached holds. No client may be left, because the state
// has no connections.
func (d *Daemon) park() error {
	if n := len(d.engine.Sessions()); n > 0 {
		return fmt.Errorf("%d clients are still connected", n)
	}
	answered := func() bool { return d.engine.InFlight() == 0 }
	if !poll(time.Millisecond, stepTime, nil, answered) {
		return errSlowFreeze
	}
	o, _, err := d.offer()
	if err != nil {
		return err
	}
	snapshot, _, err := d.snapshot()
	if err != nil {
		return err
	}
	return takeover.ParkInFile(o, snapshot)
}
