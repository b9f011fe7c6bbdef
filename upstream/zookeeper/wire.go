package zookeeper

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/protocol/sock"
)

// Sizes of what a server sends: the answer to a connect request has one of two,
// all else has a header.
const (
	helloOld, helloNew = 36, 37
	frameMin           = 16
	frameMax           = 16 << 20
	zxidAt, zxidEnd    = 4, 12 // of the transaction id in a reply's header
)

// Codes in requests' headers.
const (
	opMulti      = 14 // a transaction
	opSetWatches = 101
)

// holdBack bounds how long the library is waited for: see wire.rewatched.
const holdBack = 200 * time.Millisecond

var (
	errRetired     = errors.New("this session is over")
	errNotSpeaking = errors.New("what it says is not ZooKeeper's protocol (look at the port)")
	errClosedEarly = errors.New("it closes the connection before it has said anything: it is starting, it has no quorum, " +
		"it is full (maxClientCnxns), or it wants TLS (tls=true)")
	errNotResumed = errors.New("it closes the connection before it has said anything: it is starting, it has no quorum, " +
		"it has too many connections (maxClientCnxns), or it has lost data that this daemon has seen")
	errMute = errors.New("it accepts connections and says nothing")
)

// wire is one connection. It knows when the connect request was sent and what the
// server granted, which the library keeps to itself, and lets nothing through
// that the library could trip over.
type wire struct {
	net.Conn
	se    *session
	limit time.Time // until when the server has to have said hello

	in     *bufio.Reader // the library reads each frame in two pieces
	opened bool          // the connect request was sent; of the library's loop
	head   []byte        // the length of the frame that is being read; used by the reader only
	start  []byte        // the first zxidEnd bytes of its body; used by the reader only
	left   int           // bytes of its body that have not come
	hello  []byte        // the connect response, until it is complete

	sent      int64 // when, on the boot clock, the connect request was sent; stands once ready
	id        int64 // the session's; stands once ready
	ttl       time.Duration
	closed    atomic.Bool // it is not counted any more
	greeted   atomic.Bool // the connect response was read
	confirmed atomic.Bool // something of ours was answered that went through the quorum

	again   bool          // the session has had an earlier connection
	resumed bool          // the session may have had watches on an earlier connection
	watches chan struct{} // closed when the library has set them again
	reading bool          // something but the connect response was read; of whoever reads

	out struct {
		sync.Mutex
		count int           // transactions that have been written; guarded by Mutex
		next  chan struct{} // closed when another has been; guarded by Mutex
	}

	touches []touch // guarded by se.mu
}

// touch is something that was asked on a connection and answered.
type touch struct{ sent, answered int64 }

// Write stamps the connect request.
func (w *wire) Write(p []byte) (int, error) {
	if !w.opened {
		w.opened, w.sent = true, w.se.store.clock()
	}
	n, err := w.Conn.Write(p)
	if len(p) < 12 {
		return n, err
	}
	switch binary.BigEndian.Uint32(p[8:]) {
	case opMulti:
		w.out.Lock()
		w.out.count++
		close(w.out.next)
		w.out.next = make(chan struct{})
		w.out.Unlock()
	case opSetWatches:
		select {
		case <-w.watches: // there may be several
		default:
			close(w.watches)
		}
	}
	return n, err
}

// Close closes the connection, and counts it no more.
func (w *wire) Close() error {
	if !w.closed.Swap(true) {
		w.se.store.open.Add(-1)
	}
	return w.Conn.Close()
}

// written is how many transactions have gone out; next is closed when another has.
func (w *wire) written() (count int, next <-chan struct{}) {
	w.out.Lock()
	defer w.out.Unlock()
	return w.out.count, w.out.next
}

// await waits until n transactions have gone out after written said count and next,
// or until over.
func (w *wire) await(count int, next <-chan struct{}, n int, over <-chan struct{}) {
	for end := count + n; count < end; count, next = w.written() {
		select {
		case <-next:
		case <-over:
			return
		}
	}
}

// SetReadDeadline lets nobody wait for long for the connect response.
func (w *wire) SetReadDeadline(t time.Time) error {
	if !w.greeted.Load() && (t.IsZero() || t.After(w.limit)) {
		t = w.limit
	}
	return w.Conn.SetReadDeadline(t)
}

// rewatched waits until the library has set its watches again on a new connection. It
// reads then without care what the first answer overwrites. It has none to set if all
// have been told: that is not known here.
func (w *wire) rewatched() {
	if w.resumed {
		select {
		case <-w.watches:
		case <-time.After(min(holdBack, w.se.store.cfg.Timeout/4)):
		}
	}
}

// Read follows the frames.
func (w *wire) Read(p []byte) (int, error) {
	if !w.reading && w.greeted.Load() {
		w.reading = true
		w.rewatched()
	}
	n, err := w.in.Read(p)
	for b := p[:n]; len(b) > 0; {
		used, bad := w.follow(b)
		if bad != nil {
			w.se.blame(w, bad)
			return 0, bad
		}
		b = b[used:]
	}
	if err != nil && !w.greeted.Load() {
		w.se.blame(w, early(err, w.again))
	}
	return n, err
}

