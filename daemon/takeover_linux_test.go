package daemon_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/takeover"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// successor returns the configuration of a process that takes over from h.
func (h *host) successor() daemon.Config {
	h.t.Helper()
	s, err := embedded.Open(embedded.Options{Clock: renewer.Boottime, Successor: true})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = s.Close() })
	return daemon.Config{Socket: h.socket, Serving: serving(s), Version: "successor"}
}

func (h *host) claim() *takeover.State {
	h.t.Helper()
	e, err := takeover.Claim(h.t.Context(), h.socket, "successor")
	if err != nil {
		h.t.Fatal(err)
	}
	return e
}

// The places at which a process that takes over may be killed.
const (
	afterOffer = iota
	afterPrepared
	afterState
	inReady // half of it is said
	silent  // it says nothing any more, and lives
	steps
)

// endAt takes over as Inherit does, up to a step, and ends there as a process does that is killed.
func (h *host) endAt(step int) error {
	c, err := takeover.Dial(h.t.Context(), h.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	var offer takeover.Offer
	if err := takeover.Send(c, takeover.Request{Form: takeover.Form, PID: os.Getpid()},
		nil); err != nil {
		return err
	}
	if _, err := takeover.Receive(c, &offer); err != nil || step == afterOffer {
		return err
	}
	has := takeover.Prepared{Stores: make(map[string]string)}
	for _, s := range offer.Stores {
		has.Stores[s.Name] = s.Key
	}
	if err := takeover.Send(c, has, nil); err != nil || step == afterPrepared {
		return err
	}
	var contents takeover.Contents
	if _, err := takeover.Receive(c, &contents); err != nil {
		return err
	}
	for n := 0; n < contents.Files; {
		files, err := takeover.Receive(c, &struct{}{})
		if err != nil {
			return err
		}
		n += len(files)
		for _, f := range files {
			_ = f.Close()
		}
	}
	switch step {
	case inReady:
		_, err = c.Write([]byte{0, 0})
	case silent:
		if _, err = c.Read(make([]byte, 1)); err == io.EOF {
			err = nil
		}
	}
	return err
}

// busyClients lock and unlock, each its own key and all of them one, until stop; nothing may fail.
func (h *host) busyClients(n int) (stop func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range n {
		c := h.dial(client.Options{Name: "busy", OnLost: func(l client.Lost) {
			h.t.Errorf("%s is lost: %v", l.Key, l.Reason)
		}})
		wg.Go(func() {
			for owner := uint64(1); ctx.Err() == nil; owner++ {
				for _, key := range []string{"hot", "own" + string(rune('a'+i))} {
					hold, err := c.Lock(context.Background(),
						client.AcquireArgs{Key: key, Owner: owner, Wait: client.Forever})
					if err == nil {
						err = hold.Release(context.Background())
					}
					if err != nil {
						h.t.Errorf("%s: %v", key, err)
						return
					}
				}
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// A successor may end at any step before the commit. The daemon continues to serve, and its clients
// notice nothing.
func TestASuccessorThatEndsChangesNothing(t *testing.T) {
	h := start(t, nil, nil)
	c := h.dial(client.Options{Name: "holder"})
	held, err := c.Lock(t.Context(), client.AcquireArgs{Key: "held", TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() {
		w, err := c.Lock(context.Background(), client.AcquireArgs{Key: "held", Owner: 1,
			Wait: client.Forever})
		if err == nil {
			err = w.Release(context.Background())
		}
		waited <- err
	}()
	stop := h.busyClients(4)
	for step := range steps {
		if err := h.endAt(step); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
		// It answers again: what came meanwhile has waited.
		if _, err := c.Inspect(t.Context(), "held"); err != nil {
			t.Fatalf("after step %d: %v", step, err)
		}
	}
	cfg := h.successor()
	cfg.Stores[0].Key = "another"
	cfg.Commit = func() error {
		t.Error("a configuration that the daemon refuses is committed")
		return nil
	}
	if _, err := daemon.Inherit(h.claim(), cfg); !errors.Is(err, takeover.ErrRefused) {
		t.Errorf("one with another store takes over: %v", err)
	}
	stop()
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Error(err)
	}
}

// The successor may end at the very moment of the commit, when it has read everything. This process
// continues to serve, and everything that the successor has touched still works.
func TestASuccessorThatEndsAtTheCommit(t *testing.T) {
	var claimed atomic.Pointer[takeover.State]
	told := make(chan int, 4)
	h := start(t, nil, func(cfg *daemon.Config) {
		cfg.TakenOver = func(pid int) {
			told <- pid
			claimed.Load().Close()
		}
	})
	c := h.dial(client.Options{Name: "holder"})
	held, err := c.Lock(t.Context(), client.AcquireArgs{Key: "held"})
	if err != nil {
		t.Fatal(err)
	}
	e := h.claim()
	claimed.Store(e)
	if _, err := daemon.Inherit(e, h.successor()); err == nil {
		t.Fatal("it goes on too")
	}
	if _, err := c.Inspect(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // of the other one, and of ourselves again
		if pid := <-told; pid != os.Getpid() {
			t.Errorf("the manager is told of process %d", pid)
		}
	}
	for _, path := range []string{h.socket, admin.Socket(h.socket)} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	h.dial(client.Options{Name: "new"})
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The successor cannot listen on the address of its configuration. The admin socket stays, because
// it belongs to the daemon that continues.
func TestASuccessorThatCannotListenLeavesTheAdminSocket(t *testing.T) {
	h := start(t, nil, nil)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := h.successor()
	cfg.AdminListen = taken.Addr().String()
	e := h.claim()
	if _, err := daemon.Inherit(e, cfg); !errors.Is(err, admin.ErrListen) {
		t.Fatalf("it takes over: %v", err)
	}
	e.Close()
	h.claim().Close() // it is served
}

// A process that has taken everything in says nothing to clients before the other one has
// committed, whatever comes due.
func TestASuccessorIsSilentBeforeTheCommit(t *testing.T) {
	t.Parallel()
	var claimed atomic.Pointer[takeover.State]
	var keepalives atomic.Int64
	var heard int64
	var handed atomic.Bool
	done := make(chan bool, 1)
	h := start(t, nil, func(cfg *daemon.Config) {
		cfg.TakenOver = func(int) { // called again if this daemon continues
			if handed.Swap(true) {
				return
			}
			before := keepalives.Load()
			time.Sleep(2500 * time.Millisecond) // a keepalive is due each two seconds
			heard = keepalives.Load() - before
			claimed.Load().Close()
			done <- true
		}
	})
	c := h.dial(client.Options{Name: "holder", OnKeepalive: func(client.Keepalive) {
		keepalives.Add(1)
	}})
	held, err := c.Lock(t.Context(), client.AcquireArgs{Key: "held", TTL: 6 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	e := h.claim()
	claimed.Store(e)
	if _, err := daemon.Inherit(e, h.successor()); err == nil {
		t.Fatal("it goes on too")
	}
	<-done
	if heard > 0 {
		t.Errorf("%d keepalives while nobody serves", heard)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// A process that takes over does not know a store that the configuration does not name any more.
// While keys are held there nothing is passed on: this process serves, or drains.
func TestNothingIsPassedOnWhileAStoreIsLeft(t *testing.T) {
	base, leaves := inMemory(t), inMemory(t)
	h := start(t, base, func(c *daemon.Config) {
		c.Stores = append(c.Stores, daemon.StoreConfig{Name: "leaves", Store: leaves, Close: func() {
			_ = leaves.Close()
		}})
		c.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "a", Store: "leaves"}}
	})
	c := h.dial(client.Options{})
	g := acquire(t, c, client.AcquireArgs{Key: "a"})
	if err := h.d.Reload(serving(base)); err != nil {
		t.Fatal(err)
	}
	err := h.d.Park(func([]int) error {
		t.Error("descriptors are left to the next process")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), `store "leaves"`) {
		t.Error(err)
	}
	if e, err := takeover.Claim(t.Context(), h.socket, "successor"); !errors.Is(err,
		takeover.ErrRefused) || !strings.Contains(err.Error(), `store "leaves"`) {
		t.Error(e, err)
	}
	release(t, c, "a", 0, g.Fence)
	eventually(t, "the store is left", func() bool {
		e, err := takeover.Claim(t.Context(), h.socket, "successor")
		if err == nil {
			e.Close()
		}
		return err == nil
	})
}

// If the manager does not confirm that it keeps the descriptors, the daemon continues. The manager
// may keep all of them. The next process must not use that state.
func TestAStateThatIsNotConfirmedIsOfNoUse(t *testing.T) {
	h := start(t, nil, nil)
	var kept []*os.File
	err := h.d.Park(func(files []int) error {
		for _, fd := range files {
			own, err := syscall.Dup(fd)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, os.NewFile(uintptr(own), "kept"))
		}
		return errKeep
	})
	if !errors.Is(err, errKeep) {
		t.Error(err)
	}
	if s, err := takeover.FindParked(kept); s != nil || !errors.Is(err, takeover.ErrParked) {
		t.Errorf("%+v %v", s, err)
	}
}

// A daemon that is told to end does not wait for a process that is to take over and does not get
// on.
func TestADaemonEndsDuringATakeover(t *testing.T) {
	h := start(t, nil, nil)
	e := h.claim()
	defer e.Close()
	h.stop()
	select {
	case err := <-h.done:
		h.done <- err
	case <-time.After(bound):
		t.Fatal("it waits for the other process")
	}
	if _, err := daemon.Inherit(e, h.successor()); err == nil {
		t.Error("the other process serves")
	}
}
