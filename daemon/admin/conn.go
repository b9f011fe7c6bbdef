package admin

import (
	"io"
	"net"
)

// listener accepts connections for the admin server.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if u, ok := c.(*net.UnixConn); ok {
		return &conn{UnixConn: u}, nil
	}
	return c, err
}

// conn is a connection to the admin socket. It refuses clients of the protocol for locks at once.
// The HTTP server would wait for the end of a line until its timeout, and the client would get no
// answer before that.
type conn struct {
	*net.UnixConn
	begun bool
}

// notHTTP is the answer to a frame: its first four bytes are what clients recognize.
const notHTTP = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n" +
	"Connection: close\r\n\r\nthis is the admin socket, which speaks HTTP; " +
	"the socket for locks has the same name without .admin\n"

// Read reads as UnixConn does. After a first byte of 0, which begins the header of a frame and
// never a request of HTTP, it sends notHTTP and returns io.EOF.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.UnixConn.Read(b)
	if n > 0 && !c.begun {
		c.begun = true
		if b[0] == 0 {
			_, _ = io.WriteString(c.UnixConn, notHTTP)
			return 0, io.EOF
		}
	}
	return n, err
}
