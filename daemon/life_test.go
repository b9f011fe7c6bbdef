package daemon_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/protocol/sock"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

func memory(t testing.TB, state string) *embedded.Store {
	t.Helper()
	s, err := embedded.Open(embedded.Options{Clock: renewer.Boottime, Path: state})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestALiveSocketIsRefusedAndAStaleOneTakenOver(t *testing.T) {
	h := start(t, nil, nil)
	s := memory(t, "")
	defer s.Close()
	if _, err := daemon.Listen(daemon.Config{Socket: h.socket, Serving: serving(s)}); !errors.Is(err,
		daemon.ErrInUse) {
		t.Fatalf("a second daemon on a live socket: %v", err)
	}
	// One that died: its socket is there, its lock is gone.
	path := filepath.Join(t.TempDir(), "stale.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	start(t, nil, func(c *daemon.Config) { c.Socket = path }).dial(client.Options{})
}

func TestASocketThatIsNoneIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := memory(t, "")
	defer s.Close()
	if _, err := daemon.Listen(daemon.Config{Socket: path, Serving: serving(s)}); !errors.Is(err,
		daemon.ErrSocket) {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Fatal(string(b), err)
	}
}

func TestADirectoryOpenToAllIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s := memory(t, "")
	defer s.Close()
	if _, err := daemon.Listen(daemon.Config{Socket: filepath.Join(dir, "s"),
		Serving: serving(s)}); !errors.Is(err, daemon.ErrSocket) {
		t.Fatal(err)
	}
}

func TestTheSocketHasItsModeFromTheStart(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.SocketMode = 0o600 })
	st, err := os.Stat(h.socket)
	if err != nil || st.Mode().Perm() != 0o600 || st.Mode()&fs.ModeSocket == 0 {
		t.Fatal(st.Mode(), err)
	}
}

func TestDrainLetsHoldersFinishAndRefusesOthers(t *testing.T) {
	away := make(chan struct{})
	h := start(t, nil, func(c *daemon.Config) { c.Drain = bound })
	c := h.dial(client.Options{OnGoingAway: func(uint64, string) { close(away) }})
	w := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k"})
	waits := make(chan error, 1)
	go func() {
		_, err := w.Acquire(context.Background(), client.AcquireArgs{Key: "k", Wait: client.Forever})
		waits <- err
	}()
	eventually(t, "it waits", func() bool {
		s, err := c.Inspect(t.Context(), "k")
		return err == nil && s.Waiters == 1
	})
	h.stop()
	<-away
	if err := <-waits; !errors.Is(err, client.ErrDraining) {
		t.Fatalf("a waiter during the drain: %v", err)
	}
	if _, err := w.Acquire(t.Context(), client.AcquireArgs{Key: "other"}); !errors.Is(err,
		client.ErrDraining) {
		t.Fatalf("a new acquire during the drain: %v", err)
	}
	acquire(t, c, client.AcquireArgs{Key: "k"}) // re-entry is not new
	release(t, c, "k", 0, g.Fence)
	release(t, c, "k", 0, g.Fence)
	<-c.Done()
	if !errors.Is(c.Err(), client.ErrDraining) {
		t.Fatalf("the session ended with %v", c.Err())
	}
	if err := <-h.done; err != nil {
		t.Fatal(err)
	}
	h.done <- nil
	if _, err := os.Stat(h.socket); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the socket is left: %v", err)
	}
}

func TestADrainThatHoldersOutlastEndsAndTellsThem(t *testing.T) {
	core, seen := observer.New(zap.InfoLevel)
	h := start(t, nil, func(c *daemon.Config) { c.Drain, c.Log = 50*time.Millisecond, zap.New(core) })
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k"})
	release(t, c, "released", 0, acquire(t, c, client.AcquireArgs{Key: "released"}).Fence)
	h.stop()
	<-c.Done()
	if !errors.Is(c.Err(), client.ErrDraining) {
		t.Fatal(c.Err())
	}
	if err := <-h.done; err != nil {
		t.Fatal(err)
	}
	h.done <- nil
	lost := seen.FilterField(zap.String("event", "lost")).All()
	if len(lost) != 1 {
		t.Fatalf("%+v", lost)
	}
	if m := lost[0].ContextMap(); m["key"] != "k" || m["fence"] != g.Fence ||
		m["reason"] != "shutdown" {
		t.Errorf("%+v", m)
	}
}

