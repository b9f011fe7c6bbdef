package chaos

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
)

// begin starts all processes, and waits until they work.
func (c *cell) begin() {
	c.startRegister()
	c.store = storeKinds[c.Store].start(c.t)
	for i := range c.daemons {
		c.hosts = append(c.hosts, c.newHost(i))
	}
	together(c.hosts, (*host).start)
	for i := range clientsEach {
		c.addWorker(i % len(c.hosts))
	}
	together(c.workers, (*worker).ready)
	time.Sleep(calm)
	if !c.until(patience, func() bool { return c.grants() >= calmFloor && c.short() == "" }) {
		c.fail("floor", "%d grants before the first fault%s; by worker: %v", c.grants(),
			c.short(), c.byWorker())
	}
}

// short describes what the load still lacks: grants of a worker, or a kind of grant in a language.
func (c *cell) short() (what string) {
	done := map[string]*[turnKinds]int64{}
	for _, w := range c.workers {
		if done[w.kind] == nil {
			done[w.kind] = new([turnKinds]int64)
		}
		for k := range w.turns {
			done[w.kind][k] += w.turns[k].Load()
		}
		if w.held.Load() == 0 {
			what += fmt.Sprintf(", worker %d none", w.no)
		}
	}
	for _, language := range slices.Sorted(maps.Keys(done)) {
		for k, n := range done[language] {
			if n == 0 && (turnKind(k) != permitTurn || !c.locks) {
				what += fmt.Sprintf(", %s no %v", language, turnKind(k))
			}
		}
	}
	return what
}

// newHost creates a host with its own link to each of the store's servers.
func (c *cell) newHost(no int) *host {
	h := &host{no: no, bin: c.Bin, dir: filepath.Join(c.dir, fmt.Sprint("daemon", no))}
	h.run = h.dir
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
	addrs := c.link(h, listen)
	h.conf = fmt.Sprintf("upstream: %q\nttl: %v\ndrain: 300ms\n", c.url(addrs), c.ttl)
	h.configure()
	c.t.Cleanup(func() {
		if h.process != nil {
			h.end(syscall.SIGKILL)
		}
	})
	return h
}

// link creates the host's links, and returns their addresses.
func (c *cell) link(h *host, listen string) (addrs []string) {
	called := &names{}
	var relays []*relay
	for _, server := range c.servers {
		if c.renames {
			r, err := newRelay(server, called)
			if err != nil {
				panic(broken{err})
			}
			c.t.Cleanup(r.close)
			relays = append(relays, r)
			server = r.addr()
		}
		p, err := faultproxy.TCPOn(listen, server)
		if err != nil {
			panic(broken{err})
		}
		c.t.Cleanup(func() { p.Close() })
		h.links = append(h.links, p)
		addrs = append(addrs, p.Addr())
	}
	if err := called.set(c.servers, addrs); err != nil {
		panic(broken{err})
	}
	for _, r := range relays {
		r.start()
	}
	return addrs
}

// addWorker starts another worker at a host; worker.ready waits for it.
func (c *cell) addWorker(at int) *worker {
	no := len(c.workers)
	orders := Orders{Socket: c.hosts[at].socket(), Prefix: c.prefix, Keys: keysEach,
		Semaphores: semaphoresEach,
		TTL:        c.ttl, Pause: pauses[c.Seed%uint64(len(pauses))], Seed: c.Seed}
	if c.locks {
		orders.Semaphores = 0
	}
	if c.fault.clientLinks {
		p, err := faultproxy.Unix(filepath.Join(c.dir, fmt.Sprint("door", no)), orders.Socket)
		if err != nil {
			panic(broken{err})
		}
		c.t.Cleanup(func() { p.Close() })
		c.doors[no] = []*faultproxy.Proxy{p}
		orders.Socket = p.Addr()
	}
	return c.startWorker(kinds[no%len(kinds)], at, orders)
}
