package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// newEar listens where a manager would. It returns a function that waits for a message with the
// prefix what, and returns the rest of that message.
func newEar(t *testing.T, path string) func(what string) (rest string) {
	t.Helper()
	ear, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ear.Close() })
	return func(what string) string {
		t.Helper()
		b := make([]byte, 512)
		for {
			_ = ear.SetReadDeadline(time.Now().Add(bound))
			n, err := ear.Read(b)
			if err != nil {
				t.Fatalf("waiting for %s: %v", what, err)
			}
			if rest, ok := strings.CutPrefix(string(b[:n]), what); ok {
				return rest
			}
		}
	}
}

// The daemon notifies a manager that asks for it: when it is ready, at each reload, at the end, and
// for its watchdog.
func TestTheManagerIsToldWhatGoesOn(t *testing.T) {
	at := filepath.Join(t.TempDir(), "n")
	hears := newEar(t, at)
	t.Setenv("NOTIFY_SOCKET", at)
	t.Setenv("WATCHDOG_USEC", "30000000")
	h := newHost(t)
	hears("READY=1")
	h.daemon.signal(syscall.SIGHUP)
	hears("RELOADING=1\nMONOTONIC_USEC=")
	hears("READY=1")
	h.daemon.signal(syscall.SIGTERM)
	hears("STOPPING=1")
	h.daemon.ends(0)

	t.Setenv("WATCHDOG_USEC", "3000")
	h = newHost(t)
	hears("WATCHDOG=1")
	hears("WATCHDOG=1")
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}

// A daemon serves a socket that the manager has created, and leaves it in place. A client that
// connects between two daemons waits for the second one.
func TestTheManagersSocketOutlivesTheDaemon(t *testing.T) {
	h := bareHost(t)
	f := h.listens()
	serve := func() *proc {
		return launchWith(t, h.dir, h.env, []*os.File{f}, "sh", "-c",
			"LISTEN_FDS=1 LISTEN_PID=$$ exec locksidecar serve")
	}
	for range 2 {
		early := h.run("lock", "k", "--", "true") // before a daemon runs
		d := serve()
		early.ends(0)
		d.signal(syscall.SIGTERM)
		d.ends(0)
	}

	other := launchWith(t, h.dir, h.env, []*os.File{f}, "sh", "-c",
		"LISTEN_FDS=1 LISTEN_PID=$$ exec locksidecar serve --socket "+h.socket+"2")
	other.ends(64)
	if s := other.err.String(); !strings.Contains(s,
		"the service manager has passed an unknown socket ("+h.socket+")") {
		t.Error(s)
	}
}
