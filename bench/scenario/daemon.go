package scenario

import (
	"os"
	"path/filepath"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// launch starts a daemon on the store upstream, with more flags, and does not wait for
// it.
func (e *Env) launch(upstream string, flags ...string) (*Daemon, error) {
	if err := e.buildDaemon(); err != nil {
		return nil, err
	}
	socket := e.socket("daemon")
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		return nil, err
	}
	flags = append([]string{"serve", "--socket", socket, "--upstream", upstream, "--drain", "1s", "--log-level", "warn"}, flags...)
	p, err := harness.StartProcess(e.daemonBin, flags...)
	if err != nil {
		return nil, err
	}
	return &Daemon{p, socket}, nil
}

// daemon starts a daemon and waits until it listens.
func (e *Env) daemon(upstream string, flags ...string) (*Daemon, error) {
	d, err := e.launch(upstream, flags...)
	if err != nil {
		return nil, err
	}
	return d, d.AwaitSocket(d.Socket)
}

// stop ends a daemon. One that ends badly is a fault of the run.
func (e *Env) stop(scene string, d *Daemon) {
	if err := d.Stop(); err != nil {
		e.Report.Fault("%s: the daemon ended with %v\n%s", scene, err, d.Said())
	}
}

// bare starts one of the servers to compare with, and returns its socket.
func (e *Env) bare(name string) (*harness.Process, string, error) {
	socket := e.socket(name)
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		return nil, "", err
	}
	p, err := harness.StartServer(name, socket)
	return p, socket, err
}
