package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// daemonSignals receives the daemon's signals. Each kind has its own channel, so that no signal to
// end gets lost. Several SIGHUPs during a reload cause one more reload. In the same way, several
// SIGUSR2s cause one more successor.
type daemonSignals struct {
	end       chan os.Signal // SIGTERM, SIGINT: the first drains, the second ends at once
	reload    chan os.Signal // SIGHUP
	successor chan os.Signal // SIGUSR2
}

func newDaemonSignals() *daemonSignals {
	s := &daemonSignals{make(chan os.Signal, 2), make(chan os.Signal, 1), make(chan os.Signal, 1)}
	signal.Notify(s.end, syscall.SIGTERM, syscall.SIGINT)
	signal.Notify(s.reload, syscall.SIGHUP)
	signal.Notify(s.successor, syscall.SIGUSR2)
	return s
}

func (s *daemonSignals) stop() {
	signal.Stop(s.end)
	signal.Stop(s.reload)
	signal.Stop(s.successor)
}

// wantReload has the same effect as SIGHUP.
func (s *daemonSignals) wantReload() {
	select {
	case s.reload <- syscall.SIGHUP:
	default: // one is pending
	}
}

// starting returns a context that ends with the first signal to end. The function stop stops
// watching for that signal, and returns it, or nil if there was none.
func (s *daemonSignals) starting(ctx context.Context) (_ context.Context, stop func() os.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	var got os.Signal
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case got = <-s.end:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() os.Signal {
		cancel()
		watch.Wait()
		return got
	}
}

// work calls reload and successor as signals come, one at a time, until ctx ends. It carries out a
// pending reload before it calls successor: the successor reads the new configuration, and must
// find the same stores here.
func (s *daemonSignals) work(ctx context.Context, reload, successor func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reload:
			reload()
			continue
		default:
		}
		select {
		case <-ctx.Done():
		case <-s.reload:
			reload()
		case <-s.successor:
			select {
			case <-s.reload:
				reload()
			default:
			}
			if ctx.Err() == nil {
				successor()
			}
		}
	}
}
