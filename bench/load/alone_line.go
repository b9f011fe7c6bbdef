package load

import (
	"fmt"
	"io"
	"net"
	"time"

	"github.com/locksidecar/locksidecar/bench/faultproxy"
	"github.com/locksidecar/locksidecar/bench/harness"
)

// lineOrder tells the line server what to do.
type lineOrder struct {
	Target    string        // "host:port" of the server behind the line
	RoundTrip time.Duration // how much longer a round trip takes than without the line
}

// ServeLine is a process with delaying proxies. Each proxy exists while the connection that ordered
// it is open.
func ServeLine(l net.Listener) error {
	return serveOrders(l, func(o *lineOrder) (orderReady, func()) {
		p, err := newLine(o)
		if err != nil {
			return orderReady{Err: err.Error()}, nil
		}
		return orderReady{Addr: p.Addr()}, func() { p.Close() }
	})
}

// OpenLine makes the line server at socket open a line to target. The line exists until close is
// called.
func OpenLine(socket, target string, roundTrip time.Duration) (addr string,
	close func() error, err error) {
	addr, close, err = order(socket, lineOrder{target, roundTrip})
	if err != nil {
		return "", nil, fmt.Errorf("open a delayed line to %s: %w", target, err)
	}
	return addr, close, nil
}

// newLine starts a proxy. Its delay is shorter by what the proxy and the kernel's timers add, so
// that a round trip takes longer by exactly the ordered time.
func newLine(o *lineOrder) (*faultproxy.Proxy, error) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { io.Copy(c, c); c.Close() }()
		}
	}()
	bare, err := roundTrip(echo.Addr().String())
	if err != nil {
		return nil, err
	}
	trial, err := faultproxy.TCP(echo.Addr().String())
	if err != nil {
		return nil, err
	}
	defer trial.Close()
	trial.Delay(faultproxy.Both, o.RoundTrip/2)
	delayed, err := roundTrip(trial.Addr())
	if err != nil {
		return nil, err
	}
	p, err := faultproxy.TCP(o.Target)
	if err == nil {
		p.Delay(faultproxy.Both, max(0, o.RoundTrip-(delayed-bare)/2))
	}
	return p, err
}

// roundTrip returns the median time of an echo.
func roundTrip(addr string) (time.Duration, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var h harness.Hist
	b := make([]byte, 48)
	for range 500 {
		began := time.Now()
		if _, err := c.Write(b); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return 0, err
		}
		h.Add(time.Since(began))
	}
	return h.Quantile(0.5), nil
}
