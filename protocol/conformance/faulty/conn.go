package faulty

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/renewer"
)

// now returns milliseconds of the boot clock, which counts suspend.
func now() int64 { return renewer.Boottime() / int64(time.Millisecond) }

// The limits after which a daemon counts as hung.
const (
	// A ping is sent when nothing was read for this long while a reply is awaited.
	pingAfter = time.Second
	// The connection ends when nothing was read for this long after the ping.
	timeout = 5 * time.Second
)

// failure is the error of a request: the name of a code, or closed.
type failure string

func (f failure) Error() string { return string(f) }

// The names of codes and reasons, by number.
var (
	codes = [...]string{"ok", "busy", "timeout", "not_held", "canceled", "upgrade", "unavailable",
		"unknown", "limit", "invalid",
		"unsupported", "draining", "denied", "bad_frame", "bad_version", "too_slow", "overlong"}
	reasons = [...]string{"", "expired", "gone", "fixed_end", "forced", "session", "shutdown",
		"too_long", "silent"}
)

func named(table []string, prefix string, n uint64) string {
	if n < uint64(len(table)) {
		return table[n]
	}
	return fmt.Sprint(prefix, n)
}

// call is one request in flight. The reader calls take with a success, and fail with a failure, in
// the order of the replies. Either may be nil.
type call struct {
	op   int
	take func(f *fields) error
	fail func(failure)
	done chan error // gets one value
}

// conn is one session.
type conn struct {
	client *Client
	nc     *net.UnixConn
	calls  map[uint64]*call
	order  []uint64 // for a fault
	holds  []*hold
	// giving has the abandoned acquires whose cancel is not answered. Each channel is closed by the
	// answer.
	giving    map[keyOwner]chan struct{}
	lastID    uint64
	limit     int
	shift     int64 // from the daemon's clock to ours
	t0        int64
	keepalive int64 // for a fault
	heartbeat bool  // for a fault
	greeted   bool
	ended     error
	read      atomic.Int64 // when something was read last
}

func dial(c *Client) (*conn, error) {
	nc, err := net.Dial("unix", c.path)
	if err != nil {
		return nil, failure("closed")
	}
	cn := &conn{client: c, nc: nc.(*net.UnixConn), calls: map[uint64]*call{},
		giving: map[keyOwner]chan struct{}{},
		limit:  65536}
	if c.fault.is("leaves-its-descriptor-open-to-children") {
		if raw, err := cn.nc.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETFD, 0) })
		}
	}
	cn.read.Store(now())
	if c.fault.is("says-hello-late") {
		_, _ = cn.send(10, nil)
	}
	cn.t0 = now()
	hello, err := cn.send(1, &call{take: cn.welcomed}, 1, 1, "faulty", "")
	if err != nil {
		return nil, err
	}
	if c.fault.is("says-hello-twice") {
		_, _ = cn.send(1, nil, 1, 1, "faulty", "")
	}
	go cn.readAll()
	go cn.watch()
	c.mu.Unlock()
	err = <-hello.done
	c.mu.Lock()
	if err != nil {
		cn.end(err)
	}
	return cn, err
}

func (c *conn) welcomed(f *fields) error {
	version, _, clock, limit := f.num(), f.num(), f.num(), f.num()
	for range 4 { // TTLs, watch
		f.num()
	}
	for _, s := range f.array() {
		inner, ok := s.([]any)
		if !ok {
			return errBad
		}
		n := fields{vs: inner, fault: f.fault}
		n.text()
		n.text()
		n.text()
		if len(n.vs) > 0 && n.num() > 0 {
			c.heartbeat = true
		}
		if n.done() != nil {
			return errBad
		}
	}
	f.text()
	if err := f.done(); err != nil {
		return err
	}
	if version != 1 && !f.fault.is("speaks-any-version") {
		return failure("bad_version")
	}
	c.limit, c.greeted = int(limit), true
	t1, d := now(), int64(clock)
	quick := t1-c.t0 <= 100 || f.fault.is("believes-a-slow-hello")
	if c.t0 <= d && d <= t1 && quick || f.fault.is("takes-every-clock-for-its-own") {
		return nil
	}
	c.shift = c.t0 - d - 1
	if f.fault.is("maps-times-from-the-welcome") {
		c.shift = t1 - d
	}
	return nil
}

// local converts a time of the daemon's clock to ours.
func (c *conn) local(t uint64) int64 { return int64(t) + c.shift }

