package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/takeover"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// plan describes a store of a configuration that has been checked and is not open yet.
type plan struct {
	name string // empty for the store in the top-level upstream
	url  string // may contain a secret
	kind config.Kind
	// place is the same for two stores that have the same locks, even if their addresses differ.
	place string
	where string // description for people
	// checks that a lock can have that name in the store; nil if every name is possible
	check func(key string) error
	// there describes a lock's entry in the store, for people; nil if it has none.
	there  func(key string) string
	scope  string
	maxTTL time.Duration // the longest TTL that the store supports; 0 for no bound
	// session is the requested TTL of the daemon's store session; 0 if each lease has its own TTL.
	session time.Duration
	can     abilities
	safety  string
	// open waits until the store is reached and has passed its checks, unless it is lazy.
	open func(ctx context.Context, o opening) (upstream.Store, error)
}

// abilities are the fields of a store's Info that decide which configurations are refused. A plan
// has them, so that a configuration can be checked before any store is opened.
type abilities struct {
	minTTL time.Duration
	queue  bool // hosts can signal that they wait for a lock
	rebase bool // fences can be raised
}

// opening says how a store is opened.
type opening struct {
	log  *zap.Logger
	lazy bool
	// missing is set to true if the store was opened lazily. It may be nil.
	missing   *bool
	successor *upstream.Successor // not nil to continue with another process's leases
	seen      *places
}

// options returns the options of a store's driver. place is the store's.
func (o *opening) options(place string) driverkit.Options {
	seen := o.seen.at(place)
	opts := driverkit.Options{Log: o.log, Clock: renewer.Boottime, Fences: seen.fences,
		Highest: seen.high}
	if o.successor != nil {
		opts.Instance = o.successor.Identity
	}
	return opts
}

// planStore returns the plan of a store. It connects to nothing.
func planStore(c *config.Config, s *config.StoreSettings) (*plan, error) {
	kind, err := config.ParseUpstream(s.Upstream)
	if err != nil {
		return nil, err
	}
	p := &plan{name: s.Name, url: s.URL(), kind: kind}
	if kind == config.KindEmbedded {
		path := c.Socket + ".state"
		if s.Name != "" {
			path = c.Socket + "." + s.Name + ".state"
		}
		p.place = place(kind, nil, path)
		p.where, p.safety, p.scope = "state in "+path, "linearizable", "this host"
		p.can = abilities{time.Millisecond, true, true}
		p.open = func(_ context.Context, o opening) (upstream.Store, error) {
			return openEmbedded(c.Socket, path, o)
		}
		return p, nil
	}
	if drivers[kind] == nil {
		return nil, fmt.Errorf("this program was built without %s", kind)
	}
	if err := drivers[kind](p, c); err != nil {
		return nil, err
	}
	return p, nil
}

// place identifies the locks of a store by its servers, in any order, and by the names that
// distinguish them from other locks there.
func place(kind config.Kind, servers []string, names ...any) string {
	return fmt.Sprintf("%s %q %#v", kind, slices.Sorted(slices.Values(servers)), names)
}

// openBound bounds the time in which a store must be reached at the start. A server that accepts
// connections and does not answer counts as unreachable.
const openBound = 10 * time.Second

// opened opens a plan's store. If lazy is set, it also opens a store that cannot be reached, but
// never one that fails its checks.
func (p *plan) opened(ctx context.Context, o opening) (upstream.Store, error) {
	if p.name != "" {
		o.log = o.log.With(zap.String("store", p.name))
	}
	within, cancel := context.WithTimeout(ctx, openBound)
	defer cancel()
	lazy := o.lazy
	o.lazy = false
	s, err := p.open(within, o)
	if err != nil && lazy && unreachable(err) {
		o.log.Error("store cannot be reached; starting without it",
			zap.String("event", "store_down"), zap.Error(err))
		o.lazy = true
		if o.missing != nil {
			*o.missing = true
		}
		s, err = p.open(ctx, o)
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return nil, e
	}
	if err != nil && p.name != "" {
		err = fmt.Errorf("store %s: %w", p.name, err)
	}
	if err != nil {
		return nil, &exitError{code: exitUnavailable, err: err}
	}
	return s, nil
}

// unreachable reports whether no server has answered. It is false for a server that has answered
// and must not be used.
func unreachable(err error) bool {
	_, dialled := errors.AsType[*net.OpError](err)
	return dialled || errors.Is(err, upstream.ErrDown) || errors.Is(err, context.DeadlineExceeded)
}

// openEmbedded opens the embedded store. Only one daemon may have its state file open at a time. A
// daemon keeps the file open for longer than the socket, so the file has its own lock.
func openEmbedded(socket, path string, o opening) (upstream.Store, error) {
	if err := daemon.CheckPath(socket); err != nil {
		return nil, &exitError{code: exitCannotMake, err: err}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, exit(exitCannotMake, "make the socket's directory: %w", elsewhere(err))
	}
	var lock *os.File
	if o.successor != nil {
		lock = o.successor.Lock
	}
	if lock == nil {
		var err error
		if lock, err = lockState(socket, path+".lock"); err != nil {
			return nil, err
		}
	}
	s, err := embedded.Open(embedded.Options{Path: path, Clock: renewer.Boottime, Log: o.log,
		Successor: o.successor != nil})
	if err != nil {
		_ = lock.Close()
		return nil, &exitError{code: exitCannotMake, err: err}
	}
	return &lockedStore{s, lock}, nil
}

// elsewhere adds advice to an error about a path where this process may not write. The clients have
// to find the socket, too.
func elsewhere(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w; set LOCKSIDECAR_SOCKET, for the daemon and its clients, to a path in "+
			"a directory where you may write", err)
	}
	return err
}

// lockedStore releases the lock of its state file when it is closed.
type lockedStore struct {
	*embedded.Store
	lock *os.File
}

func (s *lockedStore) Close() error {
	defer s.lock.Close()
	return s.Store.Close()
}

// endTime bounds how long a daemon that is ending may keep its files.
const endTime = 3 * time.Second

// lockState locks the state file for this process. It waits for a daemon that is ending, but not
// for one that serves the socket.
func lockState(socket, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, exit(exitCannotMake, "lock the state file: %w", elsewhere(err))
	}
	for end := time.Now().Add(endTime); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return nil, exit(exitCannotMake, "lock the state file: %w", err)
		}
		if served(socket) || time.Now().After(end) {
			_ = f.Close()
			return nil, inUse(fmt.Errorf("%w: %s", daemon.ErrInUse, socket))
		}
	}
}

// inUse adds advice to an error that wraps daemon.ErrInUse.
func inUse(err error) error {
	return exit(exitTryAgain, "%w; to replace it, use serve --takeover", err)
}

// served reports whether a process listens on a socket.
func served(socket string) bool {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// listenExit gives an error of daemon.Listen its exit code.
func listenExit(err error) error {
	if e, ok := errors.AsType[*exitError](err); ok { // an error of Commit
		return e
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, daemon.ErrInUse):
		return inUse(err)
	case errors.Is(err, takeover.ErrLeft):
		return &exitError{code: exitTryAgain, err: err}
	case errors.Is(err, admin.ErrListen):
		return &exitError{code: exitCannotMake, err: err}
	case errors.Is(err, daemon.ErrSocket), errors.Is(err, fs.ErrPermission):
		return &exitError{code: exitCannotMake, err: elsewhere(err)}
	}
	return exit(exitInternal, "listen: %w", err)
}
