package faultproxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"time"
)

const (
	chunkSize = 16 << 10
	// slice is the maximum time for one throttled write.
	slice = 20 * time.Millisecond
	// fine is the last part of a wait. It is left to a nap, which nothing ends early.
	fine = 2 * time.Millisecond
)

// conn is one connection through the proxy.
type conn struct {
	p      *Proxy
	client net.Conn
	ctx    context.Context
	cancel context.CancelFunc

	mu     sync.Mutex
	server net.Conn // guarded by mu; nil until it is dialed
	torn   bool     // guarded by mu: bytes were lost, so the connection can never continue
	reset  bool     // guarded by mu: it ends with a reset
}

func newConn(p *Proxy, client net.Conn) *conn {
	ctx, cancel := context.WithCancel(context.Background())
	return &conn{p: p, client: client, ctx: ctx, cancel: cancel}
}

// run serves the connection from its beginning to its end.
func (c *conn) run() {
	defer c.end()
	var wg sync.WaitGroup
	if c.p.swallows(ToServer) {
		wg.Go(func() { io.Copy(io.Discard, c.client) })
		if c.tear(ToServer) {
			<-c.ctx.Done()
		}
		c.shut()
		wg.Wait()
		return
	}
	var d net.Dialer
	server, err := d.DialContext(c.ctx, c.p.network, c.p.target)
	if err != nil {
		return
	}
	c.mu.Lock()
	c.server = server
	c.mu.Unlock()
	up, down := newQueue(), newQueue()
	wg.Go(func() { c.read(c.client, ToServer, up) })
	wg.Go(func() { c.read(server, ToClient, down) })
	ends := make(chan bool, 2)
	wg.Go(func() { ends <- c.write(server, ToServer, up) })
	wg.Go(func() { ends <- c.write(c.client, ToClient, down) })
	for range 2 {
		if !<-ends { // not a regular end of file
			break
		}
	}
	c.shut()
	wg.Wait()
}

func (p *Proxy) swallows(d Dir) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[d.index()].void
}

// tear records that bytes were lost. It reports whether the line still loses bytes: if not, Heal
// may have missed the record.
func (c *conn) tear(d Dir) bool {
	c.mu.Lock()
	c.torn = true
	c.mu.Unlock()
	return c.p.swallows(d)
}

// close ends the connection. Its goroutines end after that by themselves.
func (c *conn) close(reset bool) {
	c.mu.Lock()
	c.reset = c.reset || reset
	c.mu.Unlock()
	c.shut()
}

// shut closes both sides, which ends the goroutines that read or write them.
func (c *conn) shut() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, nc := range [...]net.Conn{c.client, c.server} {
		if nc == nil {
			continue
		}
		if t, ok := nc.(*net.TCPConn); ok && c.reset {
			t.SetLinger(0)
		}
		nc.Close()
	}
}

func (c *conn) end() {
	c.shut()
	c.p.mu.Lock()
	delete(c.p.conns, c)
	c.p.mu.Unlock()
}

// read receives the bytes of one direction.
func (c *conn) read(from net.Conn, d Dir, q *queue) {
	buf := make([]byte, chunkSize)
	for {
		n, err := from.Read(buf)
		c.p.mu.Lock()
		due := time.Now().Add(c.p.lines[d.index()].delay)
		c.p.mu.Unlock()
		if n > 0 && !q.put(c.ctx, chunk{bytes.Clone(buf[:n]), due}) {
			return
		}
		if err != nil {
			q.put(c.ctx, chunk{nil, due})
			return
		}
	}
}

// write sends the bytes of one direction, and reports whether they ended with the end of file.
func (c *conn) write(to net.Conn, d Dir, q *queue) bool {
	var free time.Time // when a throttled line accepts more bytes
	n := newNap()
	defer n.close()
	for {
		ch, ok := q.take(c.ctx)
		if !ok {
			return false
		}
		eof := len(ch.b) == 0
		for eof || len(ch.b) > 0 {
			l, ok := c.admit(d, ch.due, &free, n)
			if !ok {
				return false
			}
			if l.void {
				if !c.tear(d) {
					return false
				}
				if eof {
					<-c.ctx.Done()
					return false
				}
				break
			}
			if eof {
				return closeWrite(to) == nil
			}
			b := ch.b
			if l.rate > 0 {
				b = b[:min(len(b), max(1, int(int64(l.rate)*int64(slice)/int64(time.Second))))]
				free = later(free, time.Now()).Add(time.Duration(len(b)) * time.Second / time.Duration(l.rate))
			}
			if _, err := to.Write(b); err != nil {
				return false
			}
			c.p.mu.Lock()
			c.p.passed[d.index()] += int64(len(b))
			c.p.mu.Unlock()
			ch.b = ch.b[len(b):]
		}
	}
}

// admit waits until the line accepts bytes that are due at due, and returns the state of the line
// then. It returns false if the connection ends first.
func (c *conn) admit(d Dir, due time.Time, free *time.Time, n nap) (line, bool) {
	for {
		c.p.mu.Lock()
		l, changed := c.p.lines[d.index()], c.p.changed
		c.p.mu.Unlock()
		at := due
		if l.rate > 0 {
			at = later(due, *free)
		}
		wait := time.Until(at)
		if !l.stall && wait <= 0 {
			return l, c.ctx.Err() == nil
		}
		var timer <-chan time.Time // nil while the line is stalled, when only a change can end the wait
		if !l.stall {
			if wait <= fine {
				n.sleep(wait)
				continue
			}
			timer = time.After(wait - fine)
		}
		select {
		case <-c.ctx.Done():
			return l, false
		case <-changed:
		case <-timer:
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func closeWrite(c net.Conn) error {
	return c.(interface{ CloseWrite() error }).CloseWrite()
}
