package daemon

import (
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/sock"
)

// conn is a session's socket: one reader, and a writer that exists only while
// the client is slower than we are. Everybody else writes without blocking.
type conn struct {
	d     *Daemon
	s     *Session
	sock  *sock.Conn
	peer  *peerWatch
	hello *time.Timer // the session has to begin before

	mu      sync.Mutex // guards the two below; not held during I/O
	writing bool       // somebody has the right to write
	again   bool       // and has to look once more

	reader sync.WaitGroup // the goroutine of read
	reaper sync.WaitGroup // the goroutine of reap, which may start the writer of any connection
	writer sync.WaitGroup // the goroutine of slowly
	turn   turn           // owned by the reader
	input  []byte         // owned by the reader while it runs: bytes that were read and not handled yet
	deaf   bool           // owned by the reader: we have ended the session, and handle nothing more
	unsent []byte         // while parked: bytes that the writer has taken and not written

	// handling is held while the reader handles requests. It is taken before any shard's lock. A goroutine
	// that takes it finds each request that was read either answered or on its way to a store.
	handling sync.Mutex

	kill   chan struct{} // closed when we end the session
	killed atomic.Bool
	gone   chan struct{} // closed when the peer has ended
	once   sync.Once
}

func newConn(d *Daemon, nc *sock.Conn) *conn {
	return &conn{d: d, sock: nc, kill: make(chan struct{}), gone: make(chan struct{})}
}

// readBuffer is what a connection's reader starts with, in bytes.
const readBuffer = 8 << 10

// run starts the reader and who waits for the end, anew when they were parked.
func (c *conn) run() {
	c.readOn()
	c.start(&c.reaper, c.reap)
	if len(c.unsent) > 0 {
		buf := getBuffer()
		rest := c.unsent
		c.unsent = nil
		c.start(&c.writer, func() { c.slowly(buf, rest) })
	}
}

func (c *conn) readOn() { c.start(&c.reader, c.read) }

// start runs f on a goroutine. Serve waits for it, and so do waiters on group.
func (c *conn) start(group *sync.WaitGroup, f func()) {
	group.Add(1)
	c.d.wg.Go(func() {
		defer group.Done()
		f()
	})
}

// read is the reader. It returns when the peer has gone, or has to be taken for gone; or when it is
// to be parked, at the end of a frame or in the midst of one. When we have ended the session it
// reads on for the end of the peer alone.
func (c *conn) read() {
	buf := c.input
	if buf == nil {
		buf = make([]byte, 0, readBuffer)
	}
	t := &c.turn
	more := len(buf) > 0 // there may be whole frames in buf
	for {
		if !c.keepPace(t) {
			c.input = buf
			return
		}
		if more {
			buf, more = c.handle(buf, t)
			continue
		}
		t.reads(c.sock)
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, min(cap(buf), c.d.cfg.Limits.MaxFrame+protocol.HeaderLen))...)[:len(buf)]
		}
		n, err := c.sock.Read(buf[len(buf):cap(buf)])
		if c.d.frozen.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			c.input = buf
			return
		}
		if err != nil {
			break
		}
		c.d.read.Add(uint64(n))
		t.does(n >> 10)
		if !c.deaf {
			buf, more = c.handle(buf[:len(buf)+n], t)
		}
	}
	c.leave()
}

// handle handles frames in b, in turns with others and no more at once than the user's rate allows. The rest of b
// goes to its front. More reports whether there may be whole frames in it.
func (c *conn) handle(b []byte, t *turn) (rest []byte, more bool) {
	t.limit = c.s.pace.limit.Load()
	all, spent := b, 0
	for more = true; more && !c.deaf && (spent == 0 || t.limit == nil); {
		most := turnMost
		if t.limit != nil {
			most = t.limit.portion(c.d.clock())
		}
		var work int
		var ok bool
		c.handling.Lock()
		b, work, ok = c.s.receive(b, most)
		c.handling.Unlock()
		c.deaf, more = !ok, work >= most
		t.does(work)
		spent += work
	}
	t.spent += max(spent, (len(all)-len(b))>>10)
	if c.deaf {
		b, more = nil, false
	}
	return all[:copy(all, b)], more
}

// A reader that finds something each time it looks is always ready to run, and keeps those from
// being heard of who are not: it lets them go first after each turn.
const (
	turnMost = 32                    // requests, keys of theirs, reads, and KiB of these: then it looks at the clock
	turnLong = 50 * time.Microsecond // for so long it goes on at least
)

// turn is what a reader has done since it last waited.
type turn struct {
	dry   uint32
	work  int
	since time.Time  // zero before the first look
	spent int        // requests, and keys of theirs, that its user's pace does not know of; for large ones KiB
	light bool       // spent is what the connection itself counts
	limit *rateLimit // that applied when they were handled
}

// reads comes before each read.
func (t *turn) reads(s *sock.Conn) {
	if n := s.Dry(); n != t.dry {
		t.dry, t.work, t.since = n, 0, time.Time{}
	}
	t.does(1)
}

func (t *turn) does(work int) {
	if t.work += work; t.work < turnMost {
		return
	}
	t.work = 0
	now := time.Now()
	if t.since.IsZero() {
		t.since = now
	} else if now.Sub(t.since) >= turnLong {
		sock.Yield()
		t.since = time.Now()
	}
}

// Yield has somebody who ends the session let others go first.
func (c *conn) Yield() { sock.Yield() }

// leave notes that the peer has ended.
func (c *conn) leave() { c.once.Do(func() { close(c.gone) }) }

// reap waits for the session's end and gives back what it held. A session that
// we end keeps its keys until the peer has closed its side or ended, or until
// nothing that we have stated is valid any more.
func (c *conn) reap() {
	park := c.d.parking()
	select {
	case <-c.gone:
	case <-c.d.halt:
	case <-park:
		return
	case <-c.kill:
		c.d.engine.EndWaits(c.s)
		c.Flush()
		_ = c.sock.CloseWrite()
		if !c.waitParted(park) {
			return
		}
	}
	c.peer.close()
	c.hello.Stop()
	if c.d.halted() && !c.left() {
		_ = c.sock.Close()
		c.d.forget(c) // its keys stay closed until they end by themselves
		return
	}
	c.d.engine.End(c.s)
	c.d.sessionEnds(c.s)
	_ = c.sock.Close()
	c.d.forget(c)
}

// waitParted waits until the client cannot believe any more that it holds
// anything; false when it is to be parked before.
func (c *conn) waitParted(park <-chan struct{}) bool {
	for c.s.core.Holds.Load() > 0 {
		left := c.s.Stated() - c.d.clock()
		if left <= 0 {
			break
		}
		wait := time.NewTimer(time.Duration(left)) // does not count sleep: hence the loop
		select {
		case <-c.gone:
		case <-c.d.halt:
		case <-park:
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
			c.start(&c.writer, func() { c.slowly(buf, rest) })
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
	n, err := c.sock.TryWrite(b)
	if err != nil {
		return nil
	}
	return b[n:]
}

// slowly is the writer of a client that does not keep up. What it does not read
// gathers in the outbox, up to its bound.
func (c *conn) slowly(buf *[]byte, rest []byte) {
	for {
		n, err := c.sock.Write(rest)
		if c.d.frozen.Load() && errors.Is(err, os.ErrDeadlineExceeded) {
			c.unsent = slices.Clone(rest[n:]) // and the right to write stays taken
			break
		}
		if err != nil {
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
