package load

import (
	"encoding/json"
	"errors"
	"io"
	"net"
)

// orderReady is the answer to an order.
type orderReady struct {
	Addr string // "host:port" for clients; only from the line server
	Err  string
}

// serveOrders accepts connections, and carries out one order for each. begin returns the answer,
// and the function that is called when the connection ends; nil after an error.
func serveOrders[O any](l net.Listener, begin func(*O) (orderReady, func())) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			var o O
			if json.NewDecoder(c).Decode(&o) != nil {
				return // it has only checked that the server listens
			}
			ready, end := begin(&o)
			if end != nil {
				defer end()
			}
			json.NewEncoder(c).Encode(ready)
			if end != nil {
				io.Copy(io.Discard, c)
			}
		}()
	}
}

// order sends an order to the server at socket. The order is in force until close is called.
func order(socket string, o any) (addr string, close func() error, err error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return "", nil, err
	}
	var r orderReady
	if err = json.NewEncoder(c).Encode(o); err == nil {
		err = json.NewDecoder(c).Decode(&r)
	}
	if err == nil && r.Err != "" {
		err = errors.New(r.Err)
	}
	if err != nil {
		c.Close()
		return "", nil, err
	}
	return r.Addr, c.Close, nil
}
