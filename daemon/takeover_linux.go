package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// In a takeover another process continues in place of this one, and clients notice nothing. The other process asks for
// it on the admin socket, and opens the stores while this one serves. Then this process freezes and passes on its
// sockets and its snapshot. When the other process has read everything, this one commits with one byte. If anything
// fails before it has written that byte, this process continues; afterwards it does nothing more. The other process
// serves only after it has read that byte. So at most one process serves at any time, even if either is killed.

// takeoverForm is the version of the messages and of the takeover state.
const takeoverForm = 1

// The messages, in their order. The other process sends claim, then prepared after the offer, and ready after the
// takeover state.
type (
	claim struct {
		Form    int
		Version string
		PID     int
	}
	offer struct {
		Refused string // the reason of a refusal; empty if the takeover continues
		Form    int
		Version string
		PID     int
		Stores  []offered
		Socket  string
		Owned   bool // the socket is to be removed at the end
		Seen    []byte
	}
	offered struct {
		Name     string
		Key      string
		Identity string
		Moves    bool
		Locked   bool // a descriptor comes with the message
		Info     upstream.Info
		Parts    []engine.Part
	}
	prepared     struct{ Stores map[string]string } // keys by names
	stateMessage struct {
		Refused string
		Admin   []string // the names of the admin listeners
		Files   int      // number of descriptors that follow, for the listeners and the connections
	}
	ready struct{}
)

const (
	prepareTime = time.Minute     // for the other process to open its stores
	standMost   = 5 * time.Second // the longest freeze of this process
	standShare  = 10              // the part of the shortest TTL that a freeze may last, because renewals wait
	// standSaid is the part of the shortest stated validity that a freeze may last. Keepalives are sent after a third of
	// it, and so are the pings that a heartbeat requires.
	standSaid = 3
	committed = 'C'
)

// takeoverHandler returns the function that serves a process which wants to take over.
func (d *Daemon) takeoverHandler() func(*net.UnixConn) { return d.transfer }

// transfer carries out the takeover by the process at the other end of c. After an error this process continues.
func (d *Daemon) transfer(c *net.UnixConn) {
	_ = c.SetDeadline(time.Now().Add(prepareTime))
	var other claim
	if _, err := getMessage(c, &other); err != nil {
		return
	}
	<-d.started
	if !d.lockTransferring() {
		_ = putMessage(c, offer{Refused: "the daemon is ending, reloading or already being taken over"}, nil)
		return
	}
	defer d.transferring.Unlock()
	if isClosed(d.transferred) || d.halted() {
		return
	}
	defer d.closeOnEnd(c)()
	err := d.makeOffer(c, other)
	began := time.Now()
	if err == nil {
		err = d.transferTo(c, other)
	}
	switch {
	case err == nil:
	case isClosed(d.ending): // End has closed c
		d.log.Error("takeover canceled; this process ends",
			zap.String("event", "takeover_failed"), zap.Int("pid", other.PID), zap.Error(errEnding))
		return
	default:
		d.log.Error("takeover failed; this process continues to serve",
			zap.String("event", "takeover_failed"), zap.Int("pid", other.PID), zap.Error(err))
		return
	}
	d.log.Info("another process has taken over", zap.String("event", "taken_over"), zap.Int("pid", other.PID),
		zap.String("version", other.Version), zap.Duration("stood_still", time.Since(began)))
	d.endTransferred()
}

var errEnding = errors.New("the daemon has been told to end")

// closeOnEnd closes c when the daemon is told to end. The function that it returns stops the watch and waits
// for its goroutine.
func (d *Daemon) closeOnEnd(c *net.UnixConn) (stop func()) {
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-d.ending:
			_ = c.Close()
		case <-done:
		}
	})
	return func() {
		close(done)
		watch.Wait()
	}
}

