package chaos

import (
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
)

// The targets of faults.
const (
	atStore  = "store"
	atDaemon = "daemon"
	atClient = "client"
)

// fault is one kind of fault for one target.
type fault struct {
	name, target string
	needs        string // the ability that the store's kind must have
	clientLinks  bool   // clients must connect through links of this program
	apart        bool   // daemons must have network namespaces of their own
	brief        bool   // the fault is over at once: d is the pause after it
	// fire begins the fault, lets it last for d unless it is brief, and undoes it.
	fire func(c *cell, d time.Duration)
}

// possible reports whether stores of a kind can have the fault.
func (f *fault) possible(k kind) bool {
	return f.needs == "" || slices.Contains(strings.Fields(k.can), f.needs)
}

// faults returns all faults.
func faults() (all []fault) {
	for _, name := range slices.Sorted(maps.Keys(linkFaults)) {
		do := linkFaults[name]
		for _, target := range []string{atStore, atDaemon, atClient} {
			f := fault{name: name, target: target, needs: "links", clientLinks: target == atClient}
			if f.clientLinks {
				f.needs = ""
			}
			f.fire = func(c *cell, d time.Duration) {
				c.onLinks(c.links(target), d, do, func() { time.Sleep(d) })
			}
			all = append(all, f)
		}
	}
	all = append(all, processFaults()...)
	return append(all, fault{name: "mixed", target: "all", clientLinks: true, fire: (*cell).mixed})
}

// processFaults returns the faults of processes and of the data in stores.
func processFaults() []fault {
	return []fault{
		{name: "partition", target: atDaemon, needs: "links", apart: true,
			fire: func(c *cell, d time.Duration) { c.partition(d, c.someHost()) }},
		{name: "partition", target: atStore, needs: "links", apart: true,
			fire: func(c *cell, d time.Duration) { c.partition(d, c.hosts...) }},

		{name: "stop", target: atStore, needs: "stop", fire: func(c *cell, d time.Duration) {
			c.freeze()
			c.last(d)
			c.thaw()
		}},
		{name: "kill", target: atStore, needs: "kill", fire: func(c *cell, d time.Duration) {
			c.down(c.kill, d)
		}},
		{name: "restart", target: atStore, brief: true, needs: "kill",
			fire: func(c *cell, _ time.Duration) {
				c.down(c.store.stop, 0)
			}},
		{name: "flush", target: atStore, brief: true, needs: "flush",
			fire: func(c *cell, _ time.Duration) {
				done := c.forgetting()
				c.flush()
				done()
			}},
		{name: "failover", target: atStore, needs: "failover", fire: func(c *cell, d time.Duration) {
			done := func() {}
			if c.forgetsOnOver {
				done = c.forgetting()
			}
			c.failover(func() { c.last(d) })
			done()
		}},
		{name: "clock", target: atStore, needs: "clock", fire: (*cell).stepClock},

		{name: "stop", target: atDaemon, fire: func(c *cell, d time.Duration) {
			h := c.someHost()
			h.freeze()
			c.last(d)
			h.thaw()
		}},
		{name: "kill", target: atDaemon, fire: func(c *cell, d time.Duration) {
			h := c.someHost()
			h.end(syscall.SIGKILL)
			c.last(d)
			h.start()
		}},
		{name: "restart", target: atDaemon, brief: true, fire: func(c *cell, _ time.Duration) {
			h := c.someHost()
			h.end(syscall.SIGTERM)
			c.last(0)
			h.start()
		}},
		{name: "takeover", target: atDaemon, brief: true, fire: func(c *cell, _ time.Duration) {
			c.someHost().takeOver()
		}},
		{name: "reload", target: atDaemon, brief: true, fire: func(c *cell, _ time.Duration) {
			c.someHost().reload()
		}},

		{name: "stop", target: atClient, fire: func(c *cell, d time.Duration) {
			ws := c.someWorkers()
			for _, w := range ws {
				w.freeze()
			}
			c.last(d)
			for _, w := range ws {
				w.thaw()
			}
		}},
		{name: "kill", target: atClient, fire: func(c *cell, d time.Duration) {
			ws := c.someWorkers()
			for _, w := range ws {
				w.kill()
			}
			c.last(d)
			for _, w := range ws {
				c.addWorker(w.host).ready()
			}
		}},
	}
}

