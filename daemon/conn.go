package daemon

import (
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// conn is a session's socket: one reader, and a writer that exists only while
// the client is slower than we are. Everybody else writes without blocking.
type conn struct {
	d    *Daemon
	s    *Session
	nc   *net.UnixConn
	raw  syscall.RawConn
	peer *peerWatch

	mu      sync.Mutex // guards the two below; not held during I/O
	writing bool       // somebody has the right to write
	again   bool       // and has to look once more

	// Of whoever has the right to write.
	try  func(fd uintptr)
	tryB []byte
	tryN int
	tryE error

	kill   chan struct{} // closed when we end the session
	killed atomic.Bool
	gone   chan struct{} // closed when the peer has ended
	once   sync.Once
}

func newConn(d *Daemon, nc *net.UnixConn, raw syscall.RawConn) *conn {
	c := &conn{d: d, nc: nc, raw: raw, kill: make(chan struct{}), gone: make(chan struct{})}
	c.try = func(fd uintptr) { c.tryN, c.tryE = syscall.Write(int(fd), c.tryB) } // made once: no allocation a write
	return c
}

// readBuffer is what a connection's reader starts with, in bytes.
const readBuffer = 8 << 10

// serve is the reader. It returns when the peer has gone, or has to be taken for
// gone, and everything that it held has been released.
func (c *conn) serve() {
	c.d.wg.Go(c.reap)
	buf := make([]byte, 0, readBuffer)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, min(cap(buf), c.d.cfg.Limits.MaxFrame+protocol.HeaderLen))...)[:len(buf)]
		}
		n, err := c.nc.Read(buf[len(buf):cap(buf)])
		if err != nil {
			break
		}
		c.d.read.Add(uint64(n))
		rest, ok := c.s.Receive(buf[:len(buf)+n])
		if !ok {
			c.drainInput()
			break
		}
		buf = buf[:copy(buf[:cap(buf)], rest)]
	}
	c.leave()
}

// drainInput reads on after we have ended the session, so that the end of the
// peer is noticed.
func (c *conn) drainInput() {
	var b [4096]byte
	for {
		if _, err := c.nc.Read(b[:]); err != nil {
			return
		}
	}
}

// leave notes that the peer has ended.
func (c *conn) leave() { c.once.Do(func() { close(c.gone) }) }

// reap waits for the session's end and gives back what it held. A session that
// we end keeps its keys until the peer has closed its side or ended, or until
// nothing that we have stated is valid any more.
func (c *conn) reap() {
	select {
	case <-c.gone:
	case <-c.d.halt:
	case <-c.kill:
		c.d.engine.EndWaits(c.s)
		c.Flush()
		_ = c.nc.CloseWrite()
		c.waitParted()
	}
	c.peer.close()
	if c.d.halted() && !c.left() {
		_ = c.nc.Close()
		c.d.forget(c) // its keys stay closed until they end by themselves
		return
	}
	c.d.engine.End(c.s)
	_ = c.nc.Close()
	c.d.forget(c)
}

// waitParted waits until the client cannot believe any more that it holds
// anything.
func (c *conn) waitParted() {
	for c.s.core.Holds.Load() > 0 {
		left := c.s.Stated() - c.d.clock()
		if left <= 0 {
			return
		}
		wait := time.NewTimer(time.Duration(left)) // does not count sleep: hence the loop
		select {
		case <-c.gone:
		case <-c.d.halt:
		case <-wait.C:
			continue
		}
		wait.Stop()
		return
	}
}

func (c *conn) left() bool {
	select {
	case <-c.gone:
		return true
	default:
		return false
	}
}

// Kill ends the session from our side. It does not block.
func (c *conn) Kill() {
	if !c.killed.Swap(true) {
		close(c.kill)
	}
}

// Flush writes what waits, without blocking: what the socket does not take goes
// to a writer of its own.
func (c *conn) Flush() {
	c.mu.Lock()
	if c.writing {
		c.again = true
		c.mu.Unlock()
		return
	}
	c.writing = true
	c.mu.Unlock()
	buf := getBuffer()
	for {
		*buf = c.s.swap(*buf)
		if rest := c.tryWrite(*buf); len(rest) > 0 {
			c.d.wg.Go(func() { c.slowly(buf, rest) })
			return
		}
		if c.done() {
			break
		}
	}
	putBuffer(buf)
}

// done gives the right to write back unless there is more.
func (c *conn) done() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.again {
		c.again = false
		return false
	}
	c.writing = false
	return true
}

// tryWrite writes without waiting and returns what was not taken. A broken
// connection takes everything: its reader will notice.
func (c *conn) tryWrite(b []byte) []byte {
	for len(b) > 0 {
		c.tryB = b
		if err := c.raw.Control(c.try); err != nil {
			return nil
		}
		switch c.tryE {
		case nil:
			b = b[c.tryN:]
		case syscall.EINTR:
		case syscall.EAGAIN:
			return b
		default:
			return nil
		}
	}
	return nil
}

// slowly is the writer of a client that does not keep up. What it does not read
// gathers in the outbox, up to its bound.
func (c *conn) slowly(buf *[]byte, rest []byte) {
	for {
		if _, err := c.nc.Write(rest); err != nil {
			break
		}
		*buf = c.s.swap(*buf)
		if rest = *buf; len(rest) == 0 && c.done() {
			break
		}
	}
	putBuffer(buf)
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

func getBuffer() *[]byte { return buffers.Get().(*[]byte) }

func putBuffer(b *[]byte) {
	if cap(*b) <= 64<<10 {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}
