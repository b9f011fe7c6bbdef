package daemon

import (
	"net"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// Engine is for tests that ask what is left.
func (d *Daemon) Engine() *engine.Engine { return d.engine }

// Started is closed once all that Serve starts runs.
func (d *Daemon) Started() <-chan struct{} { return d.started }

// AdminAddr is where the admin listener listens on TCP.
func (d *Daemon) AdminAddr() net.Addr {
	return d.admin.Listeners()["tcp "+
		d.cfg.AdminListen].Addr()
}

// HoldRequests keeps the requests of the only connection from being handled until the returned
// function is called. end acts as the end of the peer's process.
func (d *Daemon) HoldRequests() (end, handle func()) {
	c := d.connections()[0]
	c.handling.Lock()
	return c.processEnded, c.handling.Unlock
}

// Welcome begins a session on a connection that was accepted before a drain, as if admit had been
// slow since.
func (d *Daemon) Welcome(nc *sock.Conn) { d.welcome(nc, func(protocol.Code, string) {}) }
