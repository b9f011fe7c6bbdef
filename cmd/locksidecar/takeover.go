package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// This file has both sides of a takeover: the daemon that takes over from another, and the daemon
// that starts its successor.

// claimTime bounds how long the serving daemon may take to answer.
const claimTime = 10 * time.Second

// claim asks the serving daemon for a takeover. If no daemon serves, there is nothing to take over.
func (s *server) claim(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, claimTime)
	defer cancel()
	state, err := takeover.Claim(ctx, s.conf.Socket, thisBuild().Version)
	switch {
	case errors.Is(err, takeover.ErrNobody):
		s.log.Info("there is no daemon to take over from",
			zap.String("event", "takeover_nobody"), zap.Error(err))
		return nil
	case errors.Is(err, fs.ErrPermission):
		return exit(exitDenied, "take over: this user (uid %d) may not connect to %s",
			os.Geteuid(), admin.Socket(s.conf.Socket))
	case errors.Is(err, takeover.ErrDenied):
		return exit(exitDenied, "take over: %w", err)
	case err != nil:
		return exit(exitTryAgain, "take over: %w", err)
	}
	if lost := state.Lost(); len(lost) > 0 {
		s.log.Warn("locks in these stores cannot be taken over, and will be lost",
			zap.String("event", "takeover_without"), zap.Strings("stores", lost))
	}
	s.stores.takeover = state
	return nil
}

// adoptSeen adopts what the other process has seen of its stores, before this process opens them.
func (s *server) adoptSeen() error {
	state := s.stores.takeover
	if state == nil {
		return nil
	}
	err := s.stores.seen.arrive(state.Seen())
	if err != nil && state.Parked() {
		err = fmt.Errorf("%w: %w", takeover.ErrParked, err)
	}
	return err
}

// inherit creates the daemon that replaces the other one.
func (s *server) inherit(cfg daemon.Config) (err error) {
	state := s.stores.takeover
	if s.Daemon, err = daemon.Inherit(state, cfg); err != nil {
		if errors.Is(err, takeover.ErrParked) { // serve discards the state, and begins without it
			return err
		}
		s.stores.takeover = nil
		if e, ok := errors.AsType[*exitError](err); ok { // an error of Commit
			return e
		}
		state.Close() // so that the other process does not wait
		return exit(exitTryAgain, "take over from process %d, which %s: %w",
			state.PID(), fateOf(s.conf.Socket), err)
	}
	s.stores.takeover = nil
	s.log.Info("taken over", zap.String("event", "took_over"), zap.Int("from", state.PID()))
	return nil
}

// fateOf describes the state of the daemon at socket, whose takeover has failed. The daemon may
// have been told to end, or killed, while this process opened the stores. This process does not
// serve in its place, because a signal to end has precedence over a takeover.
func fateOf(socket string) string {
	c := newAdminClient(socket)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	switch ready, why, err := c.ready(ctx); {
	case errors.Is(err, context.DeadlineExceeded):
		return "does not answer"
	case err != nil:
		return "has ended"
	case !ready && why == engine.ErrDraining.Error():
		return "is ending"
	}
	return "continues to serve"
}

// markPassed records that another process continues with the stores.
func (all *openStores) markPassed() {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.passed = true
}

// tellMain tells the manager which process is the daemon from now on.
func (s *server) tellMain(pid int) { s.tell(fmt.Sprintf("MAINPID=%d", pid)) }

// startSuccessor starts the installed program, which may be another version, to take over.
func (s *server) startSuccessor() {
	err := func() error {
		self, err := os.Executable() // the file of that name may be another version by now
		if err != nil {
			return err
		}
		args := s.m.Args
		if !slices.Contains(args, "--takeover") {
			args = append(slices.Clone(args), "--takeover")
		}
		cmd := exec.Command(self, args...)
		cmd.Env = successorEnv(os.Environ())
		cmd.Stdout, cmd.Stderr = s.m.Stdout, s.m.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		s.log.Info("successor started", zap.String("event", "successor_called"),
			zap.Int("pid", cmd.Process.Pid), zap.String("program", self))
		go func() { // if the takeover succeeds, this process ends before the successor
			err := cmd.Wait()
			if errors.Is(s.Ready(), engine.ErrDraining) {
				s.log.Error("takeover canceled: the successor has ended, and this process ends",
					zap.String("event", "takeover_failed"), zap.Error(err))
				return
			}
			s.log.Error("takeover failed: the successor has ended; this process continues to serve",
				zap.String("event", "takeover_failed"), zap.Error(err))
		}()
		return nil
	}()
	if err != nil {
		s.log.Error("takeover failed: cannot start the successor; this process continues to serve",
			zap.String("event", "takeover_failed"), zap.Error(err))
	}
}

// successorEnv removes the variables that the manager has set for this process alone.
func successorEnv(env []string) []string {
	return slices.DeleteFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "LISTEN_") || strings.HasPrefix(v, "WATCHDOG_PID=")
	})
}
