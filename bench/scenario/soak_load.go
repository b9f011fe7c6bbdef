package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

const (
	soakSessions = 4                // sessions that stay, per host
	soakKeys     = 500              // keys of all sessions
	soakHot      = 4                // the part of the keys that is used most
	soakWait     = 30 * time.Second // limit of a wait, which no wait may reach
	soakInside   = 5 * time.Millisecond
	soakPause    = 40 * time.Millisecond  // between two locks of a session, on average
	soakVisit    = 250 * time.Millisecond // between two visitors of a host
)

// soaked is the load of the scene.
type soaked struct {
	e              *Env
	done, visitors atomic.Int64
	failed         chan error // has the first error
	cancel         context.CancelFunc
	wg             sync.WaitGroup
}

// soaking starts the sessions, which run until stop.
func (e *Env) soaking(t twins) (*soaked, error) {
	s := &soaked{e: e, failed: make(chan error, 1)}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(e.Ctx)
	for _, d := range t {
		for range soakSessions {
			c, err := client.Dial(ctx, d.Socket, client.Options{Name: soakScene})
			if err != nil {
				s.stop()
				return nil, err
			}
			s.wg.Go(func() {
				defer c.Close()
				s.each(ctx, soakPause, func() error { return s.some(c) })
			})
		}
		s.wg.Go(func() { s.each(ctx, soakVisit, func() error { return s.visit(d.Socket) }) })
	}
	return s, nil
}

// stop ends the sessions and waits for them.
func (s *soaked) stop() {
	s.cancel()
	s.wg.Wait()
}

// each calls do again and again, until an error.
func (s *soaked) each(ctx context.Context, pause time.Duration, do func() error) {
	for {
		select {
		case <-time.After(rand.N(2 * pause)):
		case <-ctx.Done():
			return
		}
		if err := do(); err != nil {
			select {
			case s.failed <- err:
			default:
			}
			return
		}
		s.done.Add(1)
	}
}

func soakKey() string {
	if rand.IntN(4) == 0 {
		return fmt.Sprintf("bench:soak:%d", rand.IntN(soakHot))
	}
	return fmt.Sprintf("bench:soak:%d", rand.IntN(soakKeys))
}

// some does one thing that programs do with locks.
func (s *soaked) some(c *client.Client) error {
	ctx := s.e.Ctx
	a := client.AcquireArgs{Key: soakKey(), Wait: soakWait}
	switch rand.IntN(10) {
	case 0:
		a.Wait = 0
	case 1, 2:
		a.Mode = protocol.Shared
	case 3:
		a.Key, a.Permits = "bench:soak:permits", 3
	case 4:
		return s.runOut(ctx, c)
	case 5:
		return s.several(ctx, c)
	case 6:
		_, err := c.Inspect(ctx, a.Key)
		return err
	}
	h, err := c.Lock(ctx, a)
	if errors.Is(err, client.ErrBusy) && a.Wait == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", a.Key, err)
	}
	time.Sleep(rand.N(soakInside))
	if a.Mode == protocol.Exclusive && a.Permits == 0 && rand.IntN(4) == 0 {
		if err := h.Downgrade(ctx); err != nil {
			return fmt.Errorf("downgrade %s: %w", a.Key, err)
		}
	}
	if err := h.Release(ctx); err != nil {
		return fmt.Errorf("release %s: %w", a.Key, err)
	}
	return nil
}

// runOut holds a fixed lock until it is reported lost.
func (s *soaked) runOut(ctx context.Context, c *client.Client) error {
	ttl := time.Duration(c.Welcome().MinTTL) * time.Millisecond
	h, err := c.Lock(ctx, client.AcquireArgs{Key: soakKey(), Wait: soakWait, TTL: ttl, Fixed: true})
	if errors.Is(err, client.ErrUnavailable) {
		return nil // it has run out before its grant came; other acquires notice a store that is down
	}
	if err != nil {
		return fmt.Errorf("lock for %v: %w", ttl, err)
	}
	select {
	case <-h.Gone():
		// Otherwise its owner could not acquire the key again.
		if err := h.Release(ctx); !errors.Is(err, client.ErrNotHeld) {
			return fmt.Errorf("release %s, which has run out: %w", h.Key(), err)
		}
		return nil
	case <-time.After(time.Minute):
		return fmt.Errorf("%s, for %v, is still there after a minute", h.Key(), ttl)
	}
}

func (s *soaked) several(ctx context.Context, c *client.Client) error {
	from := rand.IntN(soakKeys - 3)
	keys := make([]string, 3)
	for i := range keys {
		keys[i] = fmt.Sprintf("bench:soak:%d", from+i)
	}
	hs, err := c.LockMany(ctx, keys, client.AcquireArgs{Wait: soakWait})
	if err != nil {
		return fmt.Errorf("lock several: %w", err)
	}
	if err := hs.Release(ctx); err != nil {
		return fmt.Errorf("release several: %w", err)
	}
	return nil
}

// visit connects, acquires a lock, begins to wait for another, and disappears.
func (s *soaked) visit(socket string) error {
	c, err := client.Dial(s.e.Ctx, socket, client.Options{Name: "visitor"})
	if err != nil {
		return err
	}
	defer c.Close()
	s.visitors.Add(1)
	if _, err := c.Lock(s.e.Ctx, client.AcquireArgs{Key: soakKey(), Owner: 1,
		Wait: soakWait}); err != nil {
		return fmt.Errorf("visitor's lock: %w", err)
	}
	_, err = c.Go(&protocol.Request{Op: protocol.OpAcquire, Owner: 2, Key: []byte(soakKey()),
		Wait: protocol.WaitAlways}, func(*client.Reply) {})
	time.Sleep(rand.N(soakInside))
	return err
}
