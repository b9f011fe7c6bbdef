package run_test

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/run"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is much longer than anything here takes.
const bound = 30 * time.Second

// child is a child process with its output, line by line.
type child struct {
	*run.Process
	t    *testing.T
	out  *bufio.Reader
	pipe *os.File // the read end of out
	in   *os.File
}

func start(t *testing.T, args ...string) *child {
	t.Helper()
	outR, outW := pipe(t)
	inR, inW := pipe(t)
	p, err := run.Start(run.Command{Args: args, Path: os.Getenv("PATH"), Env: os.Environ(),
		Files: [3]*os.File{inR, outW, os.Stderr}})
	if err != nil {
		t.Fatal(err)
	}
	outW.Close()
	inR.Close()
	t.Cleanup(func() { p.Signal(syscall.SIGKILL) })
	return &child{p, t, bufio.NewReader(outR), outR, inW}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func (c *child) line() string {
	c.t.Helper()
	_ = c.pipe.SetReadDeadline(time.Now().Add(bound))
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("read the child's output: %v", err)
	}
	return strings.TrimSuffix(s, "\n")
}

func (c *child) event() run.Event {
	c.t.Helper()
	select {
	case ev := <-c.Events():
		return ev
	case <-time.After(bound):
		c.t.Fatal("nothing happened to the child")
		panic("not reached")
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		script string
		want   run.Event
	}{
		{"exit 0", run.Event{}},
		{"exit 3", run.Event{Code: 3}},
		{"exit 255", run.Event{Code: 255}},
		{"kill -TERM $$", run.Event{Code: 143, Killed: syscall.SIGTERM}},
		{"kill -KILL $$", run.Event{Code: 137, Killed: syscall.SIGKILL}},
	} {
		p := start(t, "sh", "-c", c.script)
		if got := p.event(); got != c.want {
			t.Errorf("%s: ended with %+v, want %+v", c.script, got, c.want)
		}
		p.Close(run.Event{})
	}
}

func TestTheChildLeadsAGroupOfItsOwn(t *testing.T) {
	p := start(t, "sh", "-c", "echo $$; read x")
	pid, err := strconv.Atoi(p.line())
	if err != nil || pid != p.PID() {
		t.Fatalf("the child says it is %d, Start says %d (%v)", pid, p.PID(), err)
	}
	if pgid, err := syscall.Getpgid(pid); err != nil || pgid != pid {
		t.Errorf("the child is in group %d, want its own, %d (%v)", pgid, pid, err)
	}
	p.in.Close()
	p.event()
}

func TestASignalReachesTheWholeGroup(t *testing.T) {
	p := start(t, "sh", "-c", `
		trap 'echo parent' USR1
		sh -c 'trap "echo child; exit" USR1; echo up; while kill -0 $PPID; do sleep 0.01; done' &
		while ! wait; do :; done`)
	if got := p.line(); got != "up" {
		t.Fatalf("read %q", got)
	}
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{p.line(): true, p.line(): true}
	if !got["parent"] || !got["child"] {
		t.Errorf("the signal reached %v", got)
	}
	p.Signal(syscall.SIGKILL)
	p.event()
}

func TestAStopIsReportedAndUndone(t *testing.T) {
	p := start(t, "sh", "-c", "kill -STOP $$; echo on; exit 4")
	if got := p.event(); got.Stopped != syscall.SIGSTOP {
		t.Fatalf("event %+v, want a stop", got)
	}
	p.Signal(syscall.SIGCONT)
	if got := p.line(); got != "on" {
		t.Errorf("read %q", got)
	}
	if got := p.event(); got.Code != 4 {
		t.Errorf("ended with %+v", got)
	}
}

