package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// admin serves operators and monitoring: HTTP on the admin socket, which is next to the socket for locks, and on TCP if
// configured. Both sockets have the same owner and mode.
type admin struct {
	d      *Daemon
	server *http.Server
	lns    map[string]net.Listener // by name: adminUnix, or "tcp " and the configured address
	path   string
	host   string // the configured host of the TCP listener; empty for any
}

const adminUnix = "unix"

// AdminSocket returns the path of the admin socket of the daemon with the given socket for locks.
func AdminSocket(socket string) string { return socket + ".admin" }

// Timeouts of the admin server, so that no idle client keeps a connection.
const (
	adminRead = 5 * time.Second // for a request
	adminIdle = time.Minute
)

// newAdmin opens the listeners. addr is "host:port", or empty for none.
func newAdmin(d *Daemon, addr string) (*admin, error) {
	host, _, _ := net.SplitHostPort(addr) // Listen will say what is wrong with it
	a := &admin{d: d, path: AdminSocket(d.cfg.Socket), host: host, lns: make(map[string]net.Listener)}
	if err := a.open(adminUnix, a.bind); err != nil {
		return nil, err
	}
	if addr != "" {
		if err := a.open("tcp "+addr, func() (net.Listener, error) { return net.Listen("tcp", addr) }); err != nil {
			a.close()
			return nil, fmt.Errorf("%w: %w", ErrAdminListen, err)
		}
	}
	a.server = &http.Server{Handler: a.routes(), ReadTimeout: adminRead, IdleTimeout: adminIdle, ConnContext: withPeer,
		ErrorLog: zap.NewStdLog(d.log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel)))}
	return a, nil
}

// closeUnused closes the inherited listeners that this process' configuration does not name.
func (a *admin) closeUnused() {
	for name, ln := range a.d.site.admin {
		if a.lns[name] == nil {
			_ = ln.Close()
		}
	}
}

// open makes a listener, unless another process has passed it on.
func (a *admin) open(name string, listen func() (net.Listener, error)) (err error) {
	ln := a.d.site.admin[name]
	if ln == nil {
		ln, err = listen()
	}
	if err == nil {
		a.lns[name] = ln
	}
	return err
}

func (a *admin) bind() (net.Listener, error) {
	if err := clearStale(a.path); err != nil {
		return nil, err
	}
	ln, err := bind(a.path, a.d.cfg.SocketMode, a.d.cfg.SocketGroup)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrSocket, a.path, err)
	}
	return ln, nil
}

// pass adds the listeners to the descriptors that are passed on, and returns their names.
func (a *admin) pass(files *fds) (names []string, err error) {
	for name, ln := range a.lns {
		names, err = append(names, name), errors.Join(err, files.add(ln.(syscall.Conn)))
	}
	return names, err
}

func (a *admin) routes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.d.Registry(), promhttp.HandlerOpts{ErrorLog: zap.NewStdLog(a.d.log)}))
	mux.HandleFunc("GET /takeover", a.takeover)
	mux.Handle("GET /{$}", a.named(a.page))
	mux.Handle("GET /page/{file}", a.named(a.pageFile))
	mux.Handle("GET /view.json", a.named(a.viewJSON))
	mux.Handle("POST /unlock", http.NewCrossOriginProtection().Handler(http.HandlerFunc(a.unlock)))
	mux.HandleFunc("GET /livez", a.says(a.d.Live))
	mux.HandleFunc("GET /readyz", a.says(a.d.Ready))
	return mux
}

// says returns a handler that answers 200 and ok, or 503 and the error of check.
func (a *admin) says(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if err := check(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = fmt.Fprintln(w, err)
			return
		}
		_, _ = io.WriteString(w, "ok\n")
	}
}

// start serves until close.
func (a *admin) start() {
	for _, ln := range a.lns {
		a.d.wg.Go(func() {
			if err := a.server.Serve(adminListener{ln}); !errors.Is(err, http.ErrServerClosed) {
				a.d.log.Error("admin listener failed", zap.String("event", "admin_failed"), zap.Error(err))
			}
		})
	}
}

// adminEnd is the time that requests in flight get to end.
const adminEnd = time.Second

// finish waits until the requests in flight are answered, at most for adminEnd, and accepts no others.
func (a *admin) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), adminEnd)
	defer cancel()
	if a.server.Shutdown(ctx) != nil {
		_ = a.server.Close()
	}
}

// close ends the listeners and removes the socket.
func (a *admin) close() {
	if a.server != nil {
		a.finish()
	}
	for _, ln := range a.lns {
		_ = ln.Close()
	}
	if !a.d.site.shared {
		_ = os.Remove(a.path)
	}
}

// stuckAfter is the delay of the renewal timer from which Live reports an error.
const stuckAfter = 5 * time.Second

// Live returns an error if the daemon no longer renews its leases. Then only a restart helps.
func (d *Daemon) Live() error {
	if late := d.timer.Late(); late > stuckAfter {
		return fmt.Errorf("renewals have been stuck for %v", late.Round(time.Second))
	}
	return nil
}

// Ready returns an error if new locks cannot be acquired now: the daemon drains or has been told to end, or the store
// of a namespace is down and this host does not grant alone in that namespace.
func (d *Daemon) Ready() error {
	if isClosed(d.ending) || d.halted() {
		return engine.ErrDraining
	}
	if err := d.engine.Ready(); err != nil {
		return err
	}
	return d.Live()
}
