package conformance

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/locksidecar/locksidecar/protocol"
)

// fake is a daemon that sends what the scenario chooses. It welcomes every client, answers pings,
// and checks what the client sends against the protocol. The scenario reads all other requests with
// next, and answers them.
type fake struct {
	t    *T
	ln   *net.UnixListener
	wg   sync.WaitGroup
	skew int64 // milliseconds by which its clock is ahead
	// hello answers a hello; nil for an ordinary welcome. It is set before listen.
	hello    func(c *fakeConn, q *protocol.Request)
	limit    int    // max_frame
	barriers uint64 // number of barriers so far
	last     asked  // the last request that hold has answered
	strays   bool   // a hold ends by itself, and the client may release it at any time
	// lostReleased has, by key, the fences of lost holds that the client has released. The client
	// may tell the daemon of such a release, even after it has answered its program.
	lostReleased map[string]Fence

	mu      sync.Mutex
	queue   []asked       // guarded by mu: requests that the scenario has not read
	conns   []*fakeConn   // guarded by mu
	changed chan struct{} // guarded by mu
	pings   int           // guarded by mu
	hung    bool          // guarded by mu: neither hellos nor pings are answered
	closed  bool          // guarded by mu
}

// fakeConn is one connection of the client.
type fakeConn struct {
	f  *fake
	nc *net.UnixConn

	fromClient tracer // used by the reader goroutine only
	sending    sync.Mutex
	toClient   tracer // guarded by sending
	between    bool   // guarded by sending: half of a frame has been sent
	later      []byte // guarded by sending: bytes that wait for the other half

	mu    sync.Mutex
	using map[uint64]bool // guarded by mu: ids in flight
	ended bool            // guarded by fake.mu: the client has closed its end
}

// asked is a request that the client sent.
type asked struct {
	protocol.Request
	c *fakeConn
}

// farAway is how long, in milliseconds, a hold is valid that is not meant to end.
const farAway = 3_600_000

// fake starts a daemon that listens at the client's socket.
func (t *T) fake() *fake {
	f := t.fakeWith(nil)
	f.listen()
	return f
}

// fakeWith returns a fake that does not listen yet.
func (t *T) fakeWith(hello func(c *fakeConn, q *protocol.Request)) *fake {
	return &fake{t: t, hello: hello, limit: protocol.DefaultMaxFrame, changed: make(chan struct{}),
		lostReleased: map[string]Fence{}}
}

func (f *fake) listen() {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: f.t.socket, Net: "unix"})
	f.t.must(err)
	f.ln = ln
	f.t.defers(f.close)
	f.wg.Go(func() {
		for {
			nc, err := ln.AcceptUnix()
			if err != nil {
				return
			}
			c := &fakeConn{f: f, nc: nc, using: map[uint64]bool{},
				fromClient: tracer{note: f.t.p.frame, from: 'C'},
				toClient:   tracer{note: f.t.p.frame, from: 'D'}}
			f.change(func() {
				f.conns = append(f.conns, c)
				if f.closed {
					_ = nc.Close()
				}
			})
			f.wg.Go(c.serve)
		}
	})
}

func (f *fake) close() {
	_ = f.ln.Close()
	f.change(func() { f.closed = true })
	for _, c := range f.all() {
		_ = c.nc.Close()
	}
	f.wg.Wait()
}

func (f *fake) all() []*fakeConn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]*fakeConn(nil), f.conns...)
}

func (f *fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// now returns the time of the fake's clock.
func (f *fake) now() uint64 { return uint64(int64(bootMillis()) + f.skew) }

func (f *fake) welcome() *protocol.Welcome {
	return &protocol.Welcome{Version: 1, Session: 12, Now: f.now(), MaxFrame: uint64(f.limit),
		MinTTL: 1, DefaultTTL: 30_000,
		MaxTTL: protocol.MaxTTL, Watch: protocol.WatchProcess, Daemon: "conformance",
		Namespaces: []protocol.Namespace{{Prefix: "", Store: "embedded", Safety: "linearizable"}}}
}

// serve reads what the client sends on one connection.
func (c *fakeConn) serve() {
	f := c.f
	defer f.change(func() { c.ended = true })
	r := bufio.NewReaderSize(c.nc, 64<<10)
	for first := true; ; first = false {
		q, err := c.read(r)
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !isClosed(err) {
				f.t.fault(err)
			}
			return
		}
		if first != (q.Op == protocol.OpHello) {
			f.t.fault(fmt.Errorf("the first request is a hello, and no other; the client sent op "+
				"%d", q.Op))
			return
		}
		switch q.Op {
		case protocol.OpHello:
			if q.MinVersion > 1 || q.MaxVersion < 1 {
				f.t.fault(fmt.Errorf("hello with the versions %d to %d; this is version 1",
					q.MinVersion, q.MaxVersion))
				return
			}
			hung := false
			f.change(func() { hung = f.hung })
			switch {
			case hung:
			case f.hello != nil:
				f.hello(c, &q)
			default:
				c.answer(q.ID, protocol.AppendWelcome(nil, q.ID, f.welcome()))
			}
		case protocol.OpPing:
			hung := false
			f.change(func() { f.pings++; hung = f.hung })
			if !hung {
				c.answer(q.ID, protocol.AppendPong(nil, q.ID, f.now()))
			}
		default:
			f.change(func() { f.queue = append(f.queue, asked{q, c}) })
		}
	}
}

