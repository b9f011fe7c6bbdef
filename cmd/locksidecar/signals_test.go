package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// silent starts a server that accepts connections and never answers. met is closed when it has
// accepted one.
func silent(t testing.TB) (addr string, met chan struct{}) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	met, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var all []net.Conn
		for {
			c, err := ln.Accept()
			if err != nil {
				break
			}
			if all = append(all, c); len(all) == 1 {
				close(met)
			}
		}
		for _, c := range all {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String(), met
}

// A signal to end is never lost among other signals, and does not wait for reloads.
func TestASignalToEndBehindReloads(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("upstream: 'memory:'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	addr, _ := silent(t)
	if err := os.WriteFile(file, []byte("upstream: 'redis://"+addr+"'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		h.daemon.signal(syscall.SIGHUP)
		h.daemon.signal(syscall.SIGUSR2)
	}
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	if log := h.daemon.err.String(); !strings.Contains(log, `"event":"stopped"`) {
		t.Error("the daemon did not log that it stopped")
	}
}

// A signal ends a daemon that still waits for its store at the start.
func TestASignalToEndAtTheStart(t *testing.T) {
	addr, met := silent(t)
	h := bareHost(t)
	h.daemon = h.run("serve", "--log-format", "json", "--upstream", "redis://"+addr+"")
	select {
	case <-met:
	case <-h.daemon.done:
		t.Fatal("it has ended")
	}
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}

// A signal ends a daemon whose reload is stuck reading the configuration.
func TestASignalToEndWhileTheConfigurationIsRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("upstream: 'memory:'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
		t.Fatal(err)
	}
	h.daemon.signal(syscall.SIGHUP)
	eventually(t, "the daemon reads it", func() bool {
		pipe, err := os.OpenFile(file, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			t.Cleanup(func() { _ = pipe.Close() })
		}
		return err == nil
	})
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}
