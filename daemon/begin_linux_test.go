package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/engine/enginetest"
	"github.com/locksidecar/locksidecar/upstream"
)

// unreachable is a store that does not answer.
type unreachable struct {
	why   error
	looks func() // called whenever somebody asks what kind of store it is
}

func (s *unreachable) Apply(context.Context, []upstream.Op,
	[]upstream.Result) error {
	return s.why
}
func (s *unreachable) Ping(context.Context) error        { return s.why }
func (s *unreachable) Hints() <-chan upstream.Hint       { return nil }
func (s *unreachable) Sessions() <-chan upstream.Session { return nil }
func (s *unreachable) Close() error                      { return nil }

func (*unreachable) Capabilities() (none upstream.Capabilities) { return none }

func (s *unreachable) Info() upstream.Info {
	s.looks()
	return upstream.Info{Name: "unreachable", Timeout: time.Second}
}

// A store was down when it was taken over, and still is. The first news of that come while the
// process that has taken over still begins: they count.
func TestAStoreThatIsDownStaysDownOverATakeover(t *testing.T) {
	now := fmt.Errorf("%w: now", upstream.ErrDown)
	var d *Daemon
	var begins atomic.Bool
	first := &unreachable{why: now, looks: func() {}}
	second := &unreachable{why: now, looks: func() { // it is started behind the first one
		end := time.Now().Add(30 * time.Second)
		for begins.Load() && !errors.Is(d.engine.StoreNamed("first").Down(), now) &&
			time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
	}}
	d, err := Listen(Config{Socket: filepath.Join(t.TempDir(), "s.sock"), Serving: Serving{
		Stores:     []StoreConfig{{Name: "first", Store: first}, {Name: "second", Store: second}},
		Namespaces: []engine.Namespace{{Store: "first"}, {Prefix: "second:", Store: "second"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, sl := range d.engine.Stores() {
		d.engine.StoreDown(sl, errors.New("before"))
	}
	d.timer.Pause()
	d.inherited = &inherited{}
	begins.Store(true)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx) }()
	<-d.started
	if !errors.Is(d.engine.StoreNamed("first").Down(), now) {
		t.Error("it is taken to be up")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A takeover that fails may take as long as the daemon may stand still. Nobody's stated validity
// ends meanwhile, whatever makes it short.
func TestAStandstillIsShorterThanWhatIsStated(t *testing.T) {
	for _, c := range []struct {
		name string
		ns   engine.Namespace
		info upstream.Info
		most time.Duration
	}{
		{"ttl", engine.Namespace{TTL: 20 * time.Second}, upstream.Info{}, 2 * time.Second},
		{"heartbeat", engine.Namespace{TTL: 30 * time.Second, Heartbeat: time.Second}, upstream.Info{},
			time.Second / 3},
		{"store session", engine.Namespace{TTL: time.Hour}, upstream.Info{Session: 6 * time.Second},
			2 * time.Second},
		{"anything", engine.Namespace{TTL: time.Hour}, upstream.Info{}, maxFreeze},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := func() int64 { return int64(time.Hour) }
			e := enginetest.New(t, clock, c.info, 0)
			if err := e.Route([]engine.Namespace{c.ns}, nil); err != nil {
				t.Fatal(err)
			}
			if c.info.Session > 0 {
				e.StoreSession(e.Lane, upstream.Session{No: 1, Until: clock() + int64(c.info.Session)})
			}
			e.Lock(t, e.Greet(engine.Unknown, "test", ""), 1)
			if is := (&Daemon{engine: e.Engine}).freezeTime(); is != c.most {
				t.Errorf("%v, want %v", is, c.most)
			}
		})
	}
}

// A dropped store without leases has a request in flight when a takeover begins. The takeover waits
// for it.
func TestATakeoverWaitsForTheLastRequestOfADroppedStore(t *testing.T) {
	first, second := &unreachable{looks: func() {}}, &unreachable{looks: func() {}}
	d, err := Listen(Config{Socket: filepath.Join(t.TempDir(), "s.sock"), Serving: Serving{
		Stores:     []StoreConfig{{Name: "first", Store: first}, {Name: "second", Store: second}},
		Namespaces: []engine.Namespace{{Store: "first"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.discard()
	sl := d.engine.StoreNamed("second")
	sl.Main().Push(cache.Op{Kind: cache.OpPeek, Key: "k", Ref: new(cache.Lease), Gen: 1})
	last := sl.Main().Next()
	d.transferring.Lock()
	defer d.transferring.Unlock()
	for _, v := range d.stores.list() {
		v.dropped = v.lane == sl
	}
	done := make(chan error, 1)
	go func() { done <- d.stores.closeDropped() }()
	time.Sleep(20 * time.Millisecond) // so that it would have failed, if it did not wait
	sl.Main().Done(last)
	if err := <-done; err != nil {
		t.Error(err)
	}
	d.stores.wg.Wait()
}
