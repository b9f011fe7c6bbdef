package main

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// screen is a program on a terminal of its own, with all text that the program has written there.
type screen struct {
	t    *testing.T
	tty  *os.File
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended

	mu   sync.Mutex
	text string // guarded by mu
	seen int    // guarded by mu: up to where expect has read
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

// at starts a program as the leader of a session with a terminal.
func (h *host) at(args ...string) *screen {
	t := h.t.(*testing.T)
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = h.dir
	cmd.Env = append(append(os.Environ(), h.env...), "TERM=dumb")
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, tty: tty, cmd: cmd, done: make(chan struct{})}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := tty.Read(buf)
			s.mu.Lock()
			s.text += string(buf[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() { cmd.Wait(); close(s.done) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-s.done
		tty.Close()
		<-read
		if t.Failed() {
			t.Logf("the screen of %s:\n%s", strings.Join(args, " "), s.text)
		}
	})
	return s
}

// shell starts an interactive shell with job control.
func (h *host) shell() *screen {
	if _, err := exec.LookPath("bash"); err != nil {
		h.t.Skip("no bash here")
	}
	s := h.at("bash", "--norc", "--noprofile", "-i")
	s.expect("$ ")
	return s
}

func (s *screen) send(keys string) {
	s.t.Helper()
	if _, err := s.tty.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// expect waits until text appears after the text that was expected before.
func (s *screen) expect(text string) {
	s.t.Helper()
	eventually(s.t, "the screen shows "+text, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		i := strings.Index(s.text[s.seen:], text)
		if i >= 0 {
			s.seen += i + len(text)
		}
		return i >= 0
	})
}

// shows reports whether the text has ever been on the screen.
func (s *screen) shows(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text, text)
}

func (s *screen) ends(code int) {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(bound):
		s.t.Fatal("it does not end")
	}
	if got := exitCode(s.cmd.ProcessState); got != code {
		s.t.Errorf("exit code %d, want %d", got, code)
	}
}

func TestTheCommandHasTheTerminal(t *testing.T) {
	h := newHost(t)
	s := h.at("locksidecar", "lock", "k", "--", "sh", "-c",
		`[ $(ps -o tpgid= -p $$) -eq $$ ] && echo front; read x; echo got $x; exit 3`)
	s.expect("front")
	s.send("word\n")
	s.expect("got word")
	s.ends(3)
}

func TestTheTerminalComesBack(t *testing.T) {
	h := newHost(t)
	s := h.at("sh", "-c", `locksidecar lock k -- sh -c 'read x'; read y; echo got $y`)
	s.send("one\ntwo\n")
	s.expect("got two")
	s.ends(0)
}

func TestInterruptFromTheKeyboard(t *testing.T) {
	h := newHost(t)
	s := h.at("locksidecar", "lock", "k", "--", "sh", "-c",
		`trap 'echo caught; exit 7' INT; echo up; while :; do sleep 0.01; done`)
	s.expect("up")
	s.send(ctrlC)
	s.expect("caught")
	s.ends(7)

	s = h.at("locksidecar", "lock", "k", "--", "sh", "-c", "echo up; exec sleep 1000")
	s.expect("up")
	s.send(ctrlC)
	s.ends(130)

	// While lock waits, it reads the keys of the terminal.
	holder := h.lock(nil, "echo up; read x; exit 0")
	holder.line()
	s = h.at("locksidecar", "lock", "k", "--", "true")
	h.waitFor(1, 1)
	s.send(ctrlC)
	s.ends(130)
	h.waitFor(1, 0)
	holder.letGo()
	holder.ends(0)
}

// The key applies to the whole job: a script does not continue with its next command.
func TestInterruptEndsTheScriptToo(t *testing.T) {
	h := newHost(t)
	s := h.at("sh", "-c", `locksidecar lock k -- sh -c 'echo up; exec sleep 1000'; echo next`)
	s.expect("up")
	s.send(ctrlC)
	s.ends(1000 + int(syscall.SIGINT))
	if s.shows("next") {
		t.Error("the script went on")
	}
	h.waitFor(0, 0)
}

