package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/listen"
)

// Daemon has the functions of a daemon that the admin listener calls.
type Daemon interface {
	// View returns the present state.
	View(q engine.ViewQuery) (engine.View, error)
	// Totals returns the counters and present numbers.
	Totals() engine.Totals
	// MayUnlock reports whether by may unlock by force.
	MayUnlock(by *engine.Peer) bool
	// Unlock ends the holds of a key by force, on behalf of by.
	Unlock(key string, permit bool, fence uint64, by engine.Peer) (Unlocked, error)
	// Live returns an error if only a restart helps.
	Live() error
	// Ready returns nil if new locks can be acquired now, and otherwise why not.
	Ready() error
}

// Unlocked is the result of a forced unlock.
type Unlocked struct {
	// Released is the number of holds that were ended. Their owners have been told of the loss.
	Released int `json:"released"`
	// FreeIn is the time, in milliseconds, until no owner that was told, now or earlier, can still
	// believe that it holds the key. The key is free after that time or earlier. It is 0 if nothing
	// keeps the key closed.
	FreeIn int64             `json:"free_in_ms"`
	Holds  []engine.ViewHold `json:"holds"` // those that were ended: the first engine.MaxViewRows
}

// Config says where the admin listener listens.
type Config struct {
	Socket string      // path of the socket for locks
	Mode   fs.FileMode // of both Unix sockets
	Group  string      // of both; the process's own when empty
	Listen string      // "host:port" of the TCP listener; none if empty
	// Inherited has listeners that a takeover has brought, by the names that Listeners returns.
	Inherited map[string]net.Listener
	// Takeover serves a process that wants to take over, at the other end of the connection, until
	// it returns. nil if that is not possible on this system.
	Takeover func(*net.UnixConn)
	Version  string
	Log      *zap.Logger
}

// Server serves HTTP on a Unix socket beside the socket for locks, and on TCP if configured. A
// process that may connect to one of the two sockets may connect to the other.
type Server struct {
	daemon Daemon
	cfg    Config
	server *http.Server
	lns    map[string]net.Listener // by their names: unixListener, or "tcp " and the address
	path   string
	host   string // the TCP listener's host as configured; empty for any
	wg     sync.WaitGroup
}

const unixListener = "unix"

// Socket returns the path of the admin socket of a daemon whose socket for locks is at path.
func Socket(path string) string { return path + ".admin" }

// ErrListen is the error of New if the server cannot listen on the address of admin_listen.
var ErrListen = errors.New("cannot listen on the address of admin_listen")

// Timeouts of the admin listener, which closes idle connections.
const (
	readTime = 5 * time.Second // for a request
	idleTime = time.Minute
)

// New opens the listeners. Start serves on them.
func New(d Daemon, cfg Config) (*Server, error) {
	host, _, _ := net.SplitHostPort(cfg.Listen) // Listen reports what is wrong with it
	a := &Server{daemon: d, cfg: cfg, path: Socket(cfg.Socket), host: host,
		lns: make(map[string]net.Listener)}
	unix := func() (net.Listener, error) { return listen.Unix(a.path, cfg.Mode, cfg.Group) }
	if err := a.open(unixListener, unix); err != nil {
		return nil, err
	}
	if addr := cfg.Listen; addr != "" {
		tcp := func() (net.Listener, error) { return net.Listen("tcp", addr) }
		if err := a.open("tcp "+addr, tcp); err != nil {
			a.Close(cfg.Inherited[unixListener] != nil) // the other process may continue
			return nil, fmt.Errorf("%w: %w", ErrListen, err)
		}
	}
	a.server = &http.Server{Handler: a.routes(), ReadTimeout: readTime, IdleTimeout: idleTime,
		ConnContext: withPeer,
		ErrorLog:    zap.NewStdLog(cfg.Log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel)))}
	return a, nil
}

// CloseUnused closes the inherited listeners that the configuration does not name.
func (a *Server) CloseUnused() {
	for name, ln := range a.cfg.Inherited {
		if a.lns[name] == nil {
			_ = ln.Close()
		}
	}
}

// Listeners returns the listeners by name.
func (a *Server) Listeners() map[string]net.Listener { return a.lns }

// open makes a listener, unless a takeover has brought it.
func (a *Server) open(name string, listen func() (net.Listener, error)) (err error) {
	ln := a.cfg.Inherited[name]
	if ln == nil {
		ln, err = listen()
	}
	if err == nil {
		a.lns[name] = ln
	}
	return err
}

func (a *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", a.scrape(Registry(a.daemon, a.cfg.Version)))
	mux.HandleFunc("GET /takeover", a.takeover)
	mux.Handle("GET /{$}", a.localOnly(a.page))
	mux.Handle("GET /page/{file}", a.localOnly(a.pageFile))
	mux.Handle("GET /view.json", a.localOnly(a.viewJSON))
	mux.Handle("POST /unlock", http.NewCrossOriginProtection().Handler(http.HandlerFunc(a.unlock)))
	mux.HandleFunc("GET /livez", a.says(a.daemon.Live))
	mux.HandleFunc("GET /readyz", a.says(a.daemon.Ready))
	return mux
}

// says answers 200 and ok, or 503 and the reason.
func (a *Server) says(check func() error) http.HandlerFunc {
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

// Start serves until Close or Finish. Its goroutines end with that.
func (a *Server) Start() {
	for _, ln := range a.lns {
		a.wg.Go(func() {
			if err := a.server.Serve(listener{ln}); !errors.Is(err, http.ErrServerClosed) {
				a.cfg.Log.Error("admin listener failed", zap.String("event", "admin_failed"),
					zap.Error(err))
			}
		})
	}
}

// endTime is the time that requests in flight have when the server ends.
const endTime = time.Second

// Finish waits until the requests in flight are answered, at most for endTime, and accepts no
// others.
func (a *Server) Finish() {
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	if a.server.Shutdown(ctx) != nil {
		_ = a.server.Close()
	}
}

// Close ends the listeners. It removes the Unix socket, unless another process uses it.
func (a *Server) Close(shared bool) {
	if a.server != nil {
		a.Finish()
	}
	for _, ln := range a.lns {
		_ = ln.Close()
	}
	if !shared {
		_ = os.Remove(a.path)
	}
	a.wg.Wait()
}
