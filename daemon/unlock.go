package daemon

import (
	"os"
	"time"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// operators returns the users who may unlock by force: root, the daemon's own user, and those that
// the configuration names.
func (c *Serving) operators() engine.Access {
	return engine.Access{Groups: c.Operators.Groups,
		Users: append([]int{0, os.Geteuid()}, c.Operators.Users...)}
}

// MayUnlock reports whether by may unlock by force.
func (d *Daemon) MayUnlock(by *engine.Peer) bool { return d.engine.MayUnlock(by) }

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
	ended, free := d.engine.Force(key, permit, fence, by)
	now := d.clock()
	u := admin.Unlocked{Released: len(ended), Holds: []engine.ViewHold{},
		FreeIn: engine.Millis(max(0, free-now) + int64(time.Millisecond) - 1)}
	for i := range ended {
		h := &ended[i]
		if len(u.Holds) < engine.MaxViewRows {
			u.Holds = append(u.Holds, d.engine.ViewHold(h, now))
		}
	}
	return u, nil
}
