package daemon

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// newAdmin opens the admin listeners.
func (d *Daemon) newAdmin() (*admin.Server, error) {
	cfg := &d.cfg
	return admin.New(d, admin.Config{Socket: cfg.Socket, Mode: cfg.SocketMode,
		Group:  cfg.SocketGroup,
		Listen: cfg.AdminListen, Inherited: d.site.Admin, Takeover: d.takeoverHandler(),
		Version: cfg.Version, Log: d.log})
}

// newViewer makes the viewer. The engine and the stores are there already.
func (d *Daemon) newViewer() *admin.Viewer {
	return &admin.Viewer{Engine: d.engine, Clock: d.clock, Began: d.began, Version: d.cfg.Version,
		Totals: d.Totals, Ready: d.Ready,
		Query: d.stores.ask, Frozen: d.frozen.Load, Halt: d.halt}
}

// View returns the present state. It locks a shard for about a thousand rows at a time.
func (d *Daemon) View(q engine.ViewQuery) (engine.View, error) { return d.viewer.View(q) }

// Registry returns a registry with the daemon's metrics and the metrics of its process.
func (d *Daemon) Registry() *prometheus.Registry { return admin.Registry(d, d.cfg.Version) }

// stuckAfter is how late the timer of renewals may be before something is wrong.
const stuckAfter = 5 * time.Second

// Live returns an error if the daemon has stopped renewing locks. Only a restart helps then.
func (d *Daemon) Live() error {
	if late := d.timer.Late(); late > stuckAfter {
		return fmt.Errorf("renewals have been stuck for %v", late.Round(time.Second))
	}
	return nil
}

// Ready returns nil if new locks can be acquired now. Otherwise it returns why not: the daemon
// drains, has been told to end or is stuck, or a store is down and this host does not decide alone.
func (d *Daemon) Ready() error {
	if isClosed(d.ending) || d.halted() {
		return engine.ErrDraining
	}
	if err := d.engine.Ready(); err != nil {
		return err
	}
	return d.Live()
}
