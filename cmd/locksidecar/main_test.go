package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/protocol/client"
)

// TestMain puts this test binary on PATH as locksidecar, so that scripts and tests run the real
// program.
func TestMain(m *testing.M) {
	// Otherwise every process of a program with the race detector would end a second late.
	_ = os.Setenv(noRaceSleep[0], noRaceSleep[1])
	testscript.Main(leakless{m}, map[string]func(){"locksidecar": main})
}

var noRaceSleep = [2]string{"GORACE", "atexit_sleep_ms=0"}

type leakless struct{ m *testing.M }

func (l leakless) Run() int {
	// The processes that the tests start must get these signals, even if the test was started with
	// nohup or in the background. A child does not ignore a signal that its parent catches.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	code := l.m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// bound is much longer than anything here takes.
const bound = 30 * time.Second

// eventually waits for cond. The longer it has waited, the longer it pauses: some conditions start
// processes.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for begin := time.Now(); !cond(); {
		waited := time.Since(begin)
		if waited > bound {
			t.Fatalf("not within %v: %s", bound, what)
		}
		time.Sleep(min(max(waited/20, 2*time.Millisecond), 25*time.Millisecond))
	}
}

// proc is a process of the program, or of anything else, with its output.
type proc struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader // standard output, line by line
	pipe *os.File      // the read end of out
	err  *outBuffer
	done chan struct{} // closed when wait has returned
}

// outBuffer reads standard error, which may still be written.
type outBuffer struct{ file string }

func (b *outBuffer) String() string {
	s, _ := os.ReadFile(b.file)
	return string(s)
}

// launch starts a command in directory dir. If the command still runs at the end of the test, it is
// killed.
func launch(t testing.TB, dir string, env []string, args ...string) *proc {
	t.Helper()
	return launchWith(t, dir, env, nil, args...)
}

// launchWith is like launch. The command also gets files, as descriptors from 3 on.
func launchWith(t testing.TB, dir string, env []string, files []*os.File, args ...string) *proc {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.ExtraFiles = files
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errFile, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = outW, errFile
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	outW.Close()
	errFile.Close()
	p := &proc{t: t, cmd: cmd, in: in, out: bufio.NewReader(outR), pipe: outR,
		err: &outBuffer{errFile.Name()}, done: make(chan struct{})}
	go func() { cmd.Wait(); close(p.done) }()
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		<-p.done
		outR.Close()
		if t.Failed() && p.err.String() != "" {
			t.Logf("%s:\n%s", strings.Join(args, " "), p.err)
		}
	})
	return p
}

func (p *proc) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("signal %v: %v", sig, err)
	}
}

// letGo ends a read of the command.
func (p *proc) letGo() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatalf("write to the command: %v", err)
	}
}

// line returns the next line of standard output.
func (p *proc) line() string {
	p.t.Helper()
	_ = p.pipe.SetReadDeadline(time.Now().Add(bound))
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("read output: %v\n%s", err, p.err)
	}
	return strings.TrimSuffix(s, "\n")
}

// rest returns the remaining standard output, up to its end.
func (p *proc) rest() string {
	p.t.Helper()
	_ = p.pipe.SetReadDeadline(time.Now().Add(bound))
	b, err := io.ReadAll(p.out)
	if err != nil {
		p.t.Fatalf("read output: %v\n%s", err, p.err)
	}
	return string(b)
}

func (p *proc) number() int {
	p.t.Helper()
	s := p.line()
	n, err := strconv.Atoi(s)
	if err != nil {
		p.t.Fatalf("read %q, want a number", s)
	}
	return n
}

// ends waits for the end and checks the exit code; -1 accepts any code. The code of a process
// that was ended by signal n is 1000 + n.
func (p *proc) ends(code int) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(bound):
		p.t.Fatalf("%s does not end\n%s", strings.Join(p.cmd.Args, " "), p.err)
	}
	if got := exitCode(p.cmd.ProcessState); got != code && code != -1 {
		p.t.Errorf("%s: exit code %d, want %d\n%s", strings.Join(p.cmd.Args, " "), got, code, p.err)
	}
}

func exitCode(s *os.ProcessState) int {
	if ws := s.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 1000 + int(ws.Signal())
	}
	return s.ExitCode()
}

// host is a daemon with its socket, and the processes beside it.
type host struct {
	t      testing.TB
	dir    string
	socket string
	env    []string
	daemon *proc
}

// newHost starts a daemon with args and waits until it is ready.
func newHost(t testing.TB, args ...string) *host {
	t.Helper()
	h := bareHost(t)
	h.serve(args...)
	return h
}

// bareHost returns a host without a daemon.
func bareHost(t testing.TB) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // a socket needs a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, dir: dir, socket: filepath.Join(dir, "s.sock")}
	h.env = []string{"LOCKSIDECAR_SOCKET=" + h.socket, "PS1=$ "}
	return h
}

// listens creates the host's socket at its path, as a manager does, so that it can be passed to a
// daemon.
func (h *host) listens() *os.File {
	h.t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.socket, Net: "unix"})
	if err != nil {
		h.t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	defer ln.Close()
	f, err := ln.File()
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { f.Close() })
	return f
}

func (h *host) serve(args ...string) {
	h.t.Helper()
	h.daemon = h.run(append([]string{"serve"}, args...)...)
	h.ready()
}

// ready waits until the daemon is ready.
func (h *host) ready() {
	h.t.Helper()
	eventually(h.t, "the daemon is ready", func() bool {
		select {
		case <-h.daemon.done:
			h.t.Fatalf("the daemon ended:\n%s", h.daemon.err)
		default:
		}
		return answers(h.t.Context(), h.socket)
	})
}

// answers reports whether the daemon at socket and its store are ready, as the command health does.
// It starts no process, because most processes of the tests would be started only for that.
func answers(ctx context.Context, socket string) bool {
	return fetchStatus(ctx, socket, "test", false).Ready
}

// run starts the program with args.
func (h *host) run(args ...string) *proc {
	h.t.Helper()
	return launch(h.t, h.dir, h.env, append([]string{"locksidecar"}, args...)...)
}

// lock starts a shell script under the lock k.
func (h *host) lock(flags []string, script string) *proc {
	h.t.Helper()
	return h.run(append(append([]string{"lock"}, flags...), "k", "--", "sh", "-c", script)...)
}

// holders returns the numbers of holders and waiters of the lock k, as the daemon lists it.
func (h *host) holders() (holders, waiters uint64) {
	h.t.Helper()
	return h.holdersOf("k")
}

func (h *host) holdersOf(key string) (holders, waiters uint64) {
	h.t.Helper()
	c, err := client.Dial(h.t.Context(), h.socket, client.Options{Name: "test"})
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	s, err := c.Inspect(h.t.Context(), key)
	if err != nil {
		h.t.Fatal(err)
	}
	return s.Holders, s.Waiters
}

func (h *host) waitFor(holders, waiters uint64) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("%d holders and %d waiters", holders, waiters), func() bool {
		a, b := h.holders()
		return a == holders && b == waiters
	})
}

// runs reports whether a process is alive. A dead process that was not reaped is not.
func runs(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := bytes.Cut(b, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}
