package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// gate passes connections on to a server. Shut, it accepts them, and lets them wait until it opens.
type gate struct {
	ln   net.Listener
	to   string
	came chan struct{} // one for each connection that has to wait
	mu   sync.Mutex
	shut chan struct{} // nil while it is open; guarded by mu
}

func newGate(t *testing.T, to string) *gate {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	g := &gate{ln: ln, to: to, came: make(chan struct{}, 100)}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go g.pass(c)
		}
	}()
	return g
}

func (g *gate) pass(c net.Conn) {
	defer c.Close()
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		g.came <- struct{}{}
		<-shut
	}
	s, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() {
		io.Copy(s, c)
		s.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(c, s)
}

func (g *gate) set(shut chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
}

// A daemon that starts while the last one still ends also continues with the detached holds. The
// last one parks them after the new one has looked for them. No state stays behind that a third
// daemon would take for the state of the second one.
func TestHoldsAreLeftToADaemonThatHasBegun(t *testing.T) {
	t.Parallel()
	redis := testserver.StartRedis(t)
	g := newGate(t, redis.Addr())
	args := []string{"--upstream", "redis://" + g.ln.Addr().String()}
	h := newHost(t, args...)
	keep := h.run("lock", "--keep", "1h", "k", "--", "sh", "-c", "echo $LOCKSIDECAR_FENCE")
	fence := keep.number()
	keep.ends(0)
	first := h.daemon
	open := make(chan struct{})
	g.set(open)
	h.daemon = h.run(append([]string{"serve"}, args...)...)
	<-g.came // it has looked for a state
	first.signal(syscall.SIGTERM)
	first.ends(0)
	g.set(nil)
	close(open)
	h.ready()
	if _, err := os.Lstat(h.socket + ".parked"); !os.IsNotExist(err) {
		t.Errorf("the state is still there: %v", err)
	}
	h.run("lock", "-n", "k", "--", "true").ends(75)
	h.run("unlock", "--fence", fmt.Sprint(fence), "k").ends(0)
	h.run("lock", "-n", "k", "--", "true").ends(0)
}

// If a daemon cannot use a state that it has found, no later daemon uses that either.
func TestAnUnusableParkedFileIsNotUsedLater(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.run("lock", "--keep", "1h", "k", "--", "true").ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	if err := os.Remove(h.socket); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	b, err := os.ReadFile(h.socket + ".parked")
	if err != nil {
		t.Fatal(err)
	}
	spoil(t, b, `"Seen":"`) // the new process cannot read what the last one knew of the stores
	if err := os.WriteFile(h.socket+".parked", b, 0o600); err != nil {
		t.Fatal(err)
	}
	h.serve()
	if _, err := os.Lstat(h.socket + ".parked"); !os.IsNotExist(err) {
		t.Errorf("the state is still there: %v\n%s", err, h.daemon.err)
	}
	h.run("lock", "-n", "k", "--", "true").ends(75)
}

// spoil changes the text after a mark in b.
func spoil(t *testing.T, b []byte, mark string) {
	t.Helper()
	for i := range b {
		if string(b[i:min(len(b), i+len(mark))]) == mark {
			copy(b[i+len(mark):], "////")
			return
		}
	}
	t.Fatalf("no %s in %q", mark, b)
}
