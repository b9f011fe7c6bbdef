package daemon

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// Park freezes the daemon, and calls keep with all descriptors that the next process needs, in
// their order. If keep returns no error, this process serves no more, and Serve returns
// ErrTakenOver. After an error this process continues.
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
		d.thaw()
		return err
	}
	d.log.Info("state parked for the next process",
		zap.String("event", "parked"), zap.Duration("frozen_for", time.Since(d.froze)))
	d.endTransferred()
	return nil
}