// linkFaults are the faults of connections, which are healed afterwards.
var linkFaults = map[string]func(c *cell, p *faultproxy.Proxy){
	"delay": func(c *cell, p *faultproxy.Proxy) {
		p.Delay(c.oneWay(), time.Duration(20+c.rnd.IntN(int(c.ttl.Milliseconds())))*time.Millisecond)
	},
	"throttle": func(c *cell, p *faultproxy.Proxy) { p.Throttle(faultproxy.Both, 200<<c.rnd.IntN(5)) },
	"fading": func(c *cell, p *faultproxy.Proxy) {
		p.Delay(faultproxy.ToClient, time.Duration((0.1+0.18*c.rnd.Float64())*float64(c.ttl)))
	},
	"half-open":  func(c *cell, p *faultproxy.Proxy) { p.Stall(c.oneWay(), true) },
	"one-way":    func(c *cell, p *faultproxy.Proxy) { p.BlackHole(c.oneWay(), true) },
	"black-hole": func(c *cell, p *faultproxy.Proxy) { p.BlackHole(faultproxy.Both, true) },
	"refuse": func(_ *cell, p *faultproxy.Proxy) {
		_ = p.Refuse(true)
		p.Cut()
	},
	"reset": func(_ *cell, p *faultproxy.Proxy) { p.Reset() },
}

func (c *cell) oneWay() faultproxy.Dir {
	return []faultproxy.Dir{faultproxy.ToServer, faultproxy.ToClient}[c.rnd.IntN(2)]
}

// onLinks applies a fault to each link, calls meanwhile, and heals the links. A reset is over at
// once, so it is repeated for d.
func (c *cell) onLinks(links []*faultproxy.Proxy, d time.Duration,
	do func(*cell, *faultproxy.Proxy), meanwhile func()) {
	end := time.Now().Add(d)
	for {
		c.cutting(links)
		for _, p := range links {
			do(c, p)
		}
		if c.fault.name != "reset" || time.Now().After(end) {
			break
		}
		time.Sleep(min(time.Until(end), time.Duration(20+c.rnd.IntN(200))*time.Millisecond))
	}
	if c.fault.name == "fading" { // answers are late for a TTL, and then stop
		time.Sleep(c.ttl)
		for _, p := range links {
			p.BlackHole(faultproxy.Both, true)
		}
	}
	if c.fault.name != "reset" {
		meanwhile()
	}
	c.last(0)
	c.cutting(links) // healing ends a connection that has lost bytes
	for _, p := range links {
		if err := p.Heal(); err != nil {
			panic(broken{err})
		}
	}
}

// cutting records that connections of clients may be about to end.
func (c *cell) cutting(links []*faultproxy.Proxy) {
	for no, doors := range c.doors {
		if slices.ContainsFunc(doors, func(p *faultproxy.Proxy) bool { return slices.Contains(links, p) }) {
			c.cut[no] = append(c.cut[no], now())
		}
	}
}

// mixed is a fault of links together with a fault of processes. A daemon is not started while it
// may be unable to reach its store.
func (c *cell) mixed(d time.Duration) {
	target := []string{atStore, atDaemon, atClient}[c.rnd.IntN(3)]
	if len(c.servers) == 0 {
		target = atClient
	}
	var others []fault
	for _, f := range processFaults() {
		starts := f.target == atDaemon && (f.name == "kill" || f.name == "restart")
		if f.possible(storeKinds[c.Store]) && !f.apart && (target == atClient || !starts) {
			others = append(others, f)
		}
	}
	names := slices.Sorted(maps.Keys(linkFaults))
	name, other := names[c.rnd.IntN(len(names))], others[c.rnd.IntN(len(others))]
	c.Log("  %v: %s of %s, and %s of %s", c.Cell, name, target, other.name, other.target)
	c.onLinks(c.links(target), d, linkFaults[name], func() {
		other.fire(c, d)
		if other.brief {
			time.Sleep(d)
		}
	})
}

// down ends the store with how, and starts it again after d.
func (c *cell) down(how func(), d time.Duration) {
	done := func() {}
	if c.forgetsOnKill {
		done = c.forgetting()
	}
	how()
	c.last(d)
	c.start()
	done()
}

// forgetting begins a time in which the store may forget locks; done ends it. A daemon notices that
// with a renewal. So it may hand on a lost lock for another TTL.
func (c *cell) forgetting() (done func()) {
	from := now()
	return func() { c.forgets = append(c.forgets, forget{span: span{from, now() + int64(c.ttl)}}) }
}

// stepClock sets the store's clock ahead or back by d, and back to the true time after d. A step
// ahead ends leases before their time.
func (c *cell) stepClock(d time.Duration) {
	step := d
	if c.rnd.IntN(2) == 0 {
		step = -d
	}
	for _, to := range []time.Duration{step, 0} {
		done := c.forgetting()
		c.clock(to)
		if (to == 0) == (step < 0) {
			done()
		}
		c.last(d)
	}
}
