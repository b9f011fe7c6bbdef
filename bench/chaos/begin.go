package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
)

// begin starts all, and sees that it works.
func (c *cell) begin() {
	var err error
	if c.register, err = NewRegister(); err != nil {
		panic(broken{err})
	}
	c.t.Cleanup(c.register.Close)
	c.store = storeKinds[c.Store].start(c.t)
	for i := range c.store.hosts {
		c.hosts = append(c.hosts, c.newHost(i))
	}
	together(c.hosts, (*host).start)
	for i := range clientsEach {
		c.addWorker(i % len(c.hosts))
	}
	together(c.workers, (*worker).ready)
	time.Sleep(calm)
	ok := c.until(patience, func() bool {
		return c.grants() >= calmFloor && !slices.ContainsFunc(c.workers, func(w *worker) bool { return w.held.Load() == 0 })
	})
	if !ok {
		c.fail("floor", "%d grants before the first fault; by worker: %v", c.grants(), c.byWorker())
	}
}

// newHost makes one with a link of its own to each of the store's servers.
func (c *cell) newHost(no int) *host {
	h := &host{no: no, bin: c.Bin, dir: filepath.Join(c.dir, fmt.Sprint("daemon", no))}
	if err := os.Mkdir(h.dir, 0o700); err != nil {
		panic(broken{err})
	}
	listen := "127.0.0.1"
	if c.fault.apart {
		ns, err := newNamespace(no)
		if err != nil {
			panic(broken{err})
		}
		c.spaces = append(c.spaces, ns)
		c.t.Cleanup(ns.remove)
		listen, h.inside = ns.outer, ns.inside()
	}
	var addrs []string
	for _, server := range c.servers {
		p, err := faultproxy.TCPOn(listen, server)
		if err != nil {
			panic(broken{err})
		}
		c.t.Cleanup(func() { p.Close() })
		h.links = append(h.links, p)
		addrs = append(addrs, p.Addr())
	}
	h.conf = fmt.Sprintf("upstream: %q\nttl: %v\ndrain: 300ms\n", c.url(addrs), c.ttl)
	h.configure()
	c.t.Cleanup(func() {
		if h.process != nil {
			h.end(syscall.SIGKILL)
		}
	})
	return h
}

// addWorker starts the next one, at a host; see worker.ready.
func (c *cell) addWorker(at int) *worker {
	no := len(c.workers)
	kind := kinds[no%len(kinds)]
	program := c.Programs[kind]
	if len(program) == 0 {
		kind, program = "go", c.Programs["go"]
	}
	orders := Orders{Socket: c.hosts[at].socket(), Register: c.register.Addr(), Worker: no, Prefix: c.prefix,
		Keys: keysEach, Owners: ownersEach, TTL: c.ttl, Pause: pauses[c.Seed%uint64(len(pauses))], Seed: c.Seed}
	if c.fault.clientLinks {
		p, err := faultproxy.Unix(filepath.Join(c.dir, fmt.Sprint("door", no)), orders.Socket)
		if err != nil {
			panic(broken{err})
		}
		c.t.Cleanup(func() { p.Close() })
		c.doors[no] = []*faultproxy.Proxy{p}
		orders.Socket = p.Addr()
	}
	w, err := startWorker(kind, program, orders, at, filepath.Join(c.dir, fmt.Sprintf("worker%d-%s.log", no, kind)))
	if err != nil {
		panic(broken{err})
	}
	c.workers = append(c.workers, w)
	return w
}