func TestStopAndForeground(t *testing.T) {
	h := newHost(t)
	s := h.shell()
	s.send("locksidecar lock k -- sh -c 'echo u''p; read x; echo got $x; exit 3'\n")
	s.expect("up")
	s.send(ctrlZ)
	s.expect("Stopped")
	s.expect("$ ")
	h.waitFor(1, 0) // a stopped command keeps its lock
	s.send("echo al''ive\n")
	s.expect("alive")
	s.send("fg\n")
	s.send("word\n")
	s.expect("got word")
	s.send("echo co''de $?\n")
	s.expect("code 3")
	h.waitFor(0, 0)
	s.send("exit\n")
	s.ends(0)
}

// In the background, the command runs without the terminal until it tries to read from it.
func TestBackgroundAndForeground(t *testing.T) {
	h := newHost(t)
	s := h.shell()
	s.send("locksidecar lock k -- sh -c 'echo u''p; read x; echo got $x; exit 4' &\n")
	s.expect("up")
	s.send("\n")
	// bash reports the stop when it shows its next prompt.
	eventually(t, "the job is stopped for input", func() bool {
		s.send("jobs\n")
		return s.shows("Stopped")
	})
	s.send("fg\n")
	s.send("word\n")
	s.expect("got word")
	s.send("echo co''de $?\n")
	s.expect("code 4")
	h.waitFor(0, 0)
	s.send("exit\n")
	s.ends(0)
}

// The other processes of a pipeline, such as a pager, can use the terminal. The key still reaches
// all processes.
func TestPipeline(t *testing.T) {
	h := newHost(t)
	s := h.shell()
	s.send("locksidecar lock k -- sh -c 'echo u''p; exec sleep 1000' | sh -c 'read x; read y </dev/tty; echo got $x $y; cat'\n")
	h.waitFor(1, 0)
	s.send("word\n")
	s.expect("got up word")
	s.send(ctrlC)
	s.expect("$ ")
	h.waitFor(0, 0)

	// The command can also use the terminal when it tries to.
	s.send("echo in''put | locksidecar lock k -- sh -c 'read x; read y </dev/tty; echo got $x $y; stty -echo </dev/tty; stty echo </dev/tty; echo do''ne'\n")
	h.waitFor(1, 0)
	s.send("word\n")
	s.expect("got input word")
	s.expect("done")
	s.send("exit\n")
	s.ends(0)
}

// A command that is killed leaves the modes of the terminal as they were.
func TestModesAreRestored(t *testing.T) {
	h := newHost(t)
	s := h.at("sh", "-c", `locksidecar lock k -- sh -c 'stty raw -echo; kill -KILL $$'; stty -a; echo end`)
	s.expect("end")
	s.ends(0)
	if !s.shows(" icanon") || s.shows("-icanon") || s.shows("-echo ") {
		t.Error("the terminal was left raw")
	}
}

// The whole job is stopped, and the lock is lost meanwhile. When the job is continued, lock handles
// the loss before the command continues.
func TestLostWhileTheJobIsStopped(t *testing.T) {
	h := newHost(t)
	s := h.shell()
	s.send("locksidecar lock k -- sh -c 'trap \"echo to''ld; exit\" TERM; echo u''p; while read x; do echo on; done'\n")
	s.expect("up")
	s.send(ctrlZ)
	s.expect("Stopped")
	s.expect("$ ")
	h.daemon.signal(syscall.SIGKILL)
	h.daemon.ends(-1)
	s.send("fg\n")
	s.expect("told")
	s.expect("$ ")
	s.send("echo co''de $?\n")
	s.expect("code 79")
	if s.shows("on\r\n") {
		t.Error("the command went on without the lock")
	}
	s.send("exit\n")
	s.ends(0)
}
