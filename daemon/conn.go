package daemon

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/daemon/peer"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// conn is a session's connection. It has one reader, one reaper, which ends the session, and a
// writer that exists only while the client reads more slowly than the daemon writes. All other
// goroutines write without blocking.
//
// During a takeover the daemon is frozen (freeze.go). The goroutines of a frozen connection have
// ended, and input and unsent have the bytes on their way, for the successor. If the takeover
// fails, run starts the goroutines again.
type conn struct {
	d     *Daemon
	s     *engine.Session
	sock  *sock.Conn
	peer  *peer.Watch
	hello *time.Timer // ends the session if its hello does not arrive in time

	mu      sync.Mutex // guards writing and again; not held during I/O
	writing bool       // a goroutine has the right to write
	again   bool       // that goroutine has to check the outbox again

	reader sync.WaitGroup // the goroutine of read
	reaper sync.WaitGroup // the goroutine of reap, which may start the writer of any connection
	writer sync.WaitGroup // the goroutine of writeRest
	turn   turn           // the reader's work since it last yielded; owned by the reader
	input  []byte         // while frozen: bytes that the reader has read but not handled
	closed bool           // owned by the reader: the daemon has ended the session
	unsent []byte         // while frozen: bytes that the writer took from the outbox and did not write

	// handling is held while the reader handles requests. It is taken before any shard's lock. A
	// goroutine that takes it finds each request that was read either answered or on its way to a
	// store.
	handling sync.Mutex

	kill     chan struct{} // closed when the daemon ends the session
	killed   atomic.Bool
	gone     chan struct{} // closed when the peer has ended or disconnected
	goneOnce sync.Once
}

func newConn(d *Daemon, nc *sock.Conn) *conn {
	return &conn{d: d, sock: nc, kill: make(chan struct{}), gone: make(chan struct{})}
}

// readBuffer is the initial size of a connection's read buffer, in bytes.
const readBuffer = 8 << 10

// run starts the connection's goroutines. After a freeze, it starts them again.
func (c *conn) run() {
	c.startReader()
	c.start(&c.reaper, c.reap)
	if len(c.unsent) > 0 {
		buf := getBuffer()
		rest := c.unsent
		c.unsent = nil
		c.start(&c.writer, func() { c.writeRest(buf, rest) })
	}
}

// startReader starts the reader alone, after a freeze that failed before it stopped the reaper.
func (c *conn) startReader() { c.start(&c.reader, c.read) }

// start runs f on a goroutine of group. Serve waits for it, too.
func (c *conn) start(group *sync.WaitGroup, f func()) {
	group.Add(1)
	c.d.wg.Go(func() {
		defer group.Done()
		f()
	})
}

// read is the reader. It returns when the peer has disconnected or counts as gone. It also returns
// for a freeze, possibly in the middle of a frame. After the daemon has ended the session, it reads
// only to notice that the peer disconnects.
func (c *conn) read() {
	buf := c.input
	if buf == nil {
		buf = make([]byte, 0, readBuffer)
	}
	t := &c.turn
	more := len(buf) > 0 // there may be whole frames in buf
	for {
		if !c.keepPace(t) { // a freeze has begun
			c.input = buf
			return
		}
		if more {
			buf, more = c.handle(buf, t)
			continue
		}
		t.beforeRead(c.sock)
		if len(buf) == cap(buf) { // the buffer grows up to the size of the largest frame
			buf = append(buf, make([]byte, min(cap(buf),
				c.d.cfg.Limits.MaxFrame+protocol.HeaderLen))...)[:len(buf)]
		}
		n, err := c.sock.Read(buf[len(buf):cap(buf)])
		if c.d.frozen.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			c.input = buf
			return
		}
		if err != nil {
			break
		}
		c.d.bytesRead.Add(uint64(n))
		t.count(n >> 10) // a KiB costs as much as a request
		if !c.closed {
			buf, more = c.handle(buf[:len(buf)+n], t)
		}
	}
	c.peerGone()
}

