package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A daemon without holds ends cleanly at the first signal.
func TestServeEndsAtASignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		h := newHost(t)
		h.daemon.signal(sig)
		h.daemon.ends(0)
		if _, err := os.Lstat(h.socket); !os.IsNotExist(err) {
			t.Errorf("the socket is there after the end: %v", err)
		}
	}
}

// While holders drain, a second signal ends the daemon at once. The lock stays closed until the
// stated validity is over. Here the next daemon waits for that.
func TestASecondSignalIsImmediate(t *testing.T) {
	h := newHost(t, "--drain", "10m")
	p := h.lock([]string{"--on-lost", "warn"}, "echo up; read x; exit 0")
	p.line()
	h.daemon.signal(syscall.SIGTERM)
	eventually(t, "it drains", func() bool { return strings.Contains(h.daemon.err.String(), `"event":"draining"`) })
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(128 + int(syscall.SIGTERM))
	p.letGo()
	p.ends(0)
}

// The log is JSON with one object per line. Its first line states the path of the socket.
func TestTheLogIsJSON(t *testing.T) {
	h := newHost(t)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	lines := strings.Split(strings.TrimSpace(h.daemon.err.String()), "\n")
	for i, l := range lines {
		var m struct {
			Event, Socket string
			Try           []string // only on a terminal
		}
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Errorf("%s: %v", l, err)
		}
		if i == 0 && (m.Event != "serving" || m.Socket != h.socket || len(m.Try) > 0) {
			t.Errorf("the first line is %s", l)
		}
	}
}

// On a terminal, the daemon suggests commands, and they work as they are printed.
func TestWhatToTry(t *testing.T) {
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, dir: dir, socket: filepath.Join(dir, "s.sock")}
	s := h.at("locksidecar", "serve", "--socket", h.socket)
	s.expect("locksidecar serves at " + h.socket)
	s.expect("Try, in another shell:")
	s.expect("locks --socket")
	s.mu.Lock()
	text := s.text
	s.mu.Unlock()
	n := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "locksidecar ") || !strings.Contains(line, "--socket") {
			continue
		}
		n++
		p := launch(t, dir, nil, "sh", "-c", strings.Replace(line, "sleep 10", "sleep 0", 1))
		p.ends(0)
	}
	if n != 3 {
		t.Errorf("%d commands to try", n)
	}
	s.send(ctrlC)
	s.ends(0)
}

// Of two daemons that start at the same moment on the same socket, exactly one serves.
func TestOnlyOneServes(t *testing.T) {
	h := newHost(t)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	var all []*proc
	for range 4 {
		all = append(all, h.run("serve"))
	}
	var lost []*proc
	eventually(t, "all but one have ended", func() bool {
		lost = lost[:0]
		for _, p := range all {
			select {
			case <-p.done:
				lost = append(lost, p)
			default:
			}
		}
		return len(lost) == len(all)-1
	})
	for _, p := range lost {
		p.ends(75)
	}
	p := h.run("health")
	p.ends(0)
	for _, p := range all {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		p.ends(-1)
	}
}

// After a daemon was killed, the next one uses its socket and its files, and fences continue to
// rise.
func TestTakeOverAfterAKill(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.lock(nil, "echo $LOCKSIDECAR_FENCE")
	first := p.number()
	p.ends(0)
	h.daemon.signal(syscall.SIGKILL)
	h.daemon.ends(1000 + int(syscall.SIGKILL))
	h.serve()
	p = h.lock(nil, "echo $LOCKSIDECAR_FENCE")
	if second := p.number(); second <= first {
		t.Errorf("fences %d, then %d", first, second)
	}
	p.ends(0)
}

func TestTableOfLocks(t *testing.T) {
	left := int64(29_949)
	var b bytes.Buffer
	err := writeTable(&b, []lockRow{
		{Key: "a", Mode: "shared", Holders: 2, Waiters: 1, Fence: "9223372036854775807", LeftMS: &left,
			PID: 7, Session: 3, Client: "x/y"},
		{Key: "waited:for", Mode: "exclusive", Waiters: 4},
	}, lockTitles, lockCells)
	want := `KEY         MODE    HOLDERS  WAITERS  FENCE                LEFT   PID  SESSION  CLIENT
a           shared  2        1        9223372036854775807  29.9s  7    3        x/y
waited:for  -       0        4        -                    -      -    -        -
`
	if err != nil || b.String() != want {
		t.Errorf("the table is (%v)\n%swant\n%s", err, b.String(), want)
	}
}
