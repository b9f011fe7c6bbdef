package faultproxy

import (
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Dir is one direction, or both.
type Dir uint8

// The directions.
const (
	ToServer Dir = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

func (d Dir) index() int { return int(d) - 1 }

// line is the state of one direction.
type line struct {
	delay time.Duration
	rate  int  // bytes per second; 0 for no limit
	stall bool // nothing leaves, nothing is lost
	void  bool // everything that leaves is lost
}

// Proxy forwards connections to one server. Its methods may be called concurrently.
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

// TCP starts a proxy to target ("host:port") on a free port of the loopback interface.
func TCP(target string) (*Proxy, error) { return TCPOn("127.0.0.1", target) }

// TCPOn is like TCP, on another address of this machine.
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
		// a socket without a listener refuses connections, while a missing file is not found
		u.SetUnlinkOnClose(false)
	}
	p.l = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

// Addr returns the address for clients: "host:port", or the path of the socket.
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

// set changes the lines of the directions, and wakes the goroutines that wait for a change.
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

// Delay lets each byte leave d after it arrived. Bytes that are on the way already keep their
// earlier delay.
func (p *Proxy) Delay(dir Dir, d time.Duration) { p.set(dir, func(l *line) { l.delay = d }) }

// Throttle limits the bytes per second of each connection. 0 means no limit.
func (p *Proxy) Throttle(dir Dir, bytes int) { p.set(dir, func(l *line) { l.rate = bytes }) }

// Stall stops a direction, or lets it continue, as for a half-open connection. Nothing is lost, and
// an end of file waits, too. The sender notices only when some megabytes are on the way.
func (p *Proxy) Stall(dir Dir, on bool) { p.set(dir, func(l *line) { l.stall = on }) }

// BlackHole drops everything in a direction, including ends of file. A new connection is accepted.
// If it could not send anything to the server, it is not made there. When BlackHole is switched
// off, it cuts the connections that have lost something.
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

// Refuse refuses new connections, or accepts them again. Open connections stay.
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

// Cut closes every open connection on both sides, and returns their number.
func (p *Proxy) Cut() int { return p.cut(false) }

// Reset is like Cut, but TCP peers see a reset instead of an end of file.
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

// Heal ends every fault.
func (p *Proxy) Heal() error {
	p.set(Both, func(l *line) { *l = line{void: l.void} })
	p.BlackHole(Both, false)
	return p.Refuse(false)
}

// Conns returns the number of open connections.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// Accepted returns the number of connections that were accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Passed returns the number of bytes that have left in a direction, or in both.
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
