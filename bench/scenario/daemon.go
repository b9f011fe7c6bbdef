package scenario

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// launch starts a daemon on the store upstream, with additional flags, and does not wait for it.
func (e *Env) launch(upstream string, flags ...string) (*Daemon, error) {
	socket, args, err := e.serving(upstream, flags)
	if err != nil {
		return nil, err
	}
	p, err := harness.StartProcess(e.daemonBin, args...)
	if err != nil {
		return nil, err
	}
	return &Daemon{p, socket}, nil
}

// serving returns the arguments that start a daemon, and the path of its socket.
func (e *Env) serving(upstream string, flags []string) (socket string, args []string, err error) {
	if err := e.buildDaemon(); err != nil {
		return "", nil, err
	}
	socket = e.socket("daemon")
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		return "", nil, err
	}
	// Otherwise a pause of the machine could cause an error in a short run.
	if e.Short && upstream != "memory:" {
		sep := "?"
		if strings.Contains(upstream, "?") {
			sep = "&"
		}
		upstream += sep + "timeout=30s"
	}
	return socket, append([]string{"serve", "--socket", socket, "--upstream", upstream, "--drain",
		"1s", "--log-level", "warn"}, flags...), nil
}

// daemon starts a daemon and waits until it listens.
func (e *Env) daemon(upstream string, flags ...string) (*Daemon, error) {
	d, err := e.launch(upstream, flags...)
	if err != nil {
		return nil, err
	}
	return d, d.AwaitSocket(d.Socket)
}

// redis starts a server, whose version the report names.
func (e *Env) redis() (*harness.Redis, error) {
	r, err := harness.StartRedis(e.Dir)
	if err == nil {
		e.Report.Machine.Redis = r.Version()
	}
	return r, err
}

// redisDaemon starts a Redis and a daemon on it. stop ends both.
func (e *Env) redisDaemon(scene string) (r *harness.Redis, d *Daemon, stop func(), err error) {
	if r, err = e.redis(); err != nil {
		return nil, nil, nil, err
	}
	if d, err = e.daemon("redis://" + r.Addr); err != nil {
		r.Stop()
		return nil, nil, nil, err
	}
	return r, d, func() { e.stop(scene, d); r.Stop() }, nil
}

// stop ends a daemon. If the daemon fails, that is a fault of the run.
func (e *Env) stop(scene string, d *Daemon) {
	if err := d.Stop(); err != nil {
		e.Report.Fault("%s: the daemon ended with %v\n%s", scene, err, d.Said())
	}
}

// bare starts one of the servers for comparison, and returns its socket.
func (e *Env) bare(name string) (*harness.Process, string, error) {
	socket := e.socket(name)
	if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
		return nil, "", err
	}
	p, err := harness.StartServer(name, socket)
	return p, socket, err
}
