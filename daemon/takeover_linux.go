package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// A takeover: this process hands everything to another one, which goes on in its place, and its
// clients notice nothing. The other one asks for it on the admin socket, and opens the stores while
// this one serves. Then this one comes to a stand and passes on its sockets and its snapshot. When the
// other one has taken all of it in, one byte commits: until it is written this process goes on if
// anything fails, and from then on it does nothing any more. The other one does nothing before it
// has read that byte. So no two ever serve, whichever of them is killed, and when.

// takeoverForm is the form of what is said, and of the takeover state.
const takeoverForm = 1

// The other process says claim, and after the offer prepared; after the takeover state ready.
type (
	claim struct {
		Form    int
		Version string
		PID     int
	}
	offer struct {
		Refused string // why not; empty if it may go on
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
		Admin   []string // what the admin listeners are
		Files   int      // how many descriptors come, these and those of the connections
	}
	ready struct{}
)

const (
	prepareTime = time.Minute     // for the other process to open its stores
	standMost   = 5 * time.Second // how long this one may stand still
	standShare  = 10              // and which part of the shortest TTL, whose renewals wait
	// standSaid is which part of the shortest stated validity. Keepalives come when a third of it is over,
	// and so do the pings that a heartbeat requires.
	standSaid = 3
	committed = 'C'
)

// takeover serves a claim.
func (a *admin) takeover(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != takeoverProtocol {
		http.Error(w, "this is for another locksidecar", http.StatusUpgradeRequired)
		return
	}
	if by, local := r.Context().Value(peerKey{}).(engine.Peer); !local || !rules(&by) {
		http.Error(w, "only root and the daemon's own user may take over, by the admin socket", http.StatusForbidden)
		return
	}
	nc, rest, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer nc.Close()
	local, ok := nc.(*adminConn)
	if !ok || rest.Reader.Buffered() > 0 {
		_, _ = fmt.Fprintf(nc, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\n\r\n")
		return
	}
	c := local.UnixConn
	_ = c.SetDeadline(time.Now().Add(prepareTime))
	if _, err := fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", takeoverProtocol); err != nil {
		return
	}
	a.d.transfer(c)
}

const takeoverProtocol = "locksidecar-takeover"

// transfer hands over to who is at the other end, or goes on.
func (d *Daemon) transfer(c *net.UnixConn) {
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
	case isClosed(d.ending): // which has closed c
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

// offer is what there is to take over, with the descriptors that belong to it.
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

// makeOffer says what there is to take over, and waits until the other process is prepared.
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

// transferTo stands still and passes everything on. An error means that this process goes on, and does.
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
		_ = c.Close() // first: from here on the other one is sure to end
		d.thaw()
	}
	return err
}

// standTime is how long the daemon may stand still.
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

// passOn sends the snapshot and every descriptor.
func (d *Daemon) passOn(c *net.UnixConn) error {
	var files fds
	defer files.close()
	image, what, err := d.leave(&files)
	if err == nil {
		err = files.addMemory(image)
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