func isClosed(err error) bool {
	var op *net.OpError
	return errors.Is(err, net.ErrClosed) || errors.As(err, &op) // reset by the end of the client
}

// read reads one request. An error that does not come from the socket is a fault of the client.
func (c *fakeConn) read(r io.Reader) (q protocol.Request, err error) {
	var h [protocol.HeaderLen]byte
	if _, err = io.ReadFull(r, h[:]); err != nil {
		return q, err
	}
	c.fromClient.saw(h[:])
	n := binary.BigEndian.Uint32(h[:])
	if n == 0 || int64(n) > int64(c.f.limit) {
		return q, fmt.Errorf("the client sent a header of %d bytes; the frame limit is %d",
			n, c.f.limit)
	}
	b := make([]byte, n)
	if _, err = io.ReadFull(r, b); err != nil {
		return q, err
	}
	c.fromClient.saw(b)
	if err = protocol.DecodeRequest(b, &q); err != nil {
		return q, fmt.Errorf("the client sent % x, which is not a request as it should be: %w",
			b, err)
	}
	if q.Op == protocol.OpRelease && q.Flags&protocol.FlagQuiet != 0 {
		return q, nil // it is not answered, so it is never in flight
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.using[q.ID] {
		return q, fmt.Errorf("the client used the id %d for a request while another with it is "+
			"in flight", q.ID)
	}
	c.using[q.ID] = true
	return q, nil
}

// send writes bytes as they are. If the client has gone meanwhile, that is not a fault here.
func (c *fakeConn) send(b []byte) {
	c.sending.Lock()
	defer c.sending.Unlock()
	if c.between {
		c.later = append(c.later, b...)
		return
	}
	c.write(b)
}

// write writes bytes. It is called with sending held.
func (c *fakeConn) write(b []byte) {
	c.toClient.saw(b)
	_, _ = c.nc.Write(b)
}

// sendPieces writes b byte by byte.
func (c *fakeConn) sendPieces(b []byte) {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.toClient.saw(b)
	sendPieces(c.nc, b)
}

// sendAround writes first, runs do, and writes rest. Answers to pings wait for rest, so that first
// can end within a frame.
func (c *fakeConn) sendAround(first []byte, do func(), rest []byte) {
	c.sending.Lock()
	c.write(first)
	c.between = true
	c.sending.Unlock()
	do()
	c.sending.Lock()
	defer c.sending.Unlock()
	c.between = false
	c.write(rest)
	c.write(c.later)
	c.later = nil
}

// free records that the next frame answers the request with this id.
func (c *fakeConn) free(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.using, id)
}

// answer sends frame, the reply to id.
func (c *fakeConn) answer(id uint64, frame []byte) {
	c.free(id)
	c.send(frame)
}

// next waits for the client's next request that is not a ping.
func (f *fake) next(what string) (q asked) {
	f.await(what, func() bool {
		if len(f.queue) > 0 {
			q, f.queue = f.queue[0], f.queue[1:]
		}
		return q.c != nil || f.t.refused() != ""
	})
	if q.c == nil {
		f.t.failf("the client says that its last command has failed (%s), and has not asked the "+
			"daemon: waited for %s", f.t.refused(), what)
	}
	return q
}

// await waits until cond returns true. cond is called with mu held.
func (f *fake) await(what string, cond func() bool) {
	for {
		f.t.p.mu.Lock()
		said := f.t.p.changed
		f.t.p.mu.Unlock()
		f.mu.Lock()
		ok, changed := cond(), f.changed
		f.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-said:
		case err := <-f.t.faults:
			f.t.failf("%v", err)
		case <-f.t.p.ended:
			f.t.failf("waited for %s, but the client has ended", what)
		case <-f.t.ctx.Done():
			f.t.timeout(what)
		}
	}
}

// expect waits for a request with this op.
func (f *fake) expect(op protocol.Op, what string) asked {
	q := f.next(what)
	if q.Op != op {
		f.t.failf("waited for %s, but the client sent op %d for the key %q", what, q.Op, q.Key)
	}
	return q
}

func (f *fake) expectAcquire(key string) asked {
	q := f.next(fmt.Sprintf("the acquire of %.40q", key))
	for q.Op == protocol.OpRelease && (f.strays || f.lostReleased[string(q.Key)] == Fence(q.Fence)) {
		if f.strays {
			q.released()
		} else {
			q.refuse(protocol.NotHeld) // the client had answered its program before
		}
		q = f.next(fmt.Sprintf("the acquire of %.40q", key))
	}
	if q.Op != protocol.OpAcquire {
		f.t.failf("waited for the acquire of %.40q, but the client sent op %d for the key %q",
			key, q.Op, q.Key)
	}
	if string(q.Key) != key {
		f.t.failf("the client was told to acquire %q and asked for %q", key, q.Key)
	}
	return q
}

