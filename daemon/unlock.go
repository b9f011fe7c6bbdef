package daemon

import (
	"time"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// Unlock ends the holds of a key on this host, on behalf of by, and always logs that. The key
// stays closed until the holders have read of the loss, or until the validity that was stated to
// them is over. It waits while the daemon is frozen. It returns ErrTakenOver after a takeover,
// because the other process has the holds then.
func (d *Daemon) Unlock(
	key string, permit bool, fence uint64, by engine.Peer,
) (admin.Unlocked, error) {
	d.freezing.RLock()
	defer d.freezing.RUnlock()
	if isClosed(d.transferred) {
		return admin.Unlocked{}, ErrTakenOver
	}
	ended, free := d.engine.Force(key, permit, fence)
	now := d.clock()
	u := admin.Unlocked{Released: len(ended), Holds: []engine.ViewHold{},
		FreeIn: engine.Millis(max(0, free-now) + int64(time.Millisecond) - 1)}
	for i := range ended {
		h := &ended[i]
		if len(u.Holds) < engine.MaxViewRows {
			u.Holds = append(u.Holds, d.engine.ViewHold(h, now))
		}
		d.audit.Unlocked(h, by)
	}
	return u, nil
}
