package scenario

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// One client holds a million locks, and then its connection ends. The scene measures the memory of
// a lock, how soon others can acquire all the keys, and what another session notices meanwhile.

const (
	millionWindow = 512  // acquires in flight
	samples       = 2000 // number of keys that are checked
	settle        = 5 * time.Second
	scrapes       = 9
)

func million(e *Env) error {
	const scene = "million"
	n := 1_000_000
	if e.Short {
		n = 100_000
	}
	for round := range min(e.Rounds, 3) {
		m, err := e.millionOnce(scene, n)
		if err != nil {
			return err
		}
		e.Report.Add(scene, fmt.Sprintf("%d locks", n), m)
		e.Logf("%s %d  %.0f B a lock (%.0f at most), taken in %.1f s, free in %.2f s, another's p99 %.2f ms", scene, round+1,
			m["rss_b_lock"], m["peak_b_lock"], m["take_s"], m["free_s"], m["other_p99_ms"])
	}
	rep, name := e.Report, fmt.Sprintf("%d locks", n)
	rep.AtMost("resident bytes a held lock", rep.Values(scene, name, "rss_b_lock"), 800)
	rep.AtMost("a scrape meanwhile, ms", rep.Values(scene, name, "scrape_ms"), 50)
	rep.AtMost("all free after a disconnect, s", rep.Values(scene, name, "free_s"), 10)
	rep.AtMost("another session's round trip meanwhile, p99 ms",
		rep.Values(scene, name, "other_p99_ms"), 50)
	return nil
}

func (e *Env) millionOnce(scene string, n int) (harness.Metrics, error) {
	d, err := e.daemon("memory:")
	if err != nil {
		return nil, err
	}
	defer e.stop(scene, d)
	empty := harness.RSS(d.PID())
	var lost error
	holder, err := client.Dial(e.Ctx, d.Socket, client.Options{Name: "holder",
		OnLost: func(l client.Lost) {
			lost = fmt.Errorf("%s was lost: %v", l.Key, l.Reason)
		}})
	if err != nil {
		return nil, err
	}
	defer holder.Close()
	began := time.Now()
	if err := takeAll(e.Ctx, holder, n, 0); err != nil {
		return nil, fmt.Errorf("take %d locks: %w", n, err)
	}
	took := time.Since(began)
	cpu := harness.CPU(d.PID())
	time.Sleep(settle) // lets garbage be collected; keepalives and renewals continue
	held := harness.RSS(d.PID())
	m := harness.Metrics{
		"take_s":        took.Seconds(),
		"rss_b_lock":    float64(held-empty) / float64(n),
		"peak_b_lock":   float64(harness.PeakRSS(d.PID())-empty) / float64(n),
		"empty_rss_mib": float64(empty) / mib,
		"held_cpu_pct":  100 * (harness.CPU(d.PID()) - cpu).Seconds() / settle.Seconds(),
	}
	if m["scrape_ms"], err = e.scrape(d); err != nil {
		return nil, err
	}
	if err := e.letGo(d, holder, n, m); err != nil {
		return nil, err
	}
	if lost != nil { // the reader has ended, so lost does not change any more
		e.Report.Fault("%s: %v", scene, lost)
	}
	return m, nil
}

// scrape returns the median time, in milliseconds, of reading the daemon's metrics.
func (e *Env) scrape(d *Daemon) (float64, error) {
	s := newScraper(d)
	defer s.close()
	var took []float64
	for range scrapes {
		began := time.Now()
		if err := s.once(e.Ctx); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(began))/float64(time.Millisecond))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// takeAll acquires every key, with a bounded number in flight. A ttl of 0 means the daemon's.
func takeAll(ctx context.Context, c *client.Client, n int, ttl time.Duration) error {
	room := make(chan struct{}, millionWindow)
	var mu sync.Mutex
	var failed error
	q := protocol.Request{Op: protocol.OpAcquire, Owner: 1, TTL: uint64(ttl.Milliseconds())}
	done := func(r *client.Reply) {
		if r.Err != nil {
			mu.Lock()
			failed = errors.Join(failed, r.Err)
			mu.Unlock()
		}
		<-room
	}
	for i := range n {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		q.Key = load.RenewKey(q.Key[:0], i)
		if _, err := c.Go(&q, done); err != nil {
			return err
		}
	}
	for range millionWindow { // all requests are answered when the whole window is free
		room <- struct{}{}
	}
	mu.Lock()
	defer mu.Unlock()
	return failed
}

// letGo ends the holder's connection and observes in two ways. One session checks sampled keys
// until all are free, and another measures its own round trips.
func (e *Env) letGo(d *Daemon, holder *client.Client, n int, m harness.Metrics) error {
	look, err := client.Dial(e.Ctx, d.Socket, client.Options{Name: "look"})
	if err != nil {
		return err
	}
	defer look.Close()
	other, err := client.Dial(e.Ctx, d.Socket, client.Options{Name: "other"})
	if err != nil {
		return err
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(e.Ctx, 2*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	trips := make(chan tripResult, 1)
	go func() { trips <- roundTrips(ctx, other, stop) }()
	began := time.Now()
	holder.Close()
	err = allFree(ctx, look, n)
	free := time.Since(began)
	close(stop)
	t := <-trips
	if err = errors.Join(err, t.err); err != nil {
		return err
	}
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	m["free_s"] = free.Seconds()
	m["other_p50_ms"], m["other_p99_ms"], m["other_max_ms"] = ms(t.hist.Quantile(0.5)),
		ms(t.hist.Quantile(0.99)), ms(t.hist.Max())
	m["other_trips"] = float64(t.hist.N())
	return nil
}

type tripResult struct {
	hist harness.Hist
	err  error
}

// roundTrips acquires and releases keys that nothing else uses, one after the other, and measures
// every request.
func roundTrips(ctx context.Context, c *client.Client, stop <-chan struct{}) (t tripResult) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return t
		default:
		}
		key := fmt.Sprintf("bench:other:%d", i%1000)
		began := time.Now()
		g, err := c.Acquire(ctx, client.AcquireArgs{Key: key})
		if err != nil {
			t.err = fmt.Errorf("another session: %w", err)
			return t
		}
		between := time.Now()
		t.hist.Add(between.Sub(began))
		if _, err = c.Release(ctx, client.ReleaseArgs{Key: key, Fence: g.Fence}); err != nil {
			t.err = fmt.Errorf("another session: %w", err)
			return t
		}
		t.hist.Add(time.Since(between))
	}
}

// allFree returns when every sampled key is free, and the daemon lists no key any more.
func allFree(ctx context.Context, c *client.Client, n int) error {
	left := map[string]bool{}
	for i := range samples {
		left[string(load.RenewKey(nil, i*n/samples))] = true
		left[string(load.RenewKey(nil, rand.IntN(n)))] = true
	}
	left[string(load.RenewKey(nil, n-1))] = true
	for key := range left {
		for {
			s, err := c.Inspect(ctx, key)
			if err != nil {
				return fmt.Errorf("look at %s: %w", key, err)
			}
			if s.Held == protocol.HeldNot {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	for {
		rows, next, err := c.List(ctx, "bench:million:", "", 1)
		if err != nil {
			return fmt.Errorf("list what is left: %w", err)
		}
		if len(rows) == 0 && next == "" {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}
