package testserver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/upstream/testserver/ports"
)

// startBound is how long a server may take to answer or to end. Only a fault reaches it.
const startBound = 60 * time.Second

// process is one server's process. It has its own directory, which is removed with the test. The
// file log there has its output.
type process struct {
	t       testing.TB
	dir     string
	cmd     *exec.Cmd
	exited  chan struct{} // closed when the process has been reaped
	closing func()        // called before the server is ended; may be nil
	// disturbed is true once a test has stopped the server or sent it a signal.
	disturbed bool
}

// newProcess makes the directory. Its path is short, because the paths of Unix sockets are limited.
func newProcess(t testing.TB, name string) *process {
	t.Helper()
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, dir: dir}
	t.Cleanup(func() {
		p.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return p
}

// find returns the path of a program that a test needs. pkg is Debian's package.
func find(t testing.TB, program, pkg string) string {
	t.Helper()
	bin, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s is needed for this test and is not on PATH (Debian, Ubuntu: apt-get install "+
			"%s)", program, pkg)
	}
	return bin
}

// launch starts cmd, which dies with the test's process.
func (p *process) launch(cmd *exec.Cmd) {
	p.t.Helper()
	if p.cmd != nil {
		p.t.Fatalf("%s runs already", cmd.Path)
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	attr := dieWithParent()
	if cmd.SysProcAttr != nil && cmd.SysProcAttr.Credential != nil {
		if attr == nil {
			attr = &syscall.SysProcAttr{}
		}
		attr.Credential = cmd.SysProcAttr.Credential
	}
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.exited = cmd, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		_ = cmd.Wait()
	}(p.exited)
}

// start launches a server with one port. The first start reserves a port, which the server
// keeps.
func (p *process) start(name string, port *int, command func() *exec.Cmd, answers func() bool) {
	p.t.Helper()
	for range 5 {
		first := *port == 0
		if first {
			*port = ReservePort(p.t)
		}
		p.launch(command())
		if p.until(answers) {
			return
		}
		p.Kill()
		if !first { // the port is reserved, so nobody else can have taken it
			break
		}
		*port = 0
	}
	p.t.Fatalf("%s does not start:\n%s", name, p.log())
}

// log returns the server's output.
func (p *process) log() string {
	b, _ := os.ReadFile(filepath.Join(p.dir, "log"))
	return string(b)
}

// until polls ready until it returns true. It returns false if the process ends before, or if
// startBound passes.
func (p *process) until(ready func() bool) bool {
	for end := time.Now().Add(startBound); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		select {
		case <-p.exited:
			return false
		default:
		}
		if ready() {
			return true
		}
	}
	return false
}

// Kill ends the server at once, as a crash does, and waits for its end.
func (p *process) Kill() { p.end(syscall.SIGKILL) }

// Stop ends the server cleanly and waits for its end.
func (p *process) Stop() { p.end(syscall.SIGTERM) }

func (p *process) end(sig syscall.Signal) {
	if p.closing != nil {
		p.closing()
	}
	if p.cmd == nil {
		return
	}
	p.disturbed = true
	_ = p.cmd.Process.Signal(sig)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-p.exited:
	case <-time.After(startBound):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
	p.cmd = nil
}

// backup copies the directory data of a server that has ended. The returned function replaces the
// directory by the copy.
func (p *process) backup(data string) (restore func()) {
	p.t.Helper()
	kept := filepath.Join(p.dir, "backup")
	if err := os.CopyFS(kept, os.DirFS(data)); err != nil {
		p.t.Fatal(err)
	}
	return func() {
		p.t.Helper()
		for _, err := range []error{os.RemoveAll(data), os.CopyFS(data, os.DirFS(kept))} {
			if err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// Pause stops the process with SIGSTOP. Connections stay open and new ones can be made, but nothing
// is answered. Pause returns when every thread has stopped.
func (p *process) Pause() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	for end := time.Now().Add(startBound); !p.stopped(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatal("the server does not stop")
		}
	}
}

// stopped reports whether all threads have stopped. It is true where that cannot be seen.
func (p *process) stopped() bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
	for _, f := range stats {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		// The text is "pid (name) state …", and a name may contain any character.
		if i := bytes.LastIndexByte(b, ')'); i >= 0 && len(b) > i+2 && b[i+2] != 'T' && b[i+2] != 't' {
			return false
		}
	}
	return true
}

// Resume continues the process after Pause.
func (p *process) Resume() { p.signal(syscall.SIGCONT) }

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	p.disturbed = true
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// PID returns the process id, for CPU accounting.
func (p *process) PID() int { return p.cmd.Process.Pid }

// ReservePort returns a TCP port of 127.0.0.1 for a server of this test. No other test gets it
// before this test ends.
func ReservePort(t testing.TB) int {
	t.Helper()
	port, release, err := ports.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}