// The kernel kills the child when the thread ends that forked it, not only when the parent ends. Go
// starts and ends threads, but that thread must not end.
func TestTheChildOutlivesOurThreads(t *testing.T) {
	p := start(t, "sh", "-c", "read x; echo on")
	for range 50 {
		// A stop makes the goroutine that waits for the child return from the kernel. It could then
		// continue on another thread.
		p.Signal(syscall.SIGSTOP)
		if ev := p.event(); ev.Stopped != syscall.SIGSTOP {
			t.Fatalf("event %+v, want a stop", ev)
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { runtime.LockOSThread() }) // its thread ends
		}
		wg.Wait()
		p.Signal(syscall.SIGCONT)
	}
	if _, err := p.in.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	if got := p.line(); got != "on" {
		t.Errorf("read %q", got)
	}
	if got := p.event(); got != (run.Event{}) {
		t.Errorf("ended with %+v", got)
	}
}

func TestDrainEndsWhatTheChildLeftBehind(t *testing.T) {
	// The grandchild ignores SIGTERM, and reports that before the child ends.
	p := start(t, "sh", "-c", `sh -c 'trap "" TERM; echo $$; exec sleep 60' & read x; exit 0`)
	left, err := strconv.Atoi(p.line())
	if err != nil {
		t.Fatal(err)
	}
	p.in.Close()
	p.event()
	p.Signal(syscall.SIGTERM)
	if !runs(left) {
		t.Fatal("the grandchild ended by SIGTERM, so this tests nothing")
	}
	now := make(chan time.Time, 1)
	now <- time.Now()
	p.Drain(now)
	if runs(left) {
		t.Error("the grandchild lives on after Drain")
	}
}

func TestDrainReturnsWhenTheGroupIsEmpty(t *testing.T) {
	p := start(t, "sh", "-c", `exec 3<&0; (read x <&3) & echo $!; exit 0`)
	left, err := strconv.Atoi(p.line())
	if err != nil {
		t.Fatal(err)
	}
	p.event()
	if !runs(left) {
		t.Fatal("the grandchild has ended, so this tests nothing")
	}
	time.AfterFunc(10*time.Millisecond, func() { p.in.Close() })
	p.Drain(nil) // it kills no process
	if runs(left) {
		t.Error("the grandchild runs after Drain")
	}
}

// runs reports whether a process is alive. A dead process that was not reaped is not.
func runs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return runtime.GOOS != "linux" // it has just ended
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestLookAsAShellDoes(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode fs.FileMode, text string) string {
		t.Helper()
		f := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return f
	}
	script := file("a/script", 0o755, "#!/bin/sh\nexit 9\n")
	file("b/script", 0o755, "#!/bin/sh\n")
	plain := file("a/plain", 0o644, "#!/bin/sh\n")
	late := file("b/late", 0o755, "#!/bin/sh\n")
	file("a/late", 0o644, "not to be run")
	noInterpreter := file("a/odd", 0o755, "#!/nowhere/interpreter\n")
	noFormat := file("a/text", 0o755, "just words\n")
	path := dir + "/a:" + dir + "/b"

	for _, c := range []struct {
		name, want string
		code       int
	}{
		{"script", script, 0},
		{script, script, 0},
		{"late", late, 0},
		{"plain", "", 126},
		{plain, "", 126},
		{dir, "", 126},
		{"nothing-of-that-name", "", 127},
		{dir + "/nothing", "", 127},
		{plain + "/below", "", 127},
		{"", "", 127},
		{noFormat, noFormat, 126},
		{noInterpreter, noInterpreter, 127},
	} {
		got, err := run.Look(c.name, path)
		if err == nil && c.want != got {
			t.Errorf("Look(%q) = %q, want %q", c.name, got, c.want)
		}
		if err == nil && c.code != 0 {
			var p *run.Process
			if p, err = run.Start(run.Command{Args: []string{c.name}, Path: path,
				Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr}}); err == nil {
				p.Signal(syscall.SIGKILL)
				<-p.Events()
			}
		}
		switch {
		case c.code == 0 && err != nil:
			t.Errorf("Look(%q): %v", c.name, err)
		case c.code != 0 && err == nil:
			t.Errorf("%q could be run", c.name)
		case c.code != 0 && run.StartCode(err) != c.code:
			t.Errorf("%q: exit code %d, want %d (%v)", c.name, run.StartCode(err), c.code, err)
		}
	}
}
