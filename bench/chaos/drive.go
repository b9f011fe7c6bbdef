package chaos

import (
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
)

// fireAll fires the fault several times, with healing in between.
func (c *cell) fireAll() {
	times := 3
	if c.Length > 2 {
		times = 2
	}
	if c.Fires > 0 {
		times = c.Fires
	}
	for range times {
		d := time.Duration(c.Length * float64(c.ttl))
		c.healed = time.Now()
		c.fault.fire(c, d)
		c.Fired++
		c.recover()
		if c.fault.brief {
			time.Sleep(d)
		}
		time.Sleep(time.Duration(200+c.rnd.IntN(500)) * time.Millisecond)
	}
	c.allServed()
}

// recover waits until every daemon grants again.
func (c *cell) recover() {
	var mu sync.Mutex
	together(c.hosts, func(h *host) {
		err := h.grants("probe", c.healed.Add(patience))
		took := time.Since(c.healed)
		mu.Lock()
		defer mu.Unlock()
		c.Recovery = max(c.Recovery, took)
		if err != nil {
			c.fail("recovery", "daemon %d grants nothing %v after healing: %v", h.no, took, err)
		}
	})
}

// drain ends all workers, and checks what is left.
func (c *cell) drain() {
	c.endWorkers()
	c.nothingLeft()
	for _, h := range c.hosts {
		if !h.end(syscall.SIGTERM) {
			c.fail("wait", "daemon %d does not end", h.no)
		}
	}
}

// last sleeps while a fault lasts. Healing begins when it returns.
func (c *cell) last(d time.Duration) {
	time.Sleep(d)
	c.healed = time.Now()
}

func (c *cell) someHost() *host { return c.hosts[c.rnd.IntN(len(c.hosts))] }

// someWorkers returns one to three of the running workers.
func (c *cell) someWorkers() (some []*worker) {
	for _, i := range c.rnd.Perm(len(c.workers)) {
		if w := c.workers[i]; w.killed == 0 && len(some) < 3 {
			some = append(some, w)
		}
	}
	return some[:1+c.rnd.IntN(len(some))]
}

// links returns the links between a target and its peers.
func (c *cell) links(target string) (all []*faultproxy.Proxy) {
	switch target {
	case atStore:
		for _, h := range c.hosts {
			all = append(all, h.links...)
		}
	case atDaemon:
		all = c.someHost().links
	case atClient:
		for _, w := range c.someWorkers() {
			all = append(all, c.doors[w.no]...)
		}
	}
	return all
}

// together calls do for all elements at once. If one of the calls panics, together panics with the
// same value.
func together[T any](all []T, do func(T)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed any
	for _, one := range all {
		wg.Go(func() {
			defer func() {
				if r := recover(); r != nil {
					mu.Lock()
					failed = r
					mu.Unlock()
				}
			}()
			do(one)
		})
	}
	wg.Wait()
	if failed != nil {
		panic(failed)
	}
}
