package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/upstream/testserver/ports"
)

// patience bounds how long a process may take to start or to end.
const patience = 20 * time.Second

// Process is a child process: a server or a worker. It ends with this process.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.Reader
	said   tail
	once   sync.Once
	done   chan struct{} // closed when it has ended
	err    error         // how it ended; read after done
}

// tail keeps the last output of a process.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > 8<<10 {
		t.b = bytes.Clone(t.b[len(t.b)-4<<10:])
	}
	return len(p), nil
}

// StartProcess starts a server. Said returns its last output.
func StartProcess(path string, args ...string) (*Process, error) {
	cmd := exec.Command(path, args...)
	p := &Process{cmd: cmd}
	cmd.Stdout, cmd.Stderr = &p.said, &p.said
	return p, p.start()
}

// StartLogged starts a server with additional environment variables. Its standard error goes to a
// file, as it does for a service.
func StartLogged(log *os.File, env []string, path string, args ...string) (*Process, error) {
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env...)
	p := &Process{cmd: cmd}
	cmd.Stdout, cmd.Stderr = &p.said, log
	return p, p.start()
}

// startPiped starts a child that communicates over its standard input and output.
func startPiped(path, env string, args ...string) (*Process, error) {
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), env)
	p := &Process{cmd: cmd}
	cmd.Stderr = &p.said
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	r, w, err := os.Pipe() // not StdoutPipe, because Wait would close that before it is read
	if err != nil {
		return nil, err
	}
	cmd.Stdout, p.stdout = w, r
	err = p.start()
	w.Close()
	return p, err
}

func (p *Process) start() error {
	attr := tied()
	if as := p.cmd.SysProcAttr; attr == nil {
		attr = as
	} else if as != nil {
		attr.Credential = as.Credential
	}
	p.cmd.SysProcAttr = attr
	p.done = make(chan struct{})
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.cmd.Path, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Said returns the last output of the process.
func (p *Process) Said() string {
	p.said.mu.Lock()
	defer p.said.mu.Unlock()
	return string(p.said.b)
}

// Stop asks the process to end, kills it if it does not, and waits for it. The error means that the
// process had to be killed, or failed.
func (p *Process) Stop() error {
	p.once.Do(func() {
		if p.stdin != nil {
			p.stdin.Close()
		}
		p.cmd.Process.Signal(syscall.SIGTERM)
	})
	select {
	case <-p.done:
		if c, ok := p.stdout.(io.Closer); ok {
			c.Close()
		}
		return p.err
	case <-time.After(patience):
		p.cmd.Process.Kill()
		<-p.done
		return errors.New("did not end when asked")
	}
}

// await calls ready until it succeeds. It gives up when the process ends.
func (p *Process) await(ready func() error) error {
	for end := time.Now().Add(patience); ; {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %v\n%s", p.cmd.Path, p.err, p.Said())
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(end) {
			p.Stop()
			return fmt.Errorf("%s does not come up: %w\n%s", p.cmd.Path, err, p.Said())
		}
	}
}

// AwaitSocket blocks until a process listens on the Unix socket path.
func (p *Process) AwaitSocket(path string) error {
	return p.await(func() error {
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// StartServer starts this program as one of its bare servers, on a Unix socket at path.
func StartServer(name, path string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := startPiped(self, roleEnv+"="+roleServer, name, path)
	if err != nil {
		return nil, err
	}
	return p, p.AwaitSocket(path)
}

// Pause stops the process with SIGSTOP. Its connections stay open.
func (p *Process) Pause() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues the process.
func (p *Process) Resume() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// freeAddr returns an address of the loopback interface that is not in use. It stays reserved until
// this program ends.
func freeAddr() (string, error) {
	port, _, err := ports.Reserve()
	return fmt.Sprint("127.0.0.1:", port), err
}

// Build compiles the package pkg in the module directory dir to the program out. flags are flags of
// the compiler.
func Build(ctx context.Context, dir, pkg, out string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-o", out}, flags...),
		pkg)...)
	cmd.Dir = dir
	if b, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, b)
	}
	return nil
}
