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
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// plan is a store that a configuration asks for, well-formed and not opened.
type plan struct {
	name   string // empty for the one that upstream names
	url    string // what it is opened with; may hold a secret
	kind   config.Kind
	place  string                  // the same for two stores whose locks are the same, however they are reached
	where  string                  // for people
	check  func(key string) error  // whether a lock can have that name there; nil when any can
	there  func(key string) string // what stands for a lock in the store, for people; nil for nothing to see
	scope  string
	maxTTL time.Duration // the longest TTL that makes sense there; 0 for no bound
	can    abilities
	safety string
	// open waits until the store is reached and judged good, unless it is lazy.
	open func(ctx context.Context, o opening) (upstream.Store, error)
}

// abilities are the fields of a store's Info that decide which configurations are refused. A plan has them,
// so that a configuration can be checked before any store is opened.
type abilities struct {
	minTTL time.Duration
	queue  bool // hosts can say that they want a lock
	rebase bool // fences can be raised
}

// opening says how a store is opened.
type opening struct {
	log  *zap.Logger
	lazy bool
	// missing is set to true if lazy was of use. It may be nil.
	missing   *bool
	successor *upstream.Successor // not nil: to go on with another process' leases
	seen      *places
}

// planStore reads what the configuration says of a store. It connects to nothing.
func planStore(c *config.Config, s *config.Store) (*plan, error) {
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
	if err := drivers[kind](p, c); err != nil {
		return nil, err
	}
	return p, nil
}

// place names the locks of a store: by its servers, in whatever order, and by what tells its locks there from
// others.
func place(kind config.Kind, servers []string, names ...any) string {
	return fmt.Sprintf("%s %q %#v", kind, slices.Sorted(slices.Values(servers)), names)
}

// openBound is how long a store may take to be reached at the start: a server
// that takes connections and is silent is as good as none.
const openBound = 10 * time.Second

// opened opens a plan's store. A store that cannot be reached is opened all the
// same where lazy allows it; one that can be and must not be used never is.
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
		o.log.Error("store cannot be reached; starting without it", zap.String("event", "store_down"), zap.Error(err))
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

// unreachable says that nobody answered, rather than somebody who must not be used.
func unreachable(err error) bool {
	_, dialled := errors.AsType[*net.OpError](err)
	return dialled || errors.Is(err, upstream.ErrDown) || errors.Is(err, context.DeadlineExceeded)
}

// openEmbedded opens the embedded store. Only one daemon may have its state file
// at a time, from before it is read until after it was closed: longer than the
// daemon itself has the socket, so the file has a lock of its own.
func openEmbedded(socket, path string, o opening) (upstream.Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, exit(exitCannotMake, "make the socket's directory: %w", elsewhere(err))
	}
	var lock *os.File
	if o.successor != nil {
		lock = o.successor.Lock
	} else {
		var err error
		if lock, err = lockState(socket, path+".lock"); err != nil {
			return nil, err
		}
	}
	s, err := embedded.Open(embedded.Options{Path: path, Clock: renewer.Boottime, Log: o.log, Successor: o.successor != nil})
	if err != nil {
		_ = lock.Close()
		return nil, &exitError{code: exitCannotMake, err: err}
	}
	return &lockedStore{s, lock}, nil
}

// elsewhere adds to an error about a place where this process may not write that --socket names another one.
func elsewhere(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w; use --socket to name a socket in a directory where you may write", err)
	}
	return err
}

// lockedStore gives up the lock of its state file when it is closed.
type lockedStore struct {
	*embedded.Store
	lock *os.File
}

func (s *lockedStore) Close() error {
	defer s.lock.Close()
	return s.Store.Close()
}

// endTime is how long a daemon that is just ending may still have its files.
const endTime = 3 * time.Second

// lockState takes the state file's lock for this process. A daemon that serves
// the socket is not waited for, one that is just ending is.
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
			return nil, exit(exitTryAgain, "%w: %s", daemon.ErrInUse, socket)
		}
	}
}

// served says whether somebody answers at a socket.
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
	if e, ok := errors.AsType[*exitError](err); ok { // of Commit
		return e
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, daemon.ErrInUse):
		return &exitError{code: exitTryAgain, err: err}
	case errors.Is(err, admin.ErrListen):
		return &exitError{code: exitCannotMake, err: err}
	case errors.Is(err, daemon.ErrSocket), errors.Is(err, fs.ErrPermission):
		return &exitError{code: exitCannotMake, err: elsewhere(err)}
	}
	return exit(exitInternal, "listen: %w", err)
}
