package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// real is the real daemon, in this process.
type real struct {
	t      *T
	socket string // the daemon's own; the client connects to a relay, which notes the frames
	stop   func() // stops the daemon at once and waits; may be called again
}

// startTime is how long the runner tries to start a daemon.
const startTime = 5 * time.Second

// real starts a daemon at the client's socket.
func (t *T) real(spaces ...engine.Namespace) *real {
	store, err := embedded.Open(embedded.Options{Clock: renewer.Boottime})
	t.must(err)
	socket := filepath.Join(t.dir, "d")
	cfg := daemon.Config{Socket: socket, SocketMode: 0o600, Version: "conformance",
		Serving: daemon.Serving{
			Stores:     []daemon.StoreConfig{{Name: "store", Store: store}},
			Namespaces: append([]engine.Namespace{{Store: "store"}}, spaces...),
		}}
	d, err := daemon.Listen(cfg)
	for end := time.Now().Add(startTime); errors.Is(err, daemon.ErrInUse) && time.Now().Before(end); d,
		err = daemon.Listen(cfg) {
		// A program that is being started keeps the earlier daemon's lock file open until it runs.
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		_ = store.Close()
		t.must(err)
	}
	done := make(chan struct{})
	go func() {
		_ = d.Serve(context.Background()) // only Stop ends it
		close(done)
	}()
	way := t.relay(socket)
	r := &real{t: t, socket: socket}
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		d.Stop()
		<-done
		way.close()
		_ = store.Close()
	}
	t.defers(r.stop)
	return r
}

// peer is the runner itself, as another client of the same daemon.
type peer struct {
	t *T
	c *client.Client
}

// rival is the owner that the peer uses.
const rival = 1000

func (r *real) peer() *peer {
	c, err := client.Dial(r.t.ctx, r.socket, client.Options{Name: "conformance"})
	r.t.must(err)
	r.t.defers(func() { _ = c.Close() })
	return &peer{r.t, c}
}

// try tries to acquire key, and returns the result.
func (p *peer) try(key string, shared bool) (Fence, error) {
	a := client.AcquireArgs{Key: key, Owner: rival}
	if shared {
		a.Mode = protocol.Shared
	}
	g, err := p.c.Acquire(p.t.ctx, a)
	return Fence(g.Fence), err
}

// excluded fails the scenario unless another session holds the key, so that the peer cannot acquire
// it.
func (p *peer) excluded(key, when string) {
	switch f, err := p.try(key, false); {
	case err == nil:
		p.release(key, f)
		p.t.failf("%s: another session got %q", when, key)
	case !errors.Is(err, client.ErrBusy):
		p.t.must(err)
	}
}

// acquire waits for the key.
func (p *peer) acquire(key, why string) Fence {
	g, err := p.c.Acquire(p.t.ctx, client.AcquireArgs{Key: key, Owner: rival, Wait: client.Forever})
	if p.t.ctx.Err() != nil {
		p.t.timeout(fmt.Sprintf("another session to get %.40q: %s", key, why))
	}
	p.t.must(err)
	return Fence(g.Fence)
}

func (p *peer) release(key string, f Fence) {
	_, err := p.c.Release(p.t.ctx, client.ReleaseArgs{Key: key, Owner: rival, Fence: uint64(f)})
	p.t.must(err)
}

// free fails the scenario unless the key becomes free.
func (p *peer) free(key, why string) { p.release(key, p.acquire(key, why)) }

// waiters waits until n acquires wait for the key.
func (p *peer) waiters(key string, n uint64) {
	p.t.poll(fmt.Sprintf("%d waiters of %q", n, key), func() bool {
		s, err := p.c.Inspect(p.t.ctx, key)
		p.t.must(err)
		return s.Waiters == n
	})
}

// gone removes the socket, as if there had never been a daemon.
func (t *T) gone() { _ = os.Remove(t.socket) }

// soon is a wait that ends soon.
const soon = 50 * time.Millisecond

// timesOut checks that an acquire with the wait soon fails with timeout. On a busy machine, a
// client may send the request only after the wait is over. Then it may send a try, which fails with
// busy.
func (t *T) timesOut(acquire func() *pending) {
	began := time.Now()
	if acquire().fails("timeout", "busy") == "busy" && time.Since(began) < soon {
		t.failf("an acquire with a wait of %v failed with busy and did not wait", soon)
	}
}