// send sends a request. It is called with Client.mu held.
func (c *conn) send(op int, cl *call, fs ...any) (*call, error) {
	if c.ended != nil {
		return nil, failure("closed")
	}
	if cl == nil {
		cl = &call{}
	}
	cl.op, cl.done = op, make(chan error, 1)
	c.lastID++
	id := c.lastID
	if c.client.fault.is("uses-one-id") {
		id = 7
	}
	payload := encode(nil, append([]any{op, id}, fs...))
	if len(payload) > c.limit && !c.client.fault.is("sends-any-size") {
		return nil, failure("invalid")
	}
	c.calls[id] = cl
	c.order = append(c.order, id)
	if _, err := c.nc.Write(frame(payload)); err != nil {
		return cl, nil // the reader reports the error
	}
	return cl, nil
}

// readAll reads frames until the connection ends.
func (c *conn) readAll() {
	f := c.client.fault
	why := error(failure("closed"))
	var in io.Reader = bufio.NewReader(c.nc)
	if f.is("takes-a-read-for-a-frame") {
		in = c.nc
	}
	for {
		payload, err := c.next(in)
		if err == nil {
			c.read.Store(now())
			c.client.mu.Lock()
			err = c.message(payload)
			c.client.mu.Unlock()
			if f.is("passes-over-bad-frames") && errors.Is(err, errBad) {
				err = nil
			}
		}
		if err != nil {
			var said failure
			if errors.As(err, &said) || errors.Is(err, errBad) {
				why = err
			}
			break
		}
	}
	if f.is("stays-when-the-daemon-hangs-up") && errors.Is(why, failure("closed")) {
		c.client.mu.Lock()
		c.finish(why)
		c.client.mu.Unlock()
		time.Sleep(time.Hour)
	}
	c.client.mu.Lock()
	c.end(why)
	c.client.mu.Unlock()
}

