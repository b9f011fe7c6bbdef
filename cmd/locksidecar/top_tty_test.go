package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/locksidecar/locksidecar/cmd/locksidecar/internal/terminal/vt"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// console is a program on a terminal whose screen a test can read.
type console struct {
	t           *testing.T
	master, tty *os.File
	cmd         *exec.Cmd
	done        chan struct{} // closed when the program has ended

	mu     sync.Mutex
	screen *vt.Terminal // guarded by mu
}

// console starts a program on a terminal of width columns and height lines.
func (h *host) console(width, height uint16, env []string, args ...string) *console {
	t := h.t.(*testing.T)
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, master: master, tty: tty, done: make(chan struct{}),
		screen: vt.New(int(width), int(height))}
	if err := pty.Setsize(master, &pty.Winsize{Cols: width, Rows: height}); err != nil {
		t.Fatal(err)
	}
	c.cmd = exec.Command(args[0], args[1:]...)
	c.cmd.Dir = h.dir
	c.cmd.Env = append(append(append(os.Environ(), h.env...), "TERM=xterm"), env...)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = tty, tty, tty
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			c.mu.Lock()
			c.screen.Write(buf[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() { c.cmd.Wait(); close(c.done) }()
	t.Cleanup(func() {
		c.cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			c.look(func(s *vt.Terminal) { t.Logf("the screen of %s:\n%s\n%q", strings.Join(args, " "), s, s.Faults) })
		}
		tty.Close()
		<-read
		master.Close()
	})
	return c
}

// top starts locksidecar top, which refreshes its display only when it has to.
func (h *host) top(width, height uint16, args ...string) *console {
	return h.console(width, height, nil, append([]string{"locksidecar", "top", "--interval", "1h"},
		args...)...)
}

func (c *console) look(f func(*vt.Terminal)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.screen)
}

func (c *console) until(what string, cond func(*vt.Terminal) bool) {
	c.t.Helper()
	eventually(c.t, what, func() (ok bool) {
		c.look(func(s *vt.Terminal) { ok = cond(s) })
		return ok
	})
}

// sees waits until all the texts are on the screen at once.
func (c *console) sees(texts ...string) {
	c.t.Helper()
	c.until("the screen shows "+strings.Join(texts, ", "), func(s *vt.Terminal) bool {
		return !slices.ContainsFunc(texts, func(text string) bool {
			return !strings.Contains(s.String(), text)
		})
	})
}

func (c *console) misses(text string) {
	c.t.Helper()
	c.until("the screen does not show "+text, func(s *vt.Terminal) bool {
		return !strings.Contains(s.String(), text)
	})
}

func (c *console) send(keys string) {
	c.t.Helper()
	if _, err := c.master.WriteString(keys); err != nil {
		c.t.Fatal(err)
	}
}

func (c *console) resize(w, h uint16) {
	c.t.Helper()
	c.look(func(s *vt.Terminal) { s.Resize(int(w), int(h)) })
	if err := pty.Setsize(c.master, &pty.Winsize{Cols: w, Rows: h}); err != nil {
		c.t.Fatal(err)
	}
}

// modes returns the modes of the terminal.
func (c *console) modes() string {
	c.t.Helper()
	cmd := exec.Command("stty", "-g")
	cmd.Stdin = c.tty
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatal(err)
	}
	return string(out)
}

// ends waits for the end, and checks that the terminal is as it was before.
func (c *console) ends(code int, modes string) {
	c.t.Helper()
	(&proc{t: c.t, cmd: c.cmd, done: c.done, err: &outBuffer{}}).ends(code)
	c.isLeft(modes)
	c.look(func(s *vt.Terminal) {
		if len(s.Faults) > 0 {
			c.t.Errorf("%q", s.Faults)
		}
	})
}

func (c *console) isLeft(modes string) {
	c.t.Helper()
	c.until("the screen is given back", func(s *vt.Terminal) bool {
		return !s.Alternate && !s.Hidden && !s.NoWrap
	})
	eventually(c.t, "the terminal has its modes back", func() bool { return c.modes() == modes })
}

// cookedModes returns the modes of an unchanged terminal.
func cookedModes(t *testing.T) string {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer tty.Close()
	return (&console{t: t, tty: tty}).modes()
}

// as connects a client with this name, which acquires keys.
func (h *host) as(name string, keys ...string) *client.Client {
	h.t.Helper()
	c, err := client.Dial(h.t.Context(), h.socket, client.Options{Name: name})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	for _, k := range keys {
		if _, err := c.Acquire(h.t.Context(), client.AcquireArgs{Key: k, Owner: 1}); err != nil {
			h.t.Fatal(err)
		}
	}
	return c
}

