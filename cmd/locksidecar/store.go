package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
	"github.com/locksidecar/locksidecar/upstream/redis"
)

// plan is a store that a configuration asks for, well-formed and not opened.
type plan struct {
	kind   config.Kind
	where  string // for people
	name   func(key string) string
	safety string
	open   func(context.Context, *zap.Logger) (upstream.Store, func(), error)
}

// planStore reads what the configuration says of the store. It connects to
// nothing.
func planStore(c *config.Config) (*plan, error) {
	kind, err := config.ParseUpstream(c.Upstream)
	if err != nil {
		return nil, err
	}
	if kind == config.KindEmbedded {
		path := c.Socket + ".state"
		return &plan{
			kind: kind, where: "state in " + path, safety: "linearizable",
			open: func(_ context.Context, log *zap.Logger) (upstream.Store, func(), error) {
				return openEmbedded(c.Socket, path, log)
			},
		}, nil
	}
	rc, err := redis.Parse(c.RedisURL())
	if err != nil {
		return nil, err
	}
	return &plan{
		kind: kind, where: rc.String(), safety: "best-effort",
		name: func(key string) string { return rc.Prefix + key },
		open: func(ctx context.Context, log *zap.Logger) (upstream.Store, func(), error) {
			return openRedis(ctx, rc, log)
		},
	}, nil
}

// openRedis is bounded in time: a server that takes connections and is silent
// is as good as none.
func openRedis(ctx context.Context, rc redis.Config, log *zap.Logger) (upstream.Store, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, max(rc.Timeout, 5*time.Second))
	defer cancel()
	s, err := redis.Open(ctx, rc, redis.WithLogger(log))
	if err != nil {
		return nil, nil, &exitError{code: exitUnavailable, err: err}
	}
	return s, func() { closeStore(s, log) }, nil
}

func closeStore(s upstream.Store, log *zap.Logger) {
	if err := s.Close(); err != nil {
		log.Warn("close store", zap.Error(err))
	}
}

// openEmbedded opens the embedded store. Only one daemon may have its state file
// at a time, from before it is read until after it was closed: longer than the
// daemon itself has the socket, so the file has a lock of its own.
func openEmbedded(socket, path string, log *zap.Logger) (upstream.Store, func(), error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, nil, exit(exitCannotMake, "make the socket's directory: %w", err)
	}
	unlock, err := lockState(socket, path+".lock")
	if err != nil {
		return nil, nil, err
	}
	s, err := embedded.Open(embedded.Options{Path: path, Clock: renewer.Boottime, Log: log})
	if err != nil {
		unlock()
		return nil, nil, &exitError{code: exitCannotMake, err: err}
	}
	return s, func() { closeStore(s, log); unlock() }, nil
}

// endTime is how long a daemon that is just ending may still have its files.
const endTime = 3 * time.Second

// lockState takes the state file's lock for this process. A daemon that serves
// the socket is not waited for, one that is just ending is.
func lockState(socket, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, exit(exitCannotMake, "lock the state file: %w", err)
	}
	for end := time.Now().Add(endTime); ; time.Sleep(20 * time.Millisecond) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
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
	switch {
	case errors.Is(err, daemon.ErrInUse):
		return &exitError{code: exitTryAgain, err: err}
	case errors.Is(err, fs.ErrPermission):
		return exit(exitCannotMake, "%w; name a place that is yours with --socket", err)
	case errors.Is(err, daemon.ErrSocket):
		return &exitError{code: exitCannotMake, err: err}
	}
	return exit(exitInternal, "listen: %w", err)
}
