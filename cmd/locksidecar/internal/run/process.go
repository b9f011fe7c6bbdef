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
	Args  []string    // the first one is looked up as a shell does
	Path  string      // the PATH for looking it up
	Env   []string    // the whole environment
	Files [3]*os.File // standard input, output, error
}

// Event reports that the child has stopped or ended. The end is the last event.
type Event struct {
	Stopped syscall.Signal // the signal that stopped it; 0 if it ended
	Killed  syscall.Signal // the signal that ended it; 0 if it exited by itself
	Code    int            // its exit code; 128 + n if signal n ended it
}

// Process is a running child with its process group. The group's number is the child's process id.
type Process struct {
	pid    int
	events chan Event
	term   *terminal // nil without a controlling terminal
	given  bool      // this process has given the terminal to the group
	alone  bool      // the terminal's signal that ended the child has reached no other process
}

// Start runs c in a process group of its own and returns at once. If standard input and output are
// the terminal, and this process is in its foreground, the group gets the terminal. The error is an
// *fs.PathError, for StartCode.
func Start(c Command) (*Process, error) {
	file, err := Look(c.Args[0], c.Path)
	if err != nil {
		return nil, err
	}
	p := &Process{events: make(chan Event, 1), term: openTerminal()}
	// In a pipeline, other processes such as a pager may want to read the terminal. Then the group
	// gets the terminal when it first uses it, and is stopped for that.
	if IsTerminal(c.Files[0]) && IsTerminal(c.Files[1]) && p.mayGive() {
		p.term.save()
		p.given = true
	}
	started := make(chan error)
	go p.live(file, &c, started)
	err = <-started
	if p.term != nil {
		// From here on this process may be in the background, where it would be stopped if it wrote to
		// the terminal or took it back. The signal is ignored only after the fork, because the child
		// would inherit that.
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

// live forks the child and waits for its end. The thread that forks must stay until then.
func (p *Process) live(file string, c *Command, started chan<- error) {
	runtime.LockOSThread() // it is never unlocked, so the thread ends with this goroutine
	attr := childAttr()
	if p.given {
		// The child takes the terminal before it runs the command. So the command reads all input from
		// the terminal, and gets the signal of every key.
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
		case err != nil: // impossible, because nothing else waits for the child
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

// Events returns the channel on which stops and the end are reported.
func (p *Process) Events() <-chan Event { return p.events }

// PID returns the child's process id, which is also the number of its group.
func (p *Process) PID() int { return p.pid }

// Signal sends sig to every process of the group. After the end of the child, the signal reaches
// the processes that the child has left behind. It is not an error if there are none.
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

// Drain blocks, after the child's end, until no process of the group runs. At the time of kill it
// kills the remaining processes.
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

// Close takes the terminal back. The caller calls it once, after the child's end.
func (p *Process) Close(end Event) {
	if p.term == nil {
		return
	}
	if p.given && p.term.foreground() == p.pid {
		p.term.set(p.term.own)
		p.alone = end.Killed == syscall.SIGINT || end.Killed == syscall.SIGQUIT
		if end.Killed != 0 {
			p.term.restore() // the child had no time to restore them
		}
	}
	p.term.close()
	p.term = nil
}

// PassOn is called at the end. A key that ended the child was meant for the whole job, but only the
// group with the terminal got the signal. PassOn sends the signal to the rest of the job, including
// this process.
func (p *Process) PassOn(end Event) {
	if p.alone {
		signal.Notify(make(chan os.Signal, 1), end.Killed) // so that the signal does not end this process
		syscall.Kill(0, end.Killed)
	}
}
