package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// 5,000 sessions on ten hosts wait for one key that another session holds. When the key is
// released, each session gets it once and releases it at once. All sessions are in this process,
// which checks who is inside. Hosts are served in turn, and make at most eight grants while other
// hosts wait. So a grant costs the store an eighth of a handoff between hosts. The times are those
// of the waits, counted from the moment when the key is released.

const (
	herdScene   = "herd"
	herdHosts   = 10
	herdWaiters = 500 // per host
	herdShort   = 30
	herdBound   = 2 * time.Minute
	herdCalls   = 4 // store commands per grant
	herdKey     = "bench:herd"
)

func herds(e *Env) error {
	unbuilt := e.buildEtcd()
	if unbuilt != nil {
		e.Report.Note("%s: etcd could not be built: %v", herdScene, unbuilt)
	}
	rep := e.Report
	for range min(e.Rounds, 3) {
		if err := e.herdOnRedis(); err != nil {
			return fmt.Errorf("redis: %w", err)
		}
		if unbuilt != nil {
			continue
		}
		if err := e.herdOnEtcd(); err != nil {
			return fmt.Errorf("etcd: %w", err)
		}
	}
	rep.AtMost("a herd at one key of one Redis, commands a grant",
		rep.Values(herdScene, "redis", "redis_calls_op"), herdCalls)
	for _, store := range []string{"redis", "etcd"} {
		rep.AtLeast("… "+store+", fairness between hosts at half of all grants, Jain",
			rep.Values(herdScene, store, "jain"), 0.9, 0)
		rep.Limit("… "+store+", the longest wait of all, s", rep.Values(herdScene, store, "longest_s"))
	}
	return nil
}

func (e *Env) herdOnRedis() error {
	r, err := e.redis()
	if err != nil {
		return err
	}
	defer r.Stop()
	return e.herd("redis", "redis://"+r.Addr, harness.Watch{Redis: []*harness.Redis{r}})
}

func (e *Env) herdOnEtcd() error {
	srv, err := e.etcd()
	if err != nil {
		return err
	}
	defer srv.Stop()
	return e.herd("etcd", "etcd://"+srv.Addr, harness.Watch{Stores: []int{srv.PID()}})
}

// herd runs one round on one store.
func (e *Env) herd(store, upstream string, w harness.Watch) (err error) {
	h := &stampede{e: e, waiters: herdWaiters}
	if e.Short {
		h.waiters = herdShort
	}
	defer h.end()
	for range herdHosts {
		d, err := e.daemon(upstream)
		if err != nil {
			return err
		}
		h.daemons = append(h.daemons, d)
		w.Beside = append(w.Beside, d.PID())
	}
	m, err := h.run(w)
	if err != nil {
		return err
	}
	e.Report.Add(herdScene, store, m)
	e.Logf("%s  %-6s %d grants in %.2f s, waits p50 %.2f, p99 %.2f s; Jain %.3f; %.2f commands a grant", herdScene, store, h.waiters*herdHosts,
		m["herd_s"], m["p50_us"]/1e6, m["p99_us"]/1e6, m["jain"], m["redis_calls_op"])
	return nil
}

// stampede has the hosts and their waiters.
type stampede struct {
	e       *Env
	waiters int // per host
	daemons []*Daemon
	clients []*client.Client

	mu      sync.Mutex
	began   time.Time       // guarded by mu, as are the fields below
	inside  int             // number of holders
	fence   uint64          // the last fence
	order   []int           // the hosts, in the order of their grants
	longest []time.Duration // the longest wait on each host
	waits   harness.Hist
	faults  []string
	lost    int
}

func (h *stampede) end() {
	for _, c := range h.clients {
		c.Close()
	}
	for _, d := range h.daemons {
		h.e.stop(herdScene, d)
	}
}

