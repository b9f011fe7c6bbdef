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

// crowd has sessions that hold locks, and make calls.
type crowd struct {
	ctx      context.Context
	of       crowdArgs
	members  []*member
	now      atomic.Pointer[passage] // the latest takeover
	stopping chan struct{}
	failed   chan struct{} // closed when the first session fails
	calling  sync.WaitGroup
	pauses   harness.Hist

	mu   sync.Mutex
	errs int   // guarded by mu
	lost int   // guarded by mu
	last error // guarded by mu: the last error or loss
}

// crowdArgs describes the sessions.
type crowdArgs struct {
	sessions, holds int // number of sessions, and of locks per session
	// breath is the average pause of a session between two calls. It is so long that all sessions
	// together leave the machine room, since they share it with the daemon.
	breath time.Duration
}

// passage is one takeover.
type passage struct {
	over   chan struct{}      // closed when the old process has ended
	pauses chan time.Duration // one per session
}

// member is one session, which one goroutine uses.
type member struct {
	*crowd
	c     *client.Client
	holds []*client.Hold
	own   load.Caller
	calm  harness.Hist
	pause time.Duration // the longest call of the takeover in progress
	told  *passage      // the takeover whose pause was reported
}

// gather connects the sessions, which acquire their locks.
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

// each calls do for all sessions at once, and waits.
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

// fail counts a fault.
func (c *crowd) fail(count *int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		close(c.failed)
	}
	*count++
	c.last = err
}

// failure returns the latest fault, or nil if there is none.
func (c *crowd) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// start makes all sessions call, until stop.
func (c *crowd) start() {
	for _, m := range c.members {
		c.calling.Go(func() {
			if err := m.call(); err != nil {
				c.fail(&c.errs, err)
			}
		})
	}
}

// stop returns for how long the sessions have made calls since began.
func (c *crowd) stop(began time.Time) time.Duration {
	close(c.stopping)
	c.calling.Wait()
	return time.Since(began)
}

// letGo releases all locks. A lock that is not held any more is an error.
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

// wait waits for d. It ends early after a failure.
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

// during runs a takeover, and collects what each session has noticed of it.
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

// timed makes a call. If a takeover was in progress, it counts the time for that takeover.
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
	if m.pause = max(m.pause, took); last { // it began when the old process had ended
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

// metrics returns the results of all sessions, after they have ended. took has the times of the
// takeovers.
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
