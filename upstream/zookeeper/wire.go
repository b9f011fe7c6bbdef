package zookeeper

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// These are the sizes of what a server sends. A connect response has one of two sizes, and all
// other frames have a header.
const (
	helloOld, helloNew = 36, 37
	frameMin           = 16
	frameMax           = 16 << 20
	zxidAt, zxidEnd    = 4, 12 // the place of the transaction id in a reply's header
)

// These are codes in the headers of requests.
const (
	opMulti      = 14 // a transaction
	opSetWatches = 101
)

// holdBack limits how long Read waits for the library: see wire.rewatched.
const holdBack = 200 * time.Millisecond

var (
	errRetired     = errors.New("this session is over")
	errNotSpeaking = errors.New("what it says is not ZooKeeper's protocol (look at the port)")
	errClosedEarly = errors.New("it closes the connection before it has said anything: " +
		"it is starting, it has no quorum, it is full (maxClientCnxns), or it wants TLS (tls=true)")
	errNotResumed = errors.New("it closes the connection before it has said anything: " +
		"it is starting, it has no quorum, it has too many connections (maxClientCnxns), " +
		"or it has lost data that this daemon has seen")
	errSilent = errors.New("it accepts connections and says nothing")
)

// wire is one connection. It knows when the connect request was sent and what the server granted,
// which the library does not tell. It rejects frames that the library could not handle.
type wire struct {
	net.Conn
	se    *session
	limit time.Time // the deadline of the connect response

	in     *bufio.Reader // the library reads each frame in two pieces
	opened bool          // the connect request was sent; used by the writer only
	head   []byte        // the length of the frame that is being read; used by the reader only
	start  []byte        // the first zxidEnd bytes of its body; used by the reader only
	left   int           // the bytes of its body that have not been read
	hello  []byte        // the connect response, until it is complete

	sent      int64 // the boot time at which the connect request was sent; constant once ready
	id        int64 // the session's id; constant once ready
	ttl       time.Duration
	closed    atomic.Bool // it is no longer counted as open
	greeted   atomic.Bool // the connect response was read
	confirmed atomic.Bool // a transaction has been answered on it

	again   bool          // the session has had an earlier connection
	resumed bool          // the session may have had watches on an earlier connection
	watches chan struct{} // closed when the library has set them again
	reading bool          // something after the connect response was read; used by the reader only

	out struct {
		sync.Mutex
		count int           // transactions that have been written; guarded by Mutex
		next  chan struct{} // closed when another one is written; guarded by Mutex
	}

	exchanges []exchange // guarded by se.mu
}

// exchange is a request that was answered, with its boot times.
type exchange struct{ sent, answered int64 }

// Write records the time of the connect request, and counts transactions.
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

// Close closes the connection, and stops counting it as open.
func (w *wire) Close() error {
	if !w.closed.Swap(true) {
		w.se.store.open.Add(-1)
	}
	return w.Conn.Close()
}

// written returns how many transactions have been written, and a channel that is closed when
// another one is.
func (w *wire) written() (count int, next <-chan struct{}) {
	w.out.Lock()
	defer w.out.Unlock()
	return w.out.count, w.out.next
}

// await waits until n transactions have been written since written returned count and next, or
// until over is closed.
func (w *wire) await(count int, next <-chan struct{}, n int, over <-chan struct{}) {
	for end := count + n; count < end; count, next = w.written() {
		select {
		case <-next:
		case <-over:
			return
		}
	}
}

// SetReadDeadline bounds the wait for the connect response.
func (w *wire) SetReadDeadline(t time.Time) error {
	if !w.greeted.Load() && (t.IsZero() || t.After(w.limit)) {
		t = w.limit
	}
	return w.Conn.SetReadDeadline(t)
}

// rewatched waits until the library has set its watches again on a new connection. Until then it
// reads, without a lock, state that the first answer overwrites. It sets no watches if all have
// fired, which is not known here, so the wait is bounded.
func (w *wire) rewatched() {
	if w.resumed {
		select {
		case <-w.watches:
		case <-time.After(min(holdBack, w.se.store.cfg.Timeout/4)):
		}
	}
}

// Read checks the frames that it passes to the library.
func (w *wire) Read(p []byte) (int, error) {
	if !w.reading && w.greeted.Load() {
		w.reading = true
		w.rewatched()
	}
	n, err := w.in.Read(p)
	for b := p[:n]; len(b) > 0; {
		used, bad := w.follow(b)
		if bad != nil {
			w.se.failed(w, bad)
			return 0, bad
		}
		b = b[used:]
	}
	if err != nil && !w.greeted.Load() {
		w.se.failed(w, explainEarly(err, w.again))
	}
	return n, err
}

// explainEarly explains an error that came before the connect response. again means that the
// session was not new: a server refuses a session that has seen later transactions than the
// server has.
func explainEarly(err error, again bool) error {
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return errSilent
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
		expected := w.left == helloOld || w.left == helloNew
		if w.greeted.Load() {
			expected = w.left >= frameMin && w.left <= frameMax
		}
		if !expected {
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

// followReply reads the transaction id in a reply's header. It is the newest one that the server
// had applied when it answered. In a watch event it is -1.
func (w *wire) followReply(b []byte) {
	if len(w.start) == zxidEnd {
		return
	}
	w.start = append(w.start, b[:min(len(b), zxidEnd-len(w.start))]...)
	if len(w.start) == zxidEnd {
		w.se.saw(int64(binary.BigEndian.Uint64(w.start[zxidAt:])))
	}
}

// dial is the library's dialer. Once the session is over, it makes no more connections, because
// the library would make a new session.
func (se *session) dial(_, addr string, _ time.Duration) (net.Conn, error) {
	w, err := se.connect(addr)
	if err != nil {
		se.failedAt(addr, err)
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
	c, err := cfg.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: c, in: bufio.NewReaderSize(c, 32<<10), se: se,
		limit: time.Now().Add(cfg.Timeout), again: again, resumed: again && se.watching.Load(),
		watches: make(chan struct{})}
	w.out.next = make(chan struct{})
	se.store.open.Add(1)
	return w, nil
}

// servers is the library's HostProvider. It returns the configured names in their order from a
// random one on, and resolves them again for each connection.
type servers struct {
	mu     sync.Mutex
	addrs  []string // guarded by mu, as are the fields below
	next   int
	failed int // servers tried since the last connection
	round  func()
}

func newServers(addrs []string, round func()) *servers {
	return &servers{addrs: addrs, next: rand.IntN(len(addrs)), round: round}
}

// Init does nothing: the names are known.
func (s *servers) Init([]string) error { return nil }

// Len returns the number of servers.
func (s *servers) Len() int { return len(s.addrs) }

// Next returns the next server. After a full round without a connection, the library pauses.
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

// Connected notes a connection.
func (s *servers) Connected() {
	s.mu.Lock()
	s.failed = 0
	s.mu.Unlock()
}
