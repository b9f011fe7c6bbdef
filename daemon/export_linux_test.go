package daemon

// EndTakenOver ends what a process leaves running that another one has taken over from. Serve has
// returned.
func (d *Daemon) EndTakenOver() {
	d.freezing.Lock()
	d.thaw()
	d.Stop()
	d.site.closeSocket(&d.cfg)
	d.admin.Close(d.site.shared)
	d.wg.Wait()
	d.timer.Close()
	d.stores.close()
	d.peers.Close()
	_ = d.site.Lock.Close()
}

// Frozen says that a freeze has begun.
func (d *Daemon) Frozen() bool { return d.frozen.Load() }
