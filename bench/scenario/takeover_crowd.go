package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol/client"
)

var errFailed = errors.New("a session has failed")

// crowd is sessions that hold locks, and go on calling.
type crowd struct {
	ctx      context.Context
	of       crowdArgs
	members  []*member
	now      atomic.Pointer[passage] // the latest
	stopping chan struct{}
	failed   chan struct{} // closed with the first that fails
	calling  sync.WaitGroup
	pauses   harness.Hist

	mu   sync.Mutex
	errs int   // guarded by mu
	lost int   // guarded by mu
	last error // guarded by mu: of both
}

// crowdArgs say who comes.
type crowdArgs struct {
	sessions, holds int // and locks of each
	// breath is what a session waits between two calls, on average: so long that all of them together
	// leave the machine room, since they share it with the daemon.
	breath time.Duration
}

// passage is a takeover.
type passage struct {
	over   chan struct{}      // closed when the old process has ended
	pauses chan time.Duration // one of each session
}

// member is one session, and one goroutine's.
type member struct {
	*crowd
	c     *client.Client
	holds []*client.Hold
	own   load.Caller
	calm  harness.Hist
	pause time.Duration // the longest call of the takeover under way
	told  *passage      // whose pause is in
}

// gather has sessions connect and take their locks.
func gather(ctx context.Context, socket string, of crowdArgs) (*crowd, error) {
	c := &crowd{ctx: ctx, of: of, stopping: make(chan struct{}), failed: make(chan struct{})}
	lost := func(l client.Lost) { c.fail(&c.lost, fmt.Errorf("%s is lost: %v", l.Key, l.Reason)) }
	for i := range of.sessions {
		conn, err := client.Dial(ctx, socket, client.Options{Name: takeoverScene, OnLost: lost})
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.members = append(c.members, &member{crowd: c, c: conn,
			own: load.Caller{C: conn, Key: crowdKey("own", i)}})
	}
	c.each(func(i int, m *member) error { return m.take(i) })
	if err := c.failure(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func crowdKey(kind string, i int) string {
	return fmt.Sprintf("bench:%s:%s:%d", takeoverScene, kind, i)
}

// each runs do for all at once, and waits.
func (c *crowd) each(do func(i int, m *member) error) {
	var wg sync.WaitGroup
	for i, m := range c.members {
		wg.Go(func() {
			if err := do(i, m); err != nil {
				c.fail(&c.errs, err)
			}
		})
	}
	wg.Wait()
}

// fail counts what must not happen.
func (c *crowd) fail(count *int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		close(c.failed)
	}
	*count++
	c.last = err
}

// failure is the latest of those; nil without any.
func (c *crowd) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// start has all of them call, until stop.
func (c *crowd) start() {
	for _, m := range c.members {
		c.calling.Go(func() {
			if err := m.call(); err != nil {
				c.fail(&c.errs, err)
			}
		})
	}
}

// stop returns how long they have called since began.
func (c *crowd) stop(began time.Time) time.Duration {
	close(c.stopping)
	c.calling.Wait()
	return time.Since(began)
}

// letGo releases all that is held: it is an error if it is not held any more.
func (c *crowd) letGo() {
	c.each(func(_ int, m *member) error {
		for _, h := range m.holds {
			if err := h.Release(c.ctx); err != nil {
				return fmt.Errorf("release %s: %w", h.Key(), err)
			}
		}
		return nil
	})
}

func (c *crowd) close() (err error) {
	for _, m := range c.members {
		err = errors.Join(err, m.c.Close())
	}
	return err
}

// wait lets time pass. It ends early when something has failed.
func (c *crowd) wait(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-c.failed:
		return errFailed
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
}

// during runs a takeover, and gathers what each session has noticed of it.
func (c *crowd) during(takeover func() error) error {
	p := &passage{make(chan struct{}), make(chan time.Duration, len(c.members))}
	c.now.Store(p)
	err := takeover()
	close(p.over)
	for range c.members {
		if err != nil {
			break
		}
		select {
		case pause := <-p.pauses:
			c.pauses.Add(pause)
		case <-c.failed:
			err = errFailed
		case <-c.ctx.Done():
			err = c.ctx.Err()
		}
	}
	return err
}

func (m *member) take(i int) error {
	for n := range m.of.holds {
		h, err := m.c.Lock(m.ctx, client.AcquireArgs{Key: crowdKey(strconv.Itoa(i), n)})
		if err != nil {
			return fmt.Errorf("take: %w", err)
		}
		m.holds = append(m.holds, h)
	}
	return nil
}

// call makes one call after the other, with a pause after each.
func (m *member) call() error {
	pause := time.NewTimer(rand.N(m.of.breath))
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-m.stopping:
			return nil
		}
		if err := m.timed(); err != nil {
			return err
		}
		pause.Reset(load.Breath(m.of.breath))
	}
}

// timed makes a call, and counts its time to the takeover in which it was under way, if there was
// one.
func (m *member) timed() error {
	p := m.now.Load()
	last := p != nil && isOver(p)
	began := time.Now()
	if err := m.own.Call(m.ctx); err != nil {
		return err
	}
	took := time.Since(began)
	if now := m.now.Load(); now != p {
		p, last = now, false
	}
	if p == m.told {
		m.calm.Add(took)
		return nil
	}
	if m.pause = max(m.pause, took); last { // it was begun when the old process had ended
		p.pauses <- m.pause
		m.pause, m.told = 0, p
	}
	return nil
}

func isOver(p *passage) bool {
	select {
	case <-p.over:
		return true
	default:
		return false
	}
}

// metrics are of all of them, when they have ended. took are the takeovers' times.
func (c *crowd) metrics(lasted time.Duration, took []time.Duration) harness.Metrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	var calm harness.Hist
	calls := 0
	for _, m := range c.members {
		calls += m.own.Calls
		calm.Merge(&m.calm)
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	m := harness.Metrics{
		"ops_s": float64(calls) / lasted.Seconds(), "errors": float64(c.errs), "lost": float64(c.lost),
		"pause_p50_ms": ms(c.pauses.Quantile(0.5)), "pause_p99_ms": ms(c.pauses.Quantile(0.99)),
		"pause_max_ms": ms(c.pauses.Max()),
		"calm_p50_ms":  ms(calm.Quantile(0.5)), "calm_p99_ms": ms(calm.Quantile(0.99)),
		"calm_max_ms": ms(calm.Max()),
	}
	if len(took) > 0 {
		slices.Sort(took)
		m["took_ms"], m["took_max_ms"] = ms(took[len(took)/2]), ms(took[len(took)-1])
	}
	return m
}
