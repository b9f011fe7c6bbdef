package chaos

import (
	"net"
	"sync"
)

// hub listens on a free port of the loopback interface, and ends with all its connections.
type hub struct {
	l  net.Listener
	wg sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu; nil after close
}

func newHub() (*hub, error) {
	l, err := net.Listen("tcp", serverHost+":0")
	if err != nil {
		return nil, err
	}
	return &hub{l: l, conns: map[net.Conn]bool{}}, nil
}

func (h *hub) addr() string { return h.l.Addr().String() }

// start serves each connection in a goroutine of its own, and then closes the connection.
func (h *hub) start(serve func(net.Conn)) {
	h.wg.Go(func() {
		for {
			c, err := h.l.Accept()
			if err != nil {
				return
			}
			if h.keep(c) {
				h.wg.Go(func() {
					defer h.drop(c)
					serve(c)
				})
			}
		}
	})
}

// close ends all connections and waits for their goroutines.
func (h *hub) close() {
	h.l.Close()
	h.mu.Lock()
	for c := range h.conns {
		c.Close()
	}
	h.conns = nil
	h.mu.Unlock()
	h.wg.Wait()
}

// keep records a connection until it is dropped. It returns false after close.
func (h *hub) keep(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conns == nil {
		c.Close()
		return false
	}
	h.conns[c] = true
	return true
}

func (h *hub) drop(c net.Conn) {
	c.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, c)
}
