package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// This scene measures what one lock, waiter, session, renewal and pair costs the daemon in memory,
// CPU and file descriptors, and in store commands. docs/operate/sizing.md uses the results. Each
// part has a new daemon, whose own cost is subtracted. CPU time is the clock of the process.

const (
	sizingScene    = "sizing"
	sizedHolds     = 100_000
	sizedWaiters   = 50_000
	sizedKeys      = 100 // the keys of the waiters
	sizedSessions  = 4000
	sizedCallers   = 64
	sizingSettle   = 3 * time.Second // time to collect the garbage of the step before
	sizingWindow   = 8 * time.Second
	sizingRenewTTL = 10 * time.Second
)

// sizedRenewals are the numbers of locks that become due in a little less than a third of that TTL.
var sizedRenewals = []int{300, 3000, 9000}

func sizing(e *Env) error {
	for range min(e.Rounds, 3) {
		for _, store := range []string{"embedded", "redis"} {
			z := &sized{e: e, store: store}
			if err := inTurn(z.with(z.holds), z.with(z.waiters), z.with(z.sessions), z.renewals,
				z.with(z.pairs)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sized is the part of one store.
type sized struct {
	e     *Env
	store string
	redis *harness.Redis // nil for the embedded store
	d     *Daemon
	c     *client.Client
	lost  error // written by the client's reader, and read when that has ended
}

// with runs part on a new daemon and a new server.
func (z *sized) with(part func() error) func() error {
	return func() (err error) {
		if z.redis = nil; z.store == "redis" {
			var stop func()
			if z.redis, z.d, stop, err = z.e.redisDaemon(sizingScene); err != nil {
				return err
			}
			defer stop()
		} else {
			if z.d, err = z.e.daemon("memory:"); err != nil {
				return err
			}
			defer z.e.stop(sizingScene, z.d)
		}
		z.c, err = client.Dial(z.e.Ctx, z.d.Socket,
			client.Options{Name: "sizing", OnLost: func(l client.Lost) {
				z.lost = fmt.Errorf("%s was lost: %v", l.Key, l.Reason)
			}})
		if err != nil {
			return err
		}
		err = part()
		if err = errors.Join(err, z.c.Close()); z.lost != nil {
			z.e.Report.Fault("%s: %v", sizingScene, z.lost)
			z.lost = nil
		}
		return err
	}
}

func (z *sized) some(n int) int {
	if z.e.Short {
		return n / 10
	}
	return n
}

func (z *sized) add(row string, m harness.Metrics) {
	row = z.store + ": " + row
	z.e.Report.Add(sizingScene, row, m)
	z.e.Logf("%s  %-42s %v", sizingScene, row, m)
}

func (z *sized) rss() float64 { return float64(harness.RSS(z.d.PID())) }

// spent is what is used up over a time.
type spent struct {
	cpu, storeCPU           time.Duration
	commands, calls, renews float64
	took                    time.Duration
}

// over measures what do uses up.
func (z *sized) over(do func() error) (s spent, err error) {
	var before, after harness.RedisInfo
	if z.redis != nil {
		if before, err = z.redis.Info(); err != nil {
			return s, err
		}
	}
	cpu, began := harness.CPU(z.d.PID()), time.Now()
	if err = do(); err != nil {
		return s, err
	}
	s.cpu, s.took = harness.CPU(z.d.PID())-cpu, time.Since(began)
	if z.redis != nil {
		after, err = z.redis.Info()
	}
	s.storeCPU, s.commands = after.CPU-before.CPU, after.Calls-before.Calls
	s.calls, s.renews = after.Scripts-before.Scripts, after.Renewals-before.Renewals
	return s, err
}

// each divides s by n.
func (z *sized) each(s spent, n float64) harness.Metrics {
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) / n }
	m := harness.Metrics{"cpu_us": us(s.cpu)}
	if z.redis != nil {
		m["store_cpu_us"], m["store_commands"], m["store_calls"] = us(s.storeCPU), s.commands/n, s.calls/n
	}
	return m
}

func (z *sized) window() time.Duration { return time.Duration(z.some(int(sizingWindow))) }

// wait waits for the time of a window.
func (z *sized) wait() error {
	time.Sleep(z.window())
	return z.e.Ctx.Err()
}

// holds measures one session with many locks, which the daemon renews.
func (z *sized) holds() error {
	n, before := z.some(sizedHolds), z.rss()
	if err := takeAll(z.e.Ctx, z.c, n, 0); err != nil {
		return err
	}
	time.Sleep(sizingSettle)
	m := harness.Metrics{"bytes": (z.rss() - before) / float64(n)}
	s, err := z.over(z.wait)
	if err != nil {
		return err
	}
	m["cpu_us_s"] = float64(s.cpu) / float64(time.Microsecond) / float64(n) / s.took.Seconds()
	z.add("a held lock", m)
	if s.renews > 0 {
		z.add("a renewal, many due at once", z.each(s, s.renews))
	}
	return nil
}

// waiters measures one session that waits for keys that another holds.
func (z *sized) waiters() error {
	holder, err := client.Dial(z.e.Ctx, z.d.Socket, client.Options{Name: "holder"})
	if err != nil {
		return err
	}
	defer holder.Close()
	if err := takeAll(z.e.Ctx, holder, sizedKeys, 0); err != nil {
		return err
	}
	n, before := z.some(sizedWaiters), z.rss()
	q := protocol.Request{Op: protocol.OpAcquire, Wait: -1}
	for i := range n {
		q.Owner, q.Key = uint64(i), load.RenewKey(q.Key[:0], i%sizedKeys)
		if _, err := z.c.Go(&q, func(*client.Reply) {}); err != nil {
			return err
		}
	}
	if _, err := z.c.Ping(z.e.Ctx); err != nil { // answered after all of the acquires
		return err
	}
	time.Sleep(sizingSettle)
	z.add("a waiter", harness.Metrics{"bytes": (z.rss() - before) / float64(n)})
	return nil
}

// sessions measures many connections that do nothing, and then hold a lock each.
func (z *sized) sessions() error {
	n, before, files := z.some(sizedSessions), z.rss(), harness.Descriptors(z.d.PID())
	all := make([]*client.Client, 0, n)
	defer func() {
		for _, c := range all {
			c.Close()
		}
	}()
	for range n {
		c, err := client.Dial(z.e.Ctx, z.d.Socket, client.Options{Name: "sizing"})
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	measure := func(row string) error {
		time.Sleep(sizingSettle)
		m := harness.Metrics{"bytes": (z.rss() - before) / float64(n),
			"files": float64(harness.Descriptors(z.d.PID())-files) / float64(n)}
		s, err := z.over(z.wait)
		m["cpu_us_s"] = float64(s.cpu) / float64(time.Microsecond) / float64(n) / s.took.Seconds()
		if z.redis != nil {
			m["store_conns"] = float64(z.redis.Clients())
		}
		z.add(row, m)
		return err
	}
	if err := measure("a session"); err != nil {
		return err
	}
	for i, c := range all {
		if _, err := c.Acquire(z.e.Ctx, client.AcquireArgs{Key: string(load.RenewKey(nil,
			i))}); err != nil {
			return err
		}
	}
	return measure("a session with a lock")
}

// renewals measures locks that become due one by one.
func (z *sized) renewals() error {
	if z.store == "embedded" {
		return nil // it has no renewals
	}
	for _, n := range sizedRenewals {
		if err := z.with(func() error { return z.dueEvenly(z.some(n)) })(); err != nil {
			return err
		}
	}
	return nil
}

func (z *sized) dueEvenly(n int) error {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = string(load.RenewKey(nil, i))
	}
	if err := holdEvenly(z.e.Ctx, z.c, keys, sizingRenewTTL, sizingRenewTTL/3); err != nil {
		return err
	}
	s, err := z.over(z.wait)
	if err == nil && s.renews == 0 {
		err = errors.New("nothing was renewed")
	}
	if err == nil {
		m := z.each(s, s.renews)
		m["renewals_s"] = s.renews / s.took.Seconds()
		z.add(fmt.Sprintf("a renewal, of %d locks one by one", n), m)
	}
	return err
}

// pairs measures callers that acquire and release keys of their own.
func (z *sized) pairs() error {
	for _, callers := range []int{1, sizedCallers} {
		done, err := 0.0, error(nil)
		s, e := z.over(func() error {
			done, err = pairsFor(z.e.Ctx, z.c, callers, z.window()/3)
			return err
		})
		if e != nil {
			return e
		}
		z.add(fmt.Sprintf("acquire and release, %d at a time", callers), z.each(s, done))
	}
	return nil
}

func pairsFor(ctx context.Context, c *client.Client, callers int,
	long time.Duration) (float64, error) {
	keys := make([]string, callers)
	for i := range keys {
		keys[i] = string(load.RenewKey(nil, i))
	}
	u := churning(ctx, keys, c)
	defer u.stop()
	over := time.NewTimer(long)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	u.stop()
	return u.count()
}
