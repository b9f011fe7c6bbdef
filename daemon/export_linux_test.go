package daemon

import "io"

// The places at which a process that takes over may be killed.
const (
	AfterClaim = iota
	AfterPrepared
	AfterState
	InReady // half of it is said
	Silent  // it says nothing any more, and lives
	Steps
)

// EndAt takes over as Inherit does, up to a step, and ends there as a process does that is killed.
func (e *TakeoverState) EndAt(step int, cfg Config) error {
	defer e.Close()
	if step == AfterClaim {
		return nil
	}
	has := prepared{make(map[string]string)}
	for _, s := range cfg.Stores {
		has.Stores[s.Name] = s.Key
	}
	if err := putMessage(e.c, has, nil); err != nil || step == AfterPrepared {
		return err
	}
	in, _, err := e.receive()
	if err != nil {
		return err
	}
	defer in.close()
	switch step {
	case InReady:
		_, err = e.c.Write([]byte{0, 0})
	case Silent:
		_, err = e.c.Read(make([]byte, 1))
		if err == io.EOF {
			err = nil
		}
	}
	return err
}

// EndTakenOver ends what a process leaves running that another one has taken over from. Serve has returned.
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
	_ = d.site.lock.Close()
}

// Frozen says that a freeze has begun.
func (d *Daemon) Frozen() bool { return d.frozen.Load() }