// parted waits until the client has closed its end of the connection. Meanwhile the client may have
// made another connection.
func (c *fakeConn) parted(why string) {
	c.f.await("the client to close its end of the connection: "+why, func() bool { return c.ended })
}

// awaitEnd waits for the end of a connection. The client itself may have ended.
func (f *fake) awaitEnd(c *fakeConn, what string) {
	f.t.poll(what, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return c.ended
	})
}

// newest returns the connection that the client made last.
func (f *fake) newest() (c *fakeConn) {
	f.await("the client to connect", func() bool {
		if n := len(f.conns); n > 0 {
			c = f.conns[n-1]
		}
		return c != nil
	})
	return c
}

// grant returns a grant that does not end while a scenario runs.
func (f *fake) grant(fence uint64) *protocol.Grant { return f.grantFor(farAway, fence) }

// grantFor returns a grant that is valid for left milliseconds.
func (f *fake) grantFor(left uint64, fence uint64) *protocol.Grant {
	return &protocol.Grant{Fence: fence, Left: left, Deadline: f.now() + left, Count: 1}
}

// give answers an acquire, renew or downgrade with a grant.
func (q asked) give(g *protocol.Grant) { q.c.answer(q.ID, protocol.AppendGrant(nil, q.ID, g)) }

// refuse answers a request with a failure, or pushes the failure of a quiet release.
func (q asked) refuse(c protocol.Code) {
	if q.Op == protocol.OpRelease && q.Flags&protocol.FlagQuiet != 0 {
		q.c.send(protocol.AppendReleaseFailed(nil, string(q.Key), q.Owner, q.Fence, c,
			"as the scenario says"))
		return
	}
	q.c.answer(q.ID, protocol.AppendError(nil, q.ID, c, "as the scenario says", -1))
}

// hold makes the client acquire key, and grants it.
func (f *fake) hold(w want, g *protocol.Grant) (asked, Fence) {
	p := f.t.acquire(w)
	q := f.expectAcquire(w.key)
	f.last = q
	q.give(g)
	if got := p.fence(); got != Fence(g.Fence) {
		f.t.failf("the grant of %q has the fence %d, and the client says %v", w.key, g.Fence, got)
	}
	return q, Fence(g.Fence)
}

// released answers a release, in the form that the request asks for.
func (q asked) released() {
	switch q.Op {
	case protocol.OpRelease:
		if q.Flags&protocol.FlagQuiet == 0 {
			q.c.answer(q.ID, protocol.AppendReleased(nil, q.ID, 0))
		}
	case protocol.OpReleaseMany:
		q.c.answer(q.ID, protocol.AppendCodes(nil, q.ID, make([]protocol.Code, len(q.Keys))))
	}
}

// letGo makes the client release its hold, and checks that the request has the right fence.
func (f *fake) letGo(key string, fence Fence) {
	p := f.t.release(key, fence)
	q := f.expect(protocol.OpRelease, fmt.Sprintf("the release of %q", key))
	if string(q.Key) != key || q.Fence != uint64(fence) {
		f.t.failf("the client was told to release %q with the fence %v and sent %q and %d",
			key, fence, q.Key, q.Fence)
	}
	q.released()
	p.ok()
}

// releaseLost makes the client release a hold that it knows to be lost. The release must fail with
// one of names, by default not_held. Before that, the client may not acquire the key again for the
// same owner. The client may tell the daemon of the release.
func (f *fake) releaseLost(key string, fence Fence, names ...string) {
	f.releaseLostAs(protocol.NotHeld, key, fence, names...)
}

// releaseLostAs is like releaseLost. If the client tells the daemon, the daemon answers with c.
func (f *fake) releaseLostAs(c protocol.Code, key string, fence Fence, names ...string) {
	f.lostReleased[key] = fence
	p := f.t.release(key, fence)
	f.t.poll(p.what, func() bool { f.answerReleases(c); return p.done() })
	if len(names) == 0 {
		names = []string{"not_held"}
	}
	p.fails(names...)
}

// answerReleases answers the releases that have arrived with c. Other requests stay in the queue.
func (f *fake) answerReleases(c protocol.Code) {
	f.mu.Lock()
	queue := f.queue
	f.queue = nil
	for _, q := range queue {
		if q.Op != protocol.OpRelease && q.Op != protocol.OpReleaseMany {
			f.queue = append(f.queue, q)
		}
	}
	f.mu.Unlock()
	for _, q := range queue {
		switch {
		case q.Op == protocol.OpRelease && c != protocol.OK:
			q.refuse(c)
		case q.Op == protocol.OpRelease:
			q.released()
		case q.Op == protocol.OpReleaseMany:
			codes := make([]protocol.Code, len(q.Keys))
			for i := range codes {
				codes[i] = c
			}
			q.c.answer(q.ID, protocol.AppendCodes(nil, q.ID, codes))
		}
	}
}

// barrier returns when the client has read everything that was sent to it before: the client
// acquires a key that nothing else uses, and the grant is sent last.
func (f *fake) barrier() {
	f.barriers++
	f.hold(want{key: fmt.Sprint("barrier-", f.barriers)}, f.grant(1<<50+f.barriers))
}
