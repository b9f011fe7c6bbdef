package daemon

import "net"

// Engine is for tests that ask what is left.
func (d *Daemon) Engine() *Engine { return d.engine }

// AdminAddr is where the admin listener listens on TCP.
func (d *Daemon) AdminAddr() net.Addr { return d.admin.lns["tcp "+d.cfg.AdminListen].Addr() }