func TestFencesRiseAcrossARestart(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var last uint64
	for range 3 {
		s := memory(t, state)
		h := start(t, s, nil)
		c := h.dial(client.Options{})
		g := acquire(t, c, client.AcquireArgs{Key: "k"})
		if g.Fence <= last {
			t.Fatalf("fence %d after %d", g.Fence, last)
		}
		last = g.Fence
		release(t, c, "k", 0, g.Fence)
		_ = c.Close()
		h.stop()
		if err := <-h.done; err != nil {
			t.Fatal(err)
		}
		h.done <- nil
		_ = s.Close()
		h.store = nil
	}
}

func TestKeepalivesExtendTheHoldsOfASilentClient(t *testing.T) {
	keepalives := make(chan client.Keepalive, 16)
	s, err := embedded.Open(embedded.Options{Clock: renewer.Boottime, Session: 600 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, s, nil)
	c := h.dial(client.Options{OnKeepalive: func(b client.Keepalive) {
		select {
		case keepalives <- b:
		default:
		}
	}})
	g := acquire(t, c, client.AcquireArgs{Key: "k"})
	last := g.Deadline
	for range 4 {
		b := <-keepalives
		if b.Until < last {
			t.Fatalf("validity went back: %d after %d", b.Until, last)
		}
		last = b.Until
	}
	if last <= g.Deadline {
		t.Fatal("keepalives extended nothing")
	}
	if st, err := c.Inspect(t.Context(), "k"); err != nil || st.Held != protocol.HeldHere {
		t.Fatal(st, err)
	}
}

// stalling is a store whose releases and peeks wait.
type stalling struct {
	upstream.Store
	asked chan struct{} // gets one for each
	let   chan struct{} // closed to let them through
}

func (*stalling) Capabilities() (none upstream.Capabilities) { return none }

func (s *stalling) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	if k := ops[0].Kind; k == cache.OpRelease || k == cache.OpPeek {
		s.asked <- struct{}{}
		<-s.let
	}
	return s.Store.Apply(ctx, ops, results)
}

// The last release of a drain is answered before its session is ended, however long the store
// takes, and so is any other request that a store has.
func TestADrainAnswersTheLastRelease(t *testing.T) {
	store := inMemory(t)
	slow := &stalling{store, make(chan struct{}, 10), make(chan struct{})}
	h := start(t, slow, func(c *daemon.Config) { c.Drain = time.Hour })
	h.store = nil
	t.Cleanup(func() { _ = store.Close() })
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k"})
	answered := make(chan error, 2)
	go func() {
		_, err := c.Inspect(context.Background(), "other")
		answered <- err
	}()
	<-slow.asked
	h.stop()
	eventually(t, "it drains", func() bool { return h.d.Ready() != nil })
	go func() {
		_, err := c.Release(context.Background(), client.ReleaseArgs{Key: "k", Fence: g.Fence})
		answered <- err
	}()
	<-slow.asked
	time.Sleep(200 * time.Millisecond) // so that the sessions would be ended, if it did not wait
	close(slow.let)
	for range 2 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	if err := <-h.done; err != nil {
		t.Error(err)
	}
	h.done <- nil
}

// A drain tells all sessions, those too that have just been accepted and have said nothing. This is
// for the race detector.
func TestADrainTellsASessionThatHasJustBegun(t *testing.T) {
	for range 5 {
		h := start(t, nil, nil)
		r := h.raw()
		eventually(t, "it has a session", func() bool { return h.d.Totals().Sessions == 1 })
		h.stop()
		_ = r.Close()
		err := <-h.done
		h.done <- err
	}
}

// A session that begins when the drain has told all sessions ends, too. Otherwise the daemon would
// wait for its client in vain, and would not leave its detached holds to the next one.
func TestASessionThatBeginsDuringADrainEnds(t *testing.T) {
	h := start(t, nil, func(c *daemon.Config) { c.Drain = time.Hour })
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "k"})
	h.stop()
	eventually(t, "it drains", h.d.Engine().Draining)
	syscall.ForkLock.RLock() // macOS has no SOCK_CLOEXEC
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		syscall.ForkLock.RUnlock()
		t.Fatal(err)
	}
	for _, fd := range fds {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		nc, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = nc.(*net.UnixConn)
	}
	nc, err := sock.New(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	h.d.Welcome(nc)
	r := &raw{t: t, UnixConn: ends[1]}
	_ = r.SetDeadline(time.Now().Add(bound))
	r.fatal(protocol.Draining)
	_ = r.Close()
	release(t, c, "k", 0, g.Fence)
}
