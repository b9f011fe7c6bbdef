package run

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// mayGive says whether there is a terminal and it is ours to give.
func (p *Process) mayGive() bool {
	return p.term != nil && p.term.foreground() == p.term.own
}

// Stopped deals with a stop of the child by sig. When it says resume, the caller continues the
// child with Resume, or ends it. It blocks while the job is stopped: with job control the stop is
// passed on to our own process group, including this process, which has been continued when it
// returns.
func (p *Process) Stopped(sig syscall.Signal) (resume bool) {
	if p.term == nil {
		return false // whoever stopped it continues it; we go on watching
	}
	fg := p.term.foreground()
	switch sig {
	case syscall.SIGTTIN, syscall.SIGTTOU:
		if fg == p.pid {
			return true // it asked before it had got the terminal
		}
		if fg == p.term.own {
			return true // Resume gives it
		}
	case syscall.SIGTSTP:
	case syscall.SIGSTOP: // a shell's own suspend, if it has the terminal
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
		// No shell can continue us, so the group will never get the terminal. The kernel sends
		// these signals to a stopped group that has lost its shell.
		p.Signal(syscall.SIGHUP)
	}
	return true
}

// Resume continues a stopped group, with the terminal if it is ours to give.
func (p *Process) Resume() {
	if p.mayGive() {
		p.term.save()
		p.given = p.term.set(p.pid) == nil
	}
	p.Signal(syscall.SIGCONT)
}

// orphaned bounds how long a continuation is waited for after a stop that was
// not carried out.
const orphaned = 200 * time.Millisecond

// suspend stops our process group with sig, and says whether we were stopped: a
// group that no shell could continue is not. It returns when we run again.
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
