package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// patience bounds steps whose duration does not matter here. Only a fault can take so long.
const patience = 60 * time.Second

// process is a child of this program, and ends with it.
type process struct {
	cmd  *exec.Cmd
	log  string        // the file for its standard error
	done chan struct{} // closed when the process has been reaped

	watch *watch // measures how long it takes to end; nil for the clock

	state *os.ProcessState // set before done is closed
}

// launch starts cmd. Its standard error is appended to the file log.
func launch(cmd *exec.Cmd, log string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stderr = f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait()
		p.state = cmd.ProcessState
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(broken{fmt.Errorf("signal %v: %w", p.cmd.Path, err)})
	}
}

// freeze stops every thread, and returns when they have stopped.
func (p *process) freeze() {
	p.signal(syscall.SIGSTOP)
	for end := time.Now().Add(patience); !p.stopped() && !p.ended(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			panic(broken{fmt.Errorf("%s does not stop", p.cmd.Path)})
		}
	}
}

func (p *process) stopped() bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for i := len(b) - 1; i >= 0; i-- { // pid (name) state …, where the name may contain any character
			if b[i] == ')' {
				if i+2 < len(b) && b[i+2] != 'T' && b[i+2] != 't' {
					return false
				}
				break
			}
		}
	}
	return true
}

func (p *process) thaw() { p.signal(syscall.SIGCONT) }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end sends a signal and waits for the end. It returns false if only SIGKILL has ended the process.
func (p *process) end(s syscall.Signal) bool {
	p.signal(s)
	p.signal(syscall.SIGCONT)
	if p.ends(patience) {
		return true
	}
	p.signal(syscall.SIGKILL)
	<-p.done
	return false
}

// code returns the exit code of a process that has ended; 128 and more if a signal ended it.
func (p *process) code() int {
	if s, ok := p.state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal())
	}
	return p.state.ExitCode()
}

func (p *process) ends(within time.Duration) bool {
	return p.watch.patient(within, p.ended)
}