func (h *stampede) run(w harness.Watch) (harness.Metrics, error) {
	h.longest = make([]time.Duration, len(h.daemons))
	if err := h.come(); err != nil {
		return nil, err
	}
	holder := h.clients[0]
	first, err := holder.Lock(h.e.Ctx, client.AcquireArgs{Key: herdKey})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(h.e.Ctx, herdBound)
	defer cancel()
	var wg sync.WaitGroup
	failed := make(chan error, len(h.clients))
	for i, c := range h.clients[1:] {
		wg.Go(func() {
			if err := h.turn(ctx, c, i%len(h.daemons)); err != nil {
				failed <- err
			}
		})
	}
	if err := h.queued(ctx); err != nil {
		cancel()
		wg.Wait()
		return nil, err
	}
	out, err := w.During(func() error {
		h.mu.Lock()
		h.began = time.Now()
		h.mu.Unlock()
		err := first.Release(ctx)
		wg.Wait()
		return err
	})
	close(failed)
	for e := range failed {
		err = errors.Join(err, e)
	}
	if err != nil {
		return nil, fmt.Errorf("%d of %d were served: %w", h.waits.N(), len(h.clients)-1, err)
	}
	return h.metrics(out), nil
}

// come connects all sessions. The holder of the key is first.
func (h *stampede) come() error {
	lost := func(client.Lost) {
		h.mu.Lock()
		h.lost++
		h.mu.Unlock()
	}
	for i := range 1 + h.waiters*len(h.daemons) {
		d := h.daemons[max(0, i-1)%len(h.daemons)]
		c, err := client.Dial(h.e.Ctx, d.Socket, client.Options{Name: herdScene, OnLost: lost})
		if err != nil {
			return err
		}
		h.clients = append(h.clients, c)
	}
	return nil
}

// queued waits until the daemons report that all sessions wait.
func (h *stampede) queued(ctx context.Context) error {
	for {
		sum := 0.0
		for _, d := range h.daemons {
			all, err := d.read(ctx)
			if err != nil {
				return err
			}
			sum += all.sum("locksidecar_waiters", "")
		}
		if int(sum) == len(h.clients)-1 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// turn waits for the key, and releases it.
func (h *stampede) turn(ctx context.Context, c *client.Client, host int) error {
	g, err := c.Acquire(ctx, client.AcquireArgs{Key: herdKey, Wait: client.Forever})
	if err != nil {
		return err
	}
	h.enter(host, g.Fence)
	h.mu.Lock()
	h.inside--
	h.mu.Unlock()
	_, err = c.Release(ctx, client.ReleaseArgs{Key: herdKey, Fence: g.Fence})
	return err
}

func (h *stampede) enter(host int, fence uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.inside++; h.inside > 1 || fence <= h.fence {
		h.faults = append(h.faults, fmt.Sprintf("%d inside, fence %d after %d", h.inside, fence, h.fence))
	}
	wait := time.Since(h.began)
	h.waits.Add(wait)
	h.fence, h.order, h.longest[host] = fence, append(h.order, host), max(h.longest[host], wait)
}

func (h *stampede) metrics(o *harness.Outcome) harness.Metrics {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.faults) > 0 || h.lost > 0 {
		h.e.Report.Fault("%s: %d times two inside or a fence that fell, the first: %v; %d locks lost",
			herdScene, len(h.faults), h.faults[:min(1, len(h.faults))], h.lost)
	}
	half := make([]uint64, len(h.daemons))
	for _, host := range h.order[:len(h.order)/2] {
		half[host]++
	}
	switches := 0
	for i, host := range h.order[1:] {
		if host != h.order[i] {
			switches++
		}
	}
	o.Hist = h.waits
	m := o.Metrics()
	m["jain"] = harness.Jain(half)
	m["grants_a_turn"] = float64(len(h.order)) / float64(switches+1)
	m["herd_s"], m["longest_s"] = o.Window.Seconds(), h.waits.Max().Seconds()
	slices.Sort(h.longest)
	m["first_host_done_s"] = h.longest[0].Seconds()
	return m
}
