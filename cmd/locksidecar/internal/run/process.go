package run

import (
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// Command describes the command to run.
type Command struct {
	Args  []string    // the first is looked up as a shell does
	Path  string      // PATH, for that
	Env   []string    // the whole environment
	Files [3]*os.File // standard input, output, error
}

// Event reports that the child has stopped or ended. The end is the last event.
type Event struct {
	Stopped syscall.Signal // the signal that stopped it; 0 if it ended
	Killed  syscall.Signal // the signal that ended it; 0 if it exited by itself
	Code    int            // its exit code; 128 + n when a signal n ended it
}

// Process is a child that runs, with its process group. The group's number is
// the child's.
type Process struct {
	pid    int
	events chan Event
	term   *terminal // nil without a controlling terminal
	given  bool      // the group has the terminal from us
	alone  bool      // the terminal's signal that ended the child reached nobody else
}

// Start runs c in a process group of its own and returns at once. When standard
// input and output are the terminal and we are in its foreground, the group gets
// it. The error is an *fs.PathError, for StartCode.
func Start(c Command) (*Process, error) {
	file, err := Look(c.Args[0], c.Path)
	if err != nil {
		return nil, err
	}
	p := &Process{events: make(chan Event, 1), term: openTerminal()}
	// In a pipeline the others may want to read the terminal (a pager): then the
	// group gets it when it first asks, by being stopped for it.
	if IsTerminal(c.Files[0]) && IsTerminal(c.Files[1]) && p.mayGive() {
		p.term.save()
		p.given = true
	}
	started := make(chan error)
	go p.live(file, &c, started)
	err = <-started
	if p.term != nil {
		// From here on we may be in the background, where writing to the terminal and
		// taking it back would stop us. Not before the fork: it would be inherited.
		signal.Ignore(syscall.SIGTTOU)
	}
	if err != nil {
		if p.given {
			p.term.set(p.term.own)
		}
		p.term.close()
		return nil, &fs.PathError{Op: "run", Path: file, Err: err}
	}
	return p, nil
}

// live is the child's life: the thread that forks it stays until it is reaped.
func (p *Process) live(file string, c *Command, started chan<- error) {
	runtime.LockOSThread() // and never unlocked: the thread ends with this goroutine
	attr := childAttr()
	if p.given {
		// The child takes it before it runs the command: nothing that it reads, and no
		// key that is pressed, comes too early.
		attr.Foreground, attr.Ctty = true, p.term.fd
	}
	pid, _, err := syscall.StartProcess(file, c.Args, &syscall.ProcAttr{
		Env:   c.Env,
		Files: []uintptr{c.Files[0].Fd(), c.Files[1].Fd(), c.Files[2].Fd()},
		Sys:   attr,
	})
	p.pid = pid
	started <- err
	if err != nil {
		return
	}
	for {
		var ws syscall.WaitStatus
		switch _, err := syscall.Wait4(pid, &ws, syscall.WUNTRACED, nil); {
		case err == syscall.EINTR:
		case err != nil: // nobody else waits for it, so this cannot be
			p.events <- Event{Code: CodeCannotRun}
			return
		case ws.Stopped():
			p.events <- Event{Stopped: ws.StopSignal()}
		case ws.Signaled():
			p.events <- Event{Killed: ws.Signal(), Code: 128 + int(ws.Signal())}
			return
		case ws.Exited():
			p.events <- Event{Code: ws.ExitStatus()}
			return
		}
	}
}

// Events is where stops and the end are reported.
func (p *Process) Events() <-chan Event { return p.events }

// PID returns the child's process id, which is its group's too.
func (p *Process) PID() int { return p.pid }

// Signal sends sig to every process of the group. After the end of the child it
// reaches those that it left behind; that there are none is not an error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := syscall.Kill(-p.pid, sig); err != nil && err != syscall.ESRCH {
		return err
	}
	return nil
}

// The first and the longest interval of Drain's checks, and how long it waits for processes that
// it has killed.
const (
	drainFirst = 2 * time.Millisecond
	drainLast  = 200 * time.Millisecond
	drainDead  = 2 * time.Second
)

// Drain blocks, after the child's end, until no process of the group runs. It kills the remaining
// ones at the time of kill.
func (p *Process) Drain(kill <-chan time.Time) {
	step := drainFirst
	look := time.NewTimer(step)
	defer look.Stop()
	var dead <-chan time.Time
	for groupRuns(p.pid) {
		select {
		case <-look.C:
			step = min(2*step, drainLast)
		case <-dead:
			return
		case <-kill:
			kill = nil
			p.Signal(syscall.SIGKILL)
			dead = time.After(drainDead)
			step = drainFirst
		}
		look.Reset(step)
	}
}

// Close takes the terminal back. It is called once, after the child's end.
func (p *Process) Close(end Event) {
	if p.term == nil {
		return
	}
	if p.given && p.term.foreground() == p.pid {
		p.term.set(p.term.own)
		p.alone = end.Killed == syscall.SIGINT || end.Killed == syscall.SIGQUIT
		if end.Killed != 0 {
			p.term.restore() // it had no time for that
		}
	}
	p.term.close()
	p.term = nil
}

// PassOn is called at the end. A key that ended the child was meant for the whole job, but only
// the group with the terminal got its signal. PassOn sends the signal to the rest of the job,
// including this process.
func (p *Process) PassOn(end Event) {
	if p.alone {
		signal.Notify(make(chan os.Signal, 1), end.Killed) // not us
		syscall.Kill(0, end.Killed)
	}
}
