package load

import (
	"net"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
)

// The bare servers bound what any daemon written like this one could do: the same
// sockets and frames, one goroutine a connection, and next to nothing behind them.

// ServeEcho answers frames with frames: all that one read has brought with one
// write. The first two bytes of a request are how many bytes its answer has.
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

// turnstile hands one lock from connection to connection, in order of arrival. It
// has one key, no time, no memory and no mercy: a client that leaves while it
// holds takes the lock with it.
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

// ServeTurnstile passes one key on. It understands what the chain load says.
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