// early explains an error that came before the connect response. again means that the session was
// not new: a server refuses a session that has seen later transactions than the server has.
func early(err error, again bool) error {
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return errMute
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		if again {
			return errNotResumed
		}
		return errClosedEarly
	}
	return err
}

func (w *wire) follow(b []byte) (used int, err error) {
	if w.left == 0 {
		used = min(4-len(w.head), len(b))
		w.head = append(w.head, b[:used]...)
		if len(w.head) < 4 {
			return used, nil
		}
		w.left = int(binary.BigEndian.Uint32(w.head))
		w.head, w.start = w.head[:0], w.start[:0]
		if first := !w.greeted.Load(); first && w.left != helloOld && w.left != helloNew || !first && (w.left < frameMin || w.left > frameMax) {
			return used, errNotSpeaking
		}
		return used, nil
	}
	used = min(w.left, len(b))
	w.left -= used
	if w.greeted.Load() {
		w.followReply(b[:used])
	} else {
		w.hello = append(w.hello, b[:used]...)
		if w.left == 0 {
			w.ttl = time.Duration(int32(binary.BigEndian.Uint32(w.hello[4:]))) * time.Millisecond
			w.id = int64(binary.BigEndian.Uint64(w.hello[8:]))
			w.hello = nil
			if w.ttl < 0 {
				return used, errNotSpeaking
			}
			w.greeted.Store(true)
		}
	}
	return used, nil
}

// followReply reads the transaction id in a reply's header: the newest one that the server had
// applied when it answered. In a watch event it is -1.
func (w *wire) followReply(b []byte) {
	if len(w.start) == zxidEnd {
		return
	}
	w.start = append(w.start, b[:min(len(b), zxidEnd-len(w.start))]...)
	if len(w.start) == zxidEnd {
		w.se.saw(int64(binary.BigEndian.Uint64(w.start[zxidAt:])))
	}
}

// dial is the library's dialer. Once the session is over it makes no more
// connections: the library would make a new session on its own.
func (se *session) dial(_, addr string, _ time.Duration) (net.Conn, error) {
	w, err := se.connect(addr)
	if err != nil {
		se.blameAt(addr, err)
		return nil, err
	}
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.retired {
		_ = w.Close()
		return nil, errRetired
	}
	se.wire = w
	return w, nil
}

func (se *session) connect(addr string) (*wire, error) {
	se.mu.Lock()
	retired, again := se.retired, se.id != 0
	se.mu.Unlock()
	if retired {
		return nil, errRetired
	}
	cfg := &se.store.cfg
	ctx, cancel := context.WithTimeout(se.ctx, cfg.Timeout)
	defer cancel()
	conf, err := cfg.url.TLS.Config(addr)
	if err != nil {
		return nil, err
	}
	c, err := dial(ctx, addr, conf)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: c, in: bufio.NewReaderSize(c, 32<<10), se: se, limit: time.Now().Add(cfg.Timeout), again: again,
		resumed: again && se.watching.Load(), watches: make(chan struct{})}
	w.out.next = make(chan struct{})
	se.store.open.Add(1)
	return w, nil
}

// dial connects; with TLS unless conf is nil.
func dial(ctx context.Context, addr string, conf *tls.Config) (net.Conn, error) {
	c, err := sock.Dial(ctx, new(net.Dialer), "tcp", addr)
	if err != nil || conf == nil {
		return c, err
	}
	t := tls.Client(c, conf)
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS: %w (look at tls=, ca=, cert=, key= and server_name= of the store URL)", err)
	}
	return t, nil
}

// servers is the library's HostProvider: the configured names, from a random one
// on, resolved anew with each connection.
type servers struct {
	mu     sync.Mutex
	addrs  []string // guarded by mu, as is all below
	next   int
	failed int // servers tried since the last connection
	round  func()
}

func newServers(addrs []string, round func()) *servers {
	return &servers{addrs: addrs, next: rand.IntN(len(addrs)), round: round}
}

// Init is given what we gave the library.
func (s *servers) Init([]string) error { return nil }

// Len is the number of servers.
func (s *servers) Len() int { return len(s.addrs) }

// Next is the next server; after a full round without success the library pauses.
func (s *servers) Next() (string, bool) {
	s.mu.Lock()
	pause := s.failed > 0 && s.failed%len(s.addrs) == 0
	s.failed++
	s.next = (s.next + 1) % len(s.addrs)
	addr := s.addrs[s.next]
	s.mu.Unlock()
	if pause {
		s.round()
	}
	return addr, pause
}

// Connected begins a new count.
func (s *servers) Connected() {
	s.mu.Lock()
	s.failed = 0
	s.mu.Unlock()
}
