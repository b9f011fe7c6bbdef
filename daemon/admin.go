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

// admin is the listener for people and their machines: HTTP on a socket of its own, beside that
// of the locks, and on TCP if asked. Whoever may open the one socket may the other.
type admin struct {
	d      *Daemon
	server *http.Server
	lns    map[string]net.Listener // by what they are: adminUnix, or "tcp " and the address asked for
	path   string
	host   string // that of the TCP listener as configured; empty for any
}

const adminUnix = "unix"

// AdminSocket is where a daemon's admin socket is, by the socket for locks.
func AdminSocket(socket string) string { return socket + ".admin" }

// timeouts of the admin listener: nobody keeps a connection by doing nothing.
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

// open makes a listener, unless it was passed to us.
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

// pass adds the listeners to what is passed on, and says what they are.
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

// says answers 200 and ok, or 503 and why not.
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

// adminEnd is what requests under way have to end in.
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

// stuckAfter is how late the timer of renewals may be before something is wrong.
const stuckAfter = 5 * time.Second

// Live says what is wrong if the daemon has stopped to renew locks: only a restart helps then.
func (d *Daemon) Live() error {
	if late := d.timer.Late(); late > stuckAfter {
		return fmt.Errorf("renewals have been stuck for %v", late.Round(time.Second))
	}
	return nil
}

// Ready says why new locks cannot be had now: the daemon drains or has been told to end, or the store of a namespace is
// down and the namespace is not one for this host to decide alone.
func (d *Daemon) Ready() error {
	if isClosed(d.ending) || d.halted() {
		return engine.ErrDraining
	}
	if err := d.engine.Ready(); err != nil {
		return err
	}
	return d.Live()
}
