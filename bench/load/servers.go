package load

import (
	"net"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
)

// The bare servers bound what any daemon of this design could do. They have the same sockets and
// frames and one goroutine per connection, and do almost nothing else.

// ServeEcho answers frames with frames. It answers all frames of one read with one write. The first
// two bytes of a request are the number of bytes of its answer.
func ServeEcho(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go echo(c)
	}
}

func echo(c net.Conn) {
	defer c.Close()
	w := &wire{conn: c, buf: make([]byte, 64<<10)}
	out := make([]byte, 0, 64<<10)
	for w.fill() == nil {
		for {
			p, ok := w.took()
			if !ok {
				break
			}
			reply := int(p[0])<<8 + int(p[1])
			out = append(out, 0, 0, byte(reply>>8), byte(reply))
			out = append(out, zeros[:reply]...)
		}
		if _, err := c.Write(out); err != nil {
			return
		}
		out = out[:0]
	}
}

var zeros [1 << 16]byte

// turnstile hands one lock from connection to connection, in order of arrival. It has only one key,
// and no time limits and no state of its clients. If a client leaves while it holds the lock, the
// lock is gone.
type turnstile struct {
	mu    sync.Mutex
	held  bool    // guarded by mu
	fence uint64  // guarded by mu
	queue []*turn // guarded by mu
}

// turn is a connection's place in the queue.
type turn struct {
	c  net.Conn
	id uint64
}

// ServeTurnstile hands off one key. It understands only the requests of the chain load.
func ServeTurnstile(l net.Listener) error {
	t := &turnstile{fence: 1 << 50}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go t.serve(c)
	}
}

func (t *turnstile) serve(c net.Conn) {
	defer c.Close()
	w := &wire{conn: c, buf: make([]byte, 64<<10)}
	var own, theirs []byte
	var q protocol.Request
	for w.fill() == nil {
		own, theirs = own[:0], theirs[:0]
		var next *turn
		for {
			p, ok := w.took()
			if !ok {
				break
			}
			if protocol.DecodeRequest(p, &q) != nil {
				return
			}
			switch q.Op {
			case protocol.OpHello:
				own = protocol.AppendWelcome(own, q.ID, &protocol.Welcome{Version: protocol.Version})
			case protocol.OpAcquire:
				own = t.acquire(own, &turn{c, q.ID})
			case protocol.OpRelease:
				if q.Flags&protocol.FlagQuiet == 0 {
					own = protocol.AppendReleased(own, q.ID, 0)
				}
				next, theirs = t.release(theirs)
			}
		}
		if next != nil {
			next.c.Write(theirs)
		}
		if len(own) > 0 {
			c.Write(own)
		}
	}
}

func (t *turnstile) acquire(b []byte, me *turn) []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held {
		t.queue = append(t.queue, me)
		return b
	}
	t.held = true
	return t.grantLocked(b, me)
}

func (t *turnstile) release(b []byte) (*turn, []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		t.held = false
		return nil, b
	}
	next := t.queue[0]
	t.queue = t.queue[1:]
	return next, t.grantLocked(b, next)
}

func (t *turnstile) grantLocked(b []byte, to *turn) []byte {
	t.fence++
	return protocol.AppendGrant(b, to.id, &protocol.Grant{Fence: t.fence, Left: 30_000,
		Deadline: 1 << 31, Count: 1})
}
