package run

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// mayGive reports whether there is a terminal, and this process may give it to the group.
func (p *Process) mayGive() bool {
	return p.term != nil && p.term.foreground() == p.term.own
}

// Stopped handles a stop of the child by sig. If it returns true, the caller continues the child
// with Resume, or ends it. Stopped blocks while the job is stopped: with job control, it passes the
// stop on to the process group of this process, and returns when that has been continued.
func (p *Process) Stopped(sig syscall.Signal) (resume bool) {
	if p.term == nil {
		return false // the process that stopped the child will continue it
	}
	fg := p.term.foreground()
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if fg == p.pid {
			return true // the child used the terminal before it had got it
		}
		if fg == p.term.own {
			return true // Resume gives the terminal to the child
		}
	case syscall.SIGTSTP:
	case syscall.SIGSTOP: // a shell suspends itself, if it has the terminal
		if fg != p.pid {
			return false
		}
		sig = syscall.SIGTSTP
	default:
		return false
	}
	if fg == p.pid {
		p.term.set(p.term.own)
	}
	if !suspend(sig) && sig != syscall.SIGTSTP && p.term.foreground() != p.term.own {
		// No shell can continue this process, so the group will never get the terminal. The kernel sends
		// these signals to a stopped group that has lost its shell.
		p.Signal(syscall.SIGHUP)
	}
	return true
}

// Resume continues a stopped group, and gives it the terminal if possible.
func (p *Process) Resume() {
	if p.mayGive() {
		p.term.save()
		p.given = p.term.set(p.pid) == nil
	}
	p.Signal(syscall.SIGCONT)
}

// orphaned bounds the wait for a continuation after a stop that the kernel did not carry out.
const orphaned = 200 * time.Millisecond

// suspend stops the process group of this process with sig. It reports whether the group was
// stopped; a group that no shell could continue is not. It returns when this process runs again.
func suspend(sig syscall.Signal) bool {
	cont := make(chan os.Signal, 1)
	signal.Notify(cont, syscall.SIGCONT)
	defer signal.Stop(cont)

	stopGroup(sig)
	select {
	case <-cont:
		return true
	case <-time.After(orphaned):
		return false
	}
}
