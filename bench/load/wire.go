package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/locksidecar/locksidecar/protocol"
)

// wire is a connection that only one goroutine reads and writes.
type wire struct {
	conn   net.Conn
	thread *blocking       // replaces conn after block
	ctx    context.Context // the caller's context, for thread
	buf    []byte
	from   int // buf[from:to] was read, but not taken yet
	to     int
}

// start prepares w for a caller's loop, which ends with ctx.
func (w *wire) start(ctx context.Context, thread bool) (stop func() bool, err error) {
	w.ctx = ctx
	if thread {
		if err := w.block(); err != nil {
			return nil, err
		}
		if w.thread != nil {
			return func() bool { return true }, nil // read checks ctx itself
		}
	}
	return context.AfterFunc(ctx, func() { w.conn.Close() }), nil
}

func (w *wire) send(b []byte) error {
	if w.thread != nil {
		return w.thread.write(b)
	}
	_, err := w.conn.Write(b)
	return err
}

// Close ends the connection.
func (w *wire) Close() error {
	if w.thread != nil {
		return w.thread.close()
	}
	return w.conn.Close()
}

func dial(path string) (*wire, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &wire{conn: c, ctx: context.Background(), buf: make([]byte, 64<<10)}, nil
}

// dialDaemon connects and says hello.
func dialDaemon(path string) (*wire, error) {
	w, err := dial(path)
	if err != nil {
		return nil, err
	}
	m, err := w.call(&protocol.Request{Op: protocol.OpHello, ID: 1, MinVersion: protocol.MinVersion,
		MaxVersion: protocol.Version, Name: []byte("bench")})
	if err == nil && m.Code != protocol.OK {
		err = fmt.Errorf("hello was answered %v", m.Code)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// call sends one request and returns its reply, which is valid until the next read.
func (w *wire) call(q *protocol.Request) (protocol.Message, error) {
	if err := w.send(protocol.AppendRequest(nil, q)); err != nil {
		return protocol.Message{}, err
	}
	for {
		p, err := w.next()
		if err != nil {
			return protocol.Message{}, err
		}
		m, err := protocol.DecodeMessage(p)
		if err != nil || m.ID == q.ID {
			return m, err
		}
	}
}

// next returns the next payload, and reads only if there is none. The payload is valid until the
// next read.
func (w *wire) next() ([]byte, error) {
	for {
		if p, ok := w.took(); ok {
			return p, nil
		}
		if err := w.fill(); err != nil {
			return nil, err
		}
	}
}

// took returns the next payload if it has been read already.
func (w *wire) took() ([]byte, bool) {
	b := w.buf[w.from:w.to]
	if len(b) < protocol.HeaderLen {
		return nil, false
	}
	end := protocol.HeaderLen + int(binary.BigEndian.Uint32(b))
	if len(b) < end {
		return nil, false
	}
	w.from += end
	return b[protocol.HeaderLen:end], true
}

// fill reads once.
func (w *wire) fill() error {
	if w.from > 0 {
		w.to = copy(w.buf, w.buf[w.from:w.to])
		w.from = 0
	}
	if w.to == len(w.buf) {
		return errors.New("a frame is larger than the buffer")
	}
	var n int
	var err error
	if w.thread != nil {
		n, err = w.thread.read(w.ctx, w.buf[w.to:])
	} else {
		n, err = w.conn.Read(w.buf[w.to:])
	}
	w.to += n
	return err
}

// acquire waits for a key, and returns its fence.
func (w *wire) acquire(id uint64, key string) (uint64, error) {
	m, err := w.call(&protocol.Request{Op: protocol.OpAcquire, ID: id, Key: []byte(key), Owner: 1,
		Wait: protocol.WaitAlways})
	if err != nil {
		return 0, err
	}
	if m.Code != protocol.OK {
		return 0, fmt.Errorf("acquire %s was answered %v", key, m.Code)
	}
	g, err := m.Grant()
	return g.Fence, err
}