func TestTopFillsTheScreenAndGivesItBack(t *testing.T) {
	h := newHost(t)
	modes := cookedModes(t)
	h.as("billing", "k", "order:1", "order:2")
	waiter := h.lock(nil, "true")
	h.waitFor(1, 1)
	c := h.top(80, 24)
	c.sees("held 3", "waiting 1", "store default, embedded, linearizable: up", "order:1", "order:2",
		"billing", "waiting  (w", "locksidecar lock/sh", "q quit")
	c.look(func(s *vt.Terminal) {
		if !s.Alternate || !s.Hidden || !s.NoWrap {
			t.Errorf("alternate screen %v, no cursor %v, no wrapping %v", s.Alternate, s.Hidden, s.NoWrap)
		}
		if !strings.HasPrefix(s.Lines()[23], "q quit") {
			t.Errorf("the last line is %q", s.Lines()[23])
		}
	})
	c.send("\t")
	c.sees("PLACE", "WAITED")
	c.send("\t")
	c.sees("SINCE", "locksidecar lock/sh")
	c.send("\x1b[Z\x1b[Z")
	c.sees("HELD")
	c.send("ss")
	c.sees("by key")
	c.send("r")
	c.sees("by key, reversed")
	c.send("/ordx\x7f\r")
	c.sees("keys ord…", "order:1")
	c.misses("k ")
	c.send("?")
	c.sees("the next or the previous list")
	c.send("xq")
	c.ends(0, modes)
	waiter.signal(syscall.SIGTERM)
	waiter.ends(-1)
}

func TestTopFollowsTheSizeOfTheScreen(t *testing.T) {
	h := newHost(t)
	modes := cookedModes(t)
	h.as("billing", "k")
	c := h.top(80, 24)
	for _, size := range [][2]uint16{{140, 50}, {60, 12}, {20, 5}, {80, 24}} {
		c.sees("held 1")
		c.resize(size[0], size[1])
		c.until("the keys are in the last line", func(s *vt.Terminal) bool {
			return strings.HasPrefix(s.Lines()[size[1]-1], "q quit")
		})
	}
	c.send("q")
	c.ends(0, modes)
}

// The name of a client is shown, and never interpreted by the terminal.
func TestNamesOfClientsAreNoCommandsToTheTerminal(t *testing.T) {
	h := newHost(t)
	modes := cookedModes(t)
	h.as("\x1b[2J\x1b]0;owned\a\x1b[?1049l\u009b5m", "größe 漢字", "\u202efdp.exe")
	c := h.top(120, 24)
	c.sees("\ufffd[2J\ufffd]0;owned\ufffd", "größe 漢字", "\ufffdfdp.exe")
	c.send("\t\t")
	c.sees("SINCE", "\ufffd[2J\ufffd]0;owned\ufffd")
	c.send("q")
	c.ends(0, modes)
	for _, command := range []string{"locks", "sessions", "top -n 1"} {
		p := h.run(strings.Fields(command)...)
		p.ends(0)
		if out := p.rest(); strings.ContainsAny(out, "\x1b\a\u009b") || !strings.Contains(out, "owned") {
			t.Errorf("%s: %q", command, out)
		}
	}
}

func TestTopWaitsForTheDaemon(t *testing.T) {
	h := newHost(t)
	modes := cookedModes(t)
	h.as("billing")
	c := h.console(80, 24, nil, "locksidecar", "top", "--interval", "100ms")
	c.sees("held 0")
	c.send("\t\t")
	c.sees("sessions 1", "billing")
	h.daemon.signal(syscall.SIGKILL)
	h.daemon.ends(-1)
	c.sees("waiting for the daemon…", "billing") // the earlier display remains
	h.serve()
	c.misses("waiting for")
	c.sees("sessions 0")
	h.as("again", "k")
	c.sees("held 1", "sessions 1", "again")
	c.send("q")
	c.ends(0, modes)
}

func TestTopGivesTheScreenBackOnSignals(t *testing.T) {
	h := newHost(t)
	modes := cookedModes(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP,
		syscall.SIGQUIT} {
		c := h.top(80, 24)
		c.sees("held 0")
		if err := c.cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		c.ends(128+int(sig), modes)
	}
	c := h.top(80, 24)
	c.sees("held 0")
	c.send(ctrlC)
	c.ends(130, modes)
}

func TestTopStopsAndGoesOn(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("no bash here")
	}
	h := newHost(t)
	c := h.console(80, 24, []string{"TERM=dumb"}, "bash", "--norc", "--noprofile", "-i")
	c.send("stty -g >before\n")
	c.send("TERM=xterm locksidecar top --interval 1h\n")
	c.sees("held 0", "q quit")
	c.send(ctrlZ)
	c.sees("Stopped")
	c.until("the screen is given back", func(s *vt.Terminal) bool { return !s.Alternate })
	h.as("billing", "k")
	c.send("fg\n")
	c.until("the screen is taken again", func(s *vt.Terminal) bool { return s.Alternate })
	c.send("pp")
	c.sees("held 1", "billing")
	c.send("q")
	c.until("the screen is given back", func(s *vt.Terminal) bool { return !s.Alternate })
	c.send("echo co''de $?; stty -g >after; cmp before after && exit 7\n")
	c.sees("code 0")
	c.ends(7, c.modes())
}

func TestColoursCanBeTurnedOff(t *testing.T) {
	h := newHost(t)
	modes := cookedModes(t)
	for env, want := range map[string]bool{"NO_COLOR=": true, "NO_COLOR=1": false} {
		c := h.console(80, 24, []string{env}, "locksidecar", "top", "--interval", "100ms")
		c.sees("held 0")
		h.daemon.signal(syscall.SIGKILL)
		h.daemon.ends(-1)
		c.sees("waiting for the daemon…") // in red
		c.send("q")
		c.ends(0, modes)
		c.look(func(s *vt.Terminal) {
			if s.Colored != want {
				t.Errorf("%s: colours %v", env, s.Colored)
			}
		})
		h.serve()
	}
}
