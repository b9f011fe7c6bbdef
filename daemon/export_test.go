package daemon

// Engine is for tests that ask what is left.
func (d *Daemon) Engine() *Engine { return d.engine }
