package daemon

import (
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/protocol"
)

// partTime is the time that clients get to disconnect after they have been told that the session has ended.
const partTime = 2 * time.Second

// drain gives holders the drain time. It ends the sessions once nothing is held and every request is
// answered, or when that time is over. Then it waits briefly for their clients to disconnect.
func (d *Daemon) drain() {
	d.log.Info("draining", zap.String("event", "draining"), zap.Duration("for", d.now.Load().Drain), zap.Int64("held", d.engine.Held()))
	d.engine.Drain(d.now.Load().Drain)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	end := time.NewTimer(d.now.Load().Drain)
	defer end.Stop()
	for !d.drained() {
		select {
		case <-poll.C:
			continue
		case <-d.halt:
			return
		case <-end.C:
		}
		break
	}
	d.engine.Shut()
	empty := d.whenEmpty()
	for _, s := range d.engine.Sessions() {
		c := s.Transport().(*conn)
		c.handling.Lock() // a request that is being handled is answered first
		s.Fatal(protocol.Draining, "the daemon is stopping")
		c.handling.Unlock()
	}
	part := time.NewTimer(partTime)
	defer part.Stop()
	select {
	case <-empty:
	case <-part.C:
		d.log.Warn("clients did not part", zap.String("event", "drain_cut"), zap.Int64("held", d.engine.Held()))
	case <-d.halt:
	}
}

// drained reports whether nothing is held and no client waits for a store's answer.
func (d *Daemon) drained() bool {
	if d.engine.Held() > 0 {
		return false
	}
	for _, s := range d.engine.Sessions() { // wait until the last release is in its store's lane
		c := s.Transport().(*conn)
		c.handling.Lock()
		c.handling.Unlock() //nolint:staticcheck // see handling
	}
	return d.stores.asked() == 0 && d.engine.Unanswered() == 0
}

// settle waits for a bounded time until the stores have confirmed the releases.
func (d *Daemon) settle() {
	end := time.NewTimer(partTime)
	defer end.Stop()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		left := d.engine.Unanswered() + d.engine.PendingEnds()
		if left == 0 {
			return
		}
		select {
		case <-poll.C:
		case <-end.C:
			d.log.Warn("releases not confirmed", zap.String("event", "settle_cut"), zap.Int("waiting", left))
			return
		}
	}
}
