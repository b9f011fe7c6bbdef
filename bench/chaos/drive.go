package chaos

import (
	"strings"
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
	before := c.byWorker()
	if !c.until(patience, func() bool {
		for i, w := range c.workers {
			if i < len(before) && w.killed == 0 && w.held.Load() == before[i] {
				return false
			}
		}
		return true
	}) {
		c.fail("floor", "somebody was granted nothing more when all was healed; by worker %v, then %v", before, c.byWorker())
	}
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

// drain has all workers end, and looks at what is left.
func (c *cell) drain() {
	for _, w := range c.workers {
		w.bid()
	}
	end := time.Now().Add(patience)
	for _, w := range c.workers {
		if w.killed == 0 && !w.finish(end) {
			c.fail("wait", "worker %d (%s) does not end", w.no, w.kind)
		}
	}
	var left []string
	if !c.until(patience, func() bool {
		left = nil
		for _, h := range c.hosts {
			rows, err := h.left()
			if err != nil {
				rows = []string{err.Error()}
			}
			left = append(left, rows...)
		}
		return len(left) == 0
	}) {
		c.fail("left", "%d are left at the end: %s", len(left), strings.Join(left[:min(len(left), 5)], "; "))
	}
	for _, h := range c.hosts {
		if !h.end(syscall.SIGTERM) {
			c.fail("wait", "daemon %d does not end", h.no)
		}
	}
}

// end ends whatever still runs.
func (c *cell) end() {
	for _, w := range c.workers {
		if !w.ended() {
			w.process.end(syscall.SIGKILL)
		}
		<-w.done
	}
	defer func() { c.caught(recover()) }()
	c.t.end()
}

// caught notes what has kept the cell from going on; other panics are ours.
func (c *cell) caught(r any) {
	switch b := r.(type) {
	case nil:
	case broken:
		c.fail("broken", "%v", b.error)
	default:
		panic(r)
	}
}

func (c *cell) grants() (n int64) {
	for _, w := range c.workers {
		n += w.held.Load()
	}
	return n
}

func (c *cell) byWorker() (ns []int64) {
	for _, w := range c.workers {
		ns = append(ns, w.held.Load())
	}
	return ns
}

func (c *cell) until(most time.Duration, ok func() bool) bool {
	for end := time.Now().Add(most); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// last lets a fault last; what comes after it is healing.
func (c *cell) last(d time.Duration) {
	time.Sleep(d)
	c.healed = time.Now()
}

func (c *cell) someHost() *host { return c.hosts[c.rnd.IntN(len(c.hosts))] }

// someWorkers are one to three of those that run.
func (c *cell) someWorkers() (some []*worker) {
	for _, i := range c.rnd.Perm(len(c.workers)) {
		if w := c.workers[i]; w.killed == 0 && len(some) < 3 {
			some = append(some, w)
		}
	}
	return some[:1+c.rnd.IntN(len(some))]
}

// links are those between a target and what it speaks to.
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

// together does it to all at once, and passes on what one panics with.
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