func (c *conn) next(in io.Reader) ([]byte, error) {
	f := c.client.fault
	if f.is("takes-a-read-for-a-frame") {
		b := make([]byte, 1<<20)
		n, err := in.Read(b)
		if err != nil {
			return nil, err
		}
		if n < 5 {
			return nil, errBad
		}
		return b[4:min(n, 4+int(binary.BigEndian.Uint32(b)))], nil
	}
	var h [4]byte
	if _, err := io.ReadFull(in, h[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(h[:])
	c.client.mu.Lock()
	limit := c.limit
	c.client.mu.Unlock()
	switch {
	case n == 0 && f.is("takes-empty-frames"):
		return encode(nil, []any{200, 0}), nil
	case n == 0, int64(n) > int64(limit) && !f.is("reads-any-size"), n > 4096 &&
		f.is("reads-short-frames"):
		return nil, errBad
	}
	b := make([]byte, min(int(n), 1<<24))
	_, err := io.ReadFull(in, b)
	return b, err
}

// message handles one frame. It is called with Client.mu held.
func (c *conn) message(payload []byte) error {
	fault := c.client.fault
	m, err := decode(payload, fault)
	if err != nil {
		return err
	}
	f := &fields{vs: m, fault: fault}
	code, id := f.num(), f.num()
	if fault.is("cuts-codes") {
		code &= 255
	}
	if f.err != nil || code > 255 {
		return errBad
	}
	if id == 0 {
		if !c.greeted && fault.is("expects-the-welcome-first") {
			return errBad
		}
		return c.push(code, f)
	}
	if fault.is("matches-replies-by-order") && len(c.order) > 0 {
		id, c.order = c.order[0], c.order[1:]
	}
	cl := c.calls[id]
	delete(c.calls, id)
	if cl == nil {
		if fault.is("refuses-unknown-ids") {
			return errBad
		}
		return nil
	}
	if code == 0 || code > 16 && fault.is("takes-unknown-codes-for-success") {
		if cl.take != nil {
			err = cl.take(f)
		}
		if err == nil || !fault.is("passes-over-bad-frames") {
			cl.done <- err
		}
		return err
	}
	text := f.text()
	if f.err != nil {
		cl.done <- failure("closed")
		return f.err
	}
	why := failure(named(codes[:], "code_", code))
	if fault.is("reads-texts") {
		if word, _, _ := strings.Cut(text, " "); word != "" {
			why = failure(word)
		}
	}
	if cl.fail != nil {
		cl.fail(why)
	}
	cl.done <- why
	return nil
}

func (c *conn) push(event uint64, f *fields) error {
	fault := c.client.fault
	switch event {
	case 64:
		n := name{f.text(), f.num(), 0}
		n.fence = f.num()
		reason := f.num()
		if err := f.done(); err != nil {
			return err
		}
		c.lost(n, named(reasons[:], "reason_", reason), reason)
	case 65:
		until := c.local(f.num())
		left := f.num()
		if err := f.done(); err != nil {
			return err
		}
		if fault.is("counts-left-from-receipt") {
			until = now() + int64(left)
		}
		c.keepalive = max(c.keepalive, until)
		for _, h := range c.holds {
			if !fault.is("ignores-keepalives") {
				h.stated(until)
			}
		}
		if !fault.is("answers-no-keepalives") && (c.heartbeat ||
			!fault.is("answers-keepalives-by-the-welcome")) {
			_, _ = c.send(10, nil)
		}
	case 66:
		f.num()
		f.text()
		if err := f.done(); err != nil {
			return err
		}
		if fault.is("leaves-when-told-of-a-drain") {
			return failure("draining")
		}
	case 67:
		code := f.num()
		f.text()
		if err := f.done(); err != nil {
			return err
		}
		if fault.is("stays-after-fatal") {
			return nil
		}
		return failure(named(codes[:], "code_", code))
	case 68:
		n := name{f.text(), f.num(), 0}
		n.fence = f.num()
		code := f.num()
		f.text()
		if err := f.done(); err != nil {
			return err
		}
		c.releaseFailed(n, named(codes[:], "code_", code))
	default:
		if fault.is("refuses-unknown-events") {
			return errBad
		}
	}
	return nil
}

// releaseFailed reports that a quiet release of the hold n has failed.
func (c *conn) releaseFailed(n name, code string) {
	fault := c.client.fault
	if fault.is("ends-holds-by-failed-releases") {
		c.lost(name{n.key, n.owner, c.client.newest[n.key]}, "gone", 2)
	}
	reason := "gone"
	if code == "unknown" {
		reason = "unconfirmed"
	}
	if !fault.is("ignores-failed-releases") {
		c.client.say(event{Event: "lost", Key: n.key, Owner: n.owner, Fence: n.fence, Reason: reason})
	}
}

// lost handles a lost push for the hold n.
func (c *conn) lost(n name, reason string, number uint64) {
	fault := c.client.fault
	if fault.is("ignores-lost") || fault.is("ignores-unknown-reasons") &&
		number >= uint64(len(reasons)) ||
		fault.is("hears-losses-of-owner-1-only") && n.owner != 1 || fault.is("ignores-fixed-ends") &&
		reason == "fixed_end" {
		return
	}
	for _, h := range c.holds {
		switch {
		case h.key != n.key:
		case h.owner != n.owner && !fault.is("takes-any-owner-for-lost"):
		case h.fence != n.fence && !fault.is("takes-any-fence-for-lost"):
		default:
			h.lose(reason)
		}
	}
}

// watch ends the connection if the daemon hangs, which means that it does not answer a ping while a
// reply is awaited.
func (c *conn) watch() {
	pinged, looks := int64(0), 0
	for range time.Tick(50 * time.Millisecond) {
		c.client.mu.Lock()
		if looks++; looks%40 == 0 {
			for _, h := range c.holds {
				h.believed = now() < h.until()
			}
		}
		read, fault := c.read.Load(), c.client.fault
		switch silent := now() - read; {
		case c.ended != nil:
			c.client.mu.Unlock()
			return
		case len(c.calls) == 0 || read >= pinged:
			pinged = 0
			if len(c.calls) > 0 && silent > pingAfter.Milliseconds() {
				if fault.is("takes-a-wait-for-a-hang") {
					c.end(failure("unavailable"))
				} else if !fault.is("waits-on-a-hung-daemon") {
					pinged = now()
					_, _ = c.send(10, nil)
				}
			}
		case now()-pinged > timeout.Milliseconds():
			c.end(failure("unavailable"))
		}
		c.client.mu.Unlock()
	}
}

// finish ends every hold and every request.
func (c *conn) finish(why error) {
	fault := c.client.fault
	if c.ended != nil {
		return
	}
	c.ended = why
	for _, h := range c.holds {
		h.lose("connection")
	}
	if errors.Is(why, errBad) {
		why = failure("bad_frame")
	}
	for _, cl := range c.calls {
		if fault.is("leaves-waits-hanging") && (cl.op == 2 || cl.op == 8) ||
			fault.is("leaves-renewals-hanging") && cl.op == 4 {
			continue
		}
		cl.done <- why
	}
	for _, ch := range c.giving {
		close(ch)
	}
	c.calls, c.giving = nil, nil
}

// end ends every hold and every request, and closes the connection. It is called with Client.mu
// held.
func (c *conn) end(why error) {
	c.finish(why)
	_ = c.nc.Close()
}

// shutdown ends the session for every process that has the socket. Only a fault uses it.
func (c *conn) shutdown() {
	if raw, err := c.nc.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
}