// offer returns the offer, and the descriptors that belong to it.
func (d *Daemon) offer() (o offer, locks []int) {
	o = offer{Form: takeoverForm, Version: d.cfg.Version, PID: os.Getpid(), Socket: d.cfg.Socket, Owned: d.cfg.Listener == nil}
	if d.cfg.Seen != nil {
		o.Seen = d.cfg.Seen()
	}
	for _, v := range d.stores.list() {
		one := offered{Name: v.lane.Name(), Key: v.Key, Locked: v.Lock != nil, Info: v.StoreConfig.Store.Info(), Parts: v.Parts}
		if m := upstream.Moves(v.StoreConfig.Store); m != nil {
			one.Moves, one.Identity = true, m.Identity()
		}
		if one.Locked {
			locks = append(locks, int(v.Lock.Fd()))
		}
		o.Stores = append(o.Stores, one)
	}
	return o, locks
}

// makeOffer sends the offer, and waits until the other process is prepared.
func (d *Daemon) makeOffer(c *net.UnixConn, other claim) error {
	refuse := func(err error) error {
		_ = putMessage(c, offer{Refused: err.Error()}, nil)
		return err
	}
	switch {
	case other.Form != takeoverForm:
		return refuse(fmt.Errorf("%w: it knows form %d of takeovers, this process form %d", errPassing, other.Form, takeoverForm))
	case isClosed(d.ending) || d.engine.Draining():
		return refuse(errEnding)
	}
	if err := d.stores.closeDropped(); err != nil {
		return refuse(err)
	}
	o, locks := d.offer()
	if err := putMessage(c, o, locks); err != nil {
		return err
	}
	var has prepared
	if _, err := getMessage(c, &has); err != nil {
		return err
	}
	for _, v := range d.stores.list() {
		if key, ok := has.Stores[v.lane.Name()]; !ok || key != v.Key {
			err := fmt.Errorf("store %q is not the same in its configuration: reload this daemon first", v.lane.Name())
			_ = putMessage(c, stateMessage{Refused: err.Error()}, nil)
			return err
		}
	}
	return nil
}

// transferTo freezes the daemon and passes everything on. After an error it has thawed the daemon, which continues.
func (d *Daemon) transferTo(c *net.UnixConn, other claim) error {
	end := time.Now().Add(d.standTime())
	_ = c.SetDeadline(end)
	err := d.freeze(end)
	if err == nil {
		err = d.passOn(c)
	}
	if err == nil {
		_, err = getMessage(c, &ready{})
	}
	if err == nil {
		err = d.commit(c, other)
	}
	if err != nil {
		_ = c.Close() // first: from now on the takeover of the other process is sure to fail
		d.thaw()
	}
	return err
}

// standTime returns how long the daemon may be frozen.
func (d *Daemon) standTime() time.Duration {
	ttl, validity := d.engine.Shortest()
	return min(standMost, ttl/standShare, validity/standSaid)
}

// commit writes the byte after which this process does nothing any more.
func (d *Daemon) commit(c *net.UnixConn, other claim) error {
	if isClosed(d.ending) {
		return errEnding
	}
	_ = c.SetDeadline(time.Time{})
	if d.cfg.TakenOver != nil {
		d.cfg.TakenOver(other.PID)
	}
	_, err := c.Write([]byte{committed})
	if err != nil && d.cfg.TakenOver != nil {
		d.cfg.TakenOver(os.Getpid())
	}
	return err
}

// passOn sends the takeover state: the snapshot and every descriptor.
func (d *Daemon) passOn(c *net.UnixConn) error {
	var files fds
	defer files.close()
	snapshot, what, err := d.leave(&files)
	if err == nil {
		err = files.addMemory(snapshot)
	}
	if err != nil {
		_ = putMessage(c, stateMessage{Refused: err.Error()}, nil)
		return err
	}
	if err := putMessage(c, what, nil); err != nil {
		return err
	}
	for some := range slices.Chunk(files.all, passMost) {
		if err := putMessage(c, struct{}{}, some); err != nil {
			return err
		}
	}
	return nil
}