// handle handles the frames in b. t.count yields to other readers from time to time. For a user
// with a rate limit, handle stops after one quota, and keepPace then waits if the user is over the
// limit. It moves the rest of b to the front. more reports whether the rest may contain whole
// frames.
func (c *conn) handle(b []byte, t *turn) (rest []byte, more bool) {
	t.limit = c.s.RateLimit()
	all, cost := b, 0
	for more = true; more && !c.closed && (cost == 0 || t.limit == nil); {
		quota := turnWork
		if t.limit != nil {
			quota = t.limit.Quota(c.d.clock())
		}
		var work int
		var ok bool
		c.handling.Lock()
		b, work, ok = c.s.ReceiveUpTo(b, quota)
		c.handling.Unlock()
		c.closed, more = !ok, work >= quota // less work means that no whole frame is left
		t.count(work)
		cost += work
	}
	t.uncharged += max(cost, (len(all)-len(b))>>10) // large requests are charged by their size
	if c.closed {
		b, more = nil, false
	}
	return all[:copy(all, b)], more
}

// Yield lets other goroutines run while the engine ends the session's holds, of which there may be
// many.
func (c *conn) Yield() { sock.Yield() }

// peerGone records that the peer has gone.
func (c *conn) peerGone() { c.goneOnce.Do(func() { close(c.gone) }) }

// reap waits for the session's end and releases its holds. If the daemon ends the session, its
// keys stay closed until the peer has closed its side or ended, or until the stated validity is
// over.
func (c *conn) reap() {
	freeze := c.d.connFreeze()
	select {
	case <-c.gone:
	case <-c.d.halt:
	case <-freeze:
		return
	case <-c.kill:
		c.d.engine.EndWaits(c.s)
		c.Flush()
		_ = c.sock.CloseWrite()
		if !c.awaitPeer(freeze) {
			return
		}
	}
	c.peer.Close()
	c.hello.Stop()
	if c.d.halted() && !isClosed(c.gone) {
		_ = c.sock.Close()
		c.d.forget(c) // its keys stay closed until their leases end
		return
	}
	c.d.engine.End(c.s)
	_ = c.sock.Close()
	// The reader may still handle a hello. The audit log has the end of a session after its beginning.
	c.peerGone()
	c.reader.Wait()
	c.d.audit.SessionEnds(c.s)
	c.d.forget(c)
}

// awaitPeer waits until the client can no longer rely on any hold: it has gone, or the validity
// stated to it is over. It returns false if a freeze begins before that.
func (c *conn) awaitPeer(freeze <-chan struct{}) bool {
	for c.s.Holds() > 0 {
		left := c.s.Stated() - c.d.clock()
		if left <= 0 {
			break
		}
		// The timer does not count the time of a suspend. So the loop compares the clock again.
		wait := time.NewTimer(time.Duration(left))
		select {
		case <-c.gone:
		case <-c.d.halt:
		case <-freeze:
			wait.Stop()
			return false
		case <-wait.C:
			continue
		}
		wait.Stop()
		break
	}
	return true
}

// Kill ends the session from the daemon's side. It does not block.
func (c *conn) Kill() {
	if !c.killed.Swap(true) {
		close(c.kill)
	}
}

// Flush writes the outbox without blocking. If the socket does not accept everything, a writer
// goroutine writes the rest.
func (c *conn) Flush() {
	c.mu.Lock()
	if c.writing { // that goroutine writes the new output, too
		c.again = true
		c.mu.Unlock()
		return
	}
	c.writing = true
	c.mu.Unlock()
	buf := getBuffer()
	for {
		*buf = c.s.Swap(*buf)
		if rest := c.tryWrite(*buf); len(rest) > 0 {
			c.start(&c.writer, func() { c.writeRest(buf, rest) })
			return
		}
		if c.finishWriting() {
			break
		}
	}
	putBuffer(buf)
}

// finishWriting gives up the right to write and returns true, unless there is more to write.
func (c *conn) finishWriting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.again {
		c.again = false
		return false
	}
	c.writing = false
	return true
}

// tryWrite writes without blocking and returns the bytes that the socket did not take. On a broken
// connection it returns none: the reader will notice.
func (c *conn) tryWrite(b []byte) []byte {
	n, err := c.sock.TryWrite(b)
	if err != nil {
		return nil
	}
	return b[n:]
}

// writeRest is the writer, for a client that reads slowly. It writes rest, which is a part of buf,
// and then the outbox until that is empty. Meanwhile, output collects in the outbox, up to its
// limit.
func (c *conn) writeRest(buf *[]byte, rest []byte) {
	for {
		n, err := c.sock.Write(rest)
		if c.d.frozen.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			c.unsent = slices.Clone(rest[n:]) // writing stays true, so that output stays in order
			break
		}
		if err != nil {
			break // writing stays true, so that nobody else writes to the broken connection
		}
		*buf = c.s.Swap(*buf)
		if rest = *buf; len(rest) == 0 && c.finishWriting() {
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
