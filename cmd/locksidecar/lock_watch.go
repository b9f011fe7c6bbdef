package main

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/run"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// supervisor watches a running command and its lock, in one goroutine.
type supervisor struct {
	*job
	p      *run.Process
	end    run.Event
	lost   bool             // the lock is gone
	ending bool             // the command is being ended because of the loss
	kill   <-chan time.Time // the time of SIGKILL; nil without --on-lost term
}

// supervise returns when the command has ended. If the command was ended because of a lost lock,
// supervise also waits for its group.
func supervise(ctx context.Context, j *job, p *run.Process) *supervisor {
	s := &supervisor{job: j, p: p}
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	lost := make(chan func(), 1)
	watch.Go(func() {
		h, err := j.holds.Watch(ctx)
		lost <- func() { s.lose(h, err) }
	})
	defer watch.Wait()
	defer cancel()

	for {
		select {
		case ev := <-p.Events():
			if ev.Stopped != 0 {
				s.stopped(ev.Stopped)
				continue
			}
			s.ended(ev)
			return s
		case lose := <-lost:
			lose()
		case sig := <-j.sigs:
			s.forward(sig.(syscall.Signal))
		case in := <-j.away:
			if !s.lost {
				j.say("the daemon is stopping; the lock %s ends in %v", j.name(), in)
			}
		case <-s.kill:
			s.kill = nil
			s.signal(syscall.SIGKILL)
		}
	}
}

// lose handles the loss of the lock. The connection stays open until the command has ended: until
// then, a daemon that took the lock away keeps it closed to others, if it can.
func (s *supervisor) lose(h *client.Hold, why error) {
	if s.lost {
		return
	}
	s.lost = true
	switch s.onLost {
	case lostWarn:
		s.say("the lock %s is lost (%s); the command continues without it", h.Key(), reason(why))
		return
	case lostKill:
		s.ending = true
		s.signal(syscall.SIGKILL)
	default:
		s.ending = true
		s.signal(syscall.SIGTERM)
		s.signal(syscall.SIGCONT) // a stopped process would not end
		s.kill = time.After(s.killAfter)
	}
	s.say("the lock %s is lost (%s); ending the command", h.Key(), reason(why))
}

func reason(why error) string {
	lost, ok := errors.AsType[*client.LostError](why)
	said, answered := errors.AsType[*client.Error](why)
	switch {
	case ok:
		return lossText(lost.Reason)
	case answered:
		return said.Error()
	case errors.Is(why, client.ErrClosed):
		return "no connection to the daemon"
	case errors.Is(why, client.ErrExpired):
		return "its validity is over: the daemon has not extended it " +
			"(its store may be down, or the daemon hangs)"
	}
	return why.Error()
}

var lossTexts = map[protocol.Reason]string{
	protocol.LostExpired: "the store has not confirmed it in time",
	protocol.LostGone:    "the store no longer has it",
	protocol.LostFixed:   "its fixed end has come",
	protocol.LostForced:  "an operator unlocked it",
	protocol.LostSession: "the store ended the daemon's session",
	protocol.LostTooLong: "its namespace allows no longer hold",
}

// lossText explains a reason, and ends with its name, which documents and other clients use.
func lossText(r protocol.Reason) string {
	if text, ok := lossTexts[r]; ok {
		return text + ": " + r.String()
	}
	return r.String()
}

func (s *supervisor) signal(sig syscall.Signal) {
	if err := s.p.Signal(sig); err != nil {
		s.say("send signal %d to the command: %v", int(sig), err)
	}
}

// forward passes a signal on to the command. It does not stop a command that is being ended.
func (s *supervisor) forward(sig syscall.Signal) {
	switch {
	case s.ending && sig == syscall.SIGTSTP:
	case sig == syscall.SIGCONT:
		s.resume()
	default:
		s.signal(sig)
	}
}

// stopped handles a stop of the command. The lock was not watched while the command was stopped,
// so it is checked before the command continues.
func (s *supervisor) stopped(sig syscall.Signal) {
	if s.ending || !s.p.Stopped(sig) {
		return
	}
	s.resume()
}

func (s *supervisor) resume() {
	for _, h := range s.holds {
		if !s.lost && !h.Valid() {
			s.lose(h, h.Err())
		}
	}
	if s.ending {
		s.signal(syscall.SIGCONT)
		return
	}
	s.p.Resume()
}

// ended handles the end of the command itself. Processes that it has started may continue, unless
// the command was ended for a lost lock: then the whole group is ended.
func (s *supervisor) ended(ev run.Event) {
	s.end = ev
	s.p.Close(ev)
	if !s.ending {
		return
	}
	if s.kill == nil { // the time is over, or there is none
		s.kill = time.After(0)
	}
	s.p.Drain(s.kill)
}
