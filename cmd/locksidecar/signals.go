package main

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// daemonSignals are those that the daemon was sent. No signal to end gets lost, whatever else comes. Several
// reloads that are asked for while one is under way are one more reload, and so it is with successors.
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

// starting is a context that ends with the first signal to end, and a function that ends the watch for
// it and returns the signal; nil if there was none.
func (s *daemonSignals) starting(ctx context.Context) (_ context.Context, told func() os.Signal) {
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

// work reloads and calls successors as the signals ask for it, one after the other, until ctx ends. A
// reload comes before a successor: that has to find the same stores.
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
