package faultproxy

import (
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Dir is a direction, or both.
type Dir uint8

// The directions.
const (
	ToServer Dir = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

func (d Dir) index() int { return int(d) - 1 }

// line is what is wrong with one direction.
type line struct {
	delay time.Duration
	rate  int  // bytes a second; 0 is no limit
	stall bool // nothing leaves, nothing is lost
	void  bool // everything that leaves is lost
}

// Proxy forwards connections to one server. Its methods may be called by many
// goroutines at once.
type Proxy struct {
	network, addr, target string
	wg                    sync.WaitGroup

	mu       sync.Mutex
	l        net.Listener   // guarded by mu; nil while refusing
	lines    [2]line        // guarded by mu
	changed  chan struct{}  // guarded by mu: closed, and replaced, when lines change
	conns    map[*conn]bool // guarded by mu
	accepted int            // guarded by mu
	passed   [2]int64       // guarded by mu: bytes
	closed   bool           // guarded by mu
}

// TCP starts a proxy to target ("host:port") on a free port of the loopback.
func TCP(target string) (*Proxy, error) { return TCPOn("127.0.0.1", target) }

// TCPOn is TCP on another of this machine's addresses.
func TCPOn(host, target string) (*Proxy, error) {
	return start("tcp", net.JoinHostPort(host, "0"), target)
}

// Unix starts a proxy to the socket target on a socket at path.
func Unix(path, target string) (*Proxy, error) { return start("unix", path, target) }

func start(network, addr, target string) (*Proxy, error) {
	p := &Proxy{network: network, addr: addr, target: target, changed: make(chan struct{}),
		conns: map[*conn]bool{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.listenLocked(); err != nil {
		return nil, err
	}
	p.addr = p.l.Addr().String()
	return p, nil
}

func (p *Proxy) listenLocked() error {
	l, err := net.Listen(p.network, p.addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false) // a socket without a listener refuses; without a file it is not found
	}
	p.l = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

// Addr returns where clients connect to: "host:port", or the socket's path.
func (p *Proxy) Addr() string { return p.addr }

func (p *Proxy) accept(l net.Listener) {
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.closed || p.l != l {
			p.mu.Unlock()
			nc.Close()
			continue
		}
		p.accepted++
		c := newConn(p, nc)
		p.conns[c] = true
		p.wg.Go(c.run)
		p.mu.Unlock()
	}
}

// set changes the lines of the directions and wakes who waits on them.
func (p *Proxy) set(d Dir, change func(*line)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range [...]Dir{ToServer, ToClient} {
		if d&one != 0 {
			change(&p.lines[one.index()])
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// Delay lets each byte leave d after it came. What is on the way already keeps
// the delay that it came with.
func (p *Proxy) Delay(dir Dir, d time.Duration) { p.set(dir, func(l *line) { l.delay = d }) }

// Throttle lets at most bytes leave a second, on each connection; 0 is no limit.
func (p *Proxy) Throttle(dir Dir, bytes int) { p.set(dir, func(l *line) { l.rate = bytes }) }

// Stall stops a direction, or lets it go on: the half-open connection. Nothing is
// lost, an end of file waits too, and the sender notices when some megabytes are
// on the way and no sooner.
func (p *Proxy) Stall(dir Dir, on bool) { p.set(dir, func(l *line) { l.stall = on }) }

// BlackHole swallows what a direction carries, ends of file too. A new
// connection is accepted and, when it could not say anything to the server, not
// made there. Turned off it cuts the connections that have lost something.
func (p *Proxy) BlackHole(dir Dir, on bool) {
	p.set(dir, func(l *line) { l.void = on })
	if on {
		return
	}
	for _, c := range p.all() {
		c.mu.Lock()
		torn := c.torn
		c.mu.Unlock()
		if torn {
			c.close(false)
		}
	}
}

// Refuse refuses new connections, or accepts them again; those that stand stay.
func (p *Proxy) Refuse(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return net.ErrClosed
	case on && p.l != nil:
		p.l.Close()
		p.l = nil
	case !on && p.l == nil:
		if p.network == "unix" {
			os.Remove(p.addr)
		}
		return p.listenLocked()
	}
	return nil
}

// Cut closes every connection that stands, on both sides, and returns how many.
func (p *Proxy) Cut() int { return p.cut(false) }

// Reset is Cut, and TCP peers see a reset instead of an end of file.
func (p *Proxy) Reset() int { return p.cut(true) }

func (p *Proxy) cut(reset bool) int {
	all := p.all()
	for _, c := range all {
		c.close(reset)
	}
	return len(all)
}

func (p *Proxy) all() []*conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*conn
	for c := range p.conns {
		all = append(all, c)
	}
	return all
}

// Heal ends every fault: no delay, no limit, nothing stalled, swallowed or
// refused.
func (p *Proxy) Heal() error {
	p.set(Both, func(l *line) { *l = line{void: l.void} })
	p.BlackHole(Both, false)
	return p.Refuse(false)
}

// Conns returns how many connections stand.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Accepted returns how many connections were ever accepted.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Passed returns how many bytes have left in a direction, or in both.
func (p *Proxy) Passed(dir Dir) (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range [...]Dir{ToServer, ToClient} {
		if dir&one != 0 {
			n += p.passed[one.index()]
		}
	}
	return n
}

// Close cuts every connection, refuses new ones and waits for all goroutines.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		if p.l != nil {
			p.l.Close()
			p.l = nil
		}
		if p.network == "unix" {
			os.Remove(p.addr)
		}
	}
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
	return nil
}
