package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// OpenArgs says which requests are sent, whatever is answered: an open loop.
type OpenArgs struct {
	Addr  string
	Conns int
	// Rate is the number of requests per second of all connections. They are acquires of new keys and
	// their releases.
	Rate  float64
	Hold  time.Duration // time between the due times of a key's acquire and its release
	TTL   time.Duration
	Drain time.Duration // time for the last answers after the last request
}

// OpenPrefix is the prefix of the keys of open loops.
const OpenPrefix = "bench:open:"

const (
	openTick = time.Millisecond // between two writes
	openRing = 1 << 16          // maximum number of pairs of a connection in flight
)

// The states of a pair in the ring. A larger number is the fence of a grant whose release was not
// sent yet.
const (
	openNone uint64 = iota
	openAsked
	openRefused
	openReleasing
	openStates
)

type open struct {
	args  OpenArgs
	conns []*openConn
}

// NewOpen returns the load that sends requests at a fixed rate. It counts each request, and the
// time from its due time until its answer was read. A release that is due before its acquire was
// granted is late from then on. Each connection is a caller.
func NewOpen() harness.Load { return &open{} }

func (o *open) Open(spec *harness.Spec) (int, error) {
	if err := json.Unmarshal(spec.Args, &o.args); err != nil {
		return 0, err
	}
	for i := range o.args.Conns {
		w, err := dialDaemon(o.args.Addr)
		if err != nil {
			return 0, err
		}
		c := &openConn{args: &o.args, w: w, ring: make([]atomic.Uint64, openRing),
			prefix: fmt.Appendf(nil, "%s%08x:%d:", OpenPrefix, rand.Uint32(), i),
			every:  time.Duration(float64(2*o.args.Conns) / o.args.Rate * float64(time.Second)),
			acquire: protocol.Request{Op: protocol.OpAcquire, Owner: 1,
				TTL: uint64(o.args.TTL.Milliseconds())},
			release: protocol.Request{Op: protocol.OpRelease, Owner: 1}}
		o.conns = append(o.conns, c)
	}
	return len(o.conns), nil
}

func (o *open) Run(_ context.Context, i int, rec *harness.Rec) error {
	c := o.conns[i]
	c.start = time.Now().Add(time.Duration(i) * c.every / time.Duration(len(o.conns)))
	read := make(chan error, 1)
	go func() { read <- c.read(rec) }()
	err := c.write(rec)
	if left := c.sent - c.answered.Load(); err == nil && left > 0 {
		err = fmt.Errorf("%d of %d requests were not answered", left, c.sent)
	}
	c.w.conn.SetReadDeadline(time.Now())
	if readErr := <-read; !errors.Is(readErr, os.ErrDeadlineExceeded) {
		err = errors.Join(readErr, err)
	}
	if err != nil {
		rec.Err(err)
	}
	return nil
}

func (o *open) Close() {
	for _, c := range o.conns {
		c.w.Close()
	}
}

// openConn is the share of one connection. Pair n is requested at start + n × every.
type openConn struct {
	args   *OpenArgs
	w      *wire
	prefix []byte // prefix of its keys
	every  time.Duration
	start  time.Time
	ring   []atomic.Uint64 // the state of each pair

	answered atomic.Uint64

	// These belong to the writer.
	sent             uint64
	acquire, release protocol.Request
}

func (c *openConn) due(n uint64) time.Time { return c.start.Add(time.Duration(n) * c.every) }

func (c *openConn) place(n uint64) *atomic.Uint64 { return &c.ring[n%openRing] }

func (c *openConn) key(n uint64) []byte {
	return strconv.AppendUint(append(c.acquire.Key[:0], c.prefix...), n, 36)
}

// write sends the requests that are due, tick by tick, until it is stopped. Then it releases what
// it holds, and waits until every request is answered, for at most Drain.
func (c *openConn) write(rec *harness.Rec) error {
	var acquires, releases uint64 // the next of each
	var late []uint64             // releases that are due, but not granted yet
	var out []byte
	var end time.Time
	for {
		now := time.Now()
		out = out[:0]
		if end.IsZero() && rec.Stopped() {
			end = now.Add(c.args.Drain)
		}
		for ; end.IsZero() && !c.due(acquires).After(now); acquires++ {
			if !c.place(acquires).CompareAndSwap(openNone, openAsked) {
				return errors.New("more is under way than fits into memory")
			}
			out = c.appendAcquire(out, acquires)
		}
		due := late
		for ; releases < acquires && !c.due(releases).Add(c.args.Hold).After(now); releases++ {
			due = append(due, releases)
		}
		late = late[:0]
		for _, n := range due {
			switch state := c.place(n).Load(); state {
			case openAsked:
				late = append(late, n)
			case openRefused:
				c.place(n).Store(openNone)
			default:
				c.place(n).Store(openReleasing)
				out = c.appendRelease(out, n, state)
			}
		}
		if len(out) > 0 {
			if err := c.w.send(out); err != nil {
				return err
			}
		}
		settled := releases == acquires && len(late) == 0 && c.answered.Load() == c.sent
		if !end.IsZero() && (settled || now.After(end)) {
			return nil
		}
		time.Sleep(openTick)
	}
}

func (c *openConn) appendAcquire(out []byte, n uint64) []byte {
	c.sent++
	c.acquire.ID, c.acquire.Key = 2*n+2, c.key(n)
	return protocol.AppendRequest(out, &c.acquire)
}

func (c *openConn) appendRelease(out []byte, n, fence uint64) []byte {
	c.sent++
	c.release.ID, c.release.Key, c.release.Fence = 2*n+3, c.key(n), fence
	return protocol.AppendRequest(out, &c.release)
}

// read counts answers until the deadline of the connection.
func (c *openConn) read(rec *harness.Rec) error {
	for {
		if err := c.w.fill(); err != nil {
			return err
		}
		now := time.Now()
		for p, ok := c.w.took(); ok; p, ok = c.w.took() {
			m, err := protocol.DecodeMessage(p)
			if err == nil && m.ID == 0 {
				err = pushed(p)
			} else if err == nil {
				err = c.answer(&m, now, rec)
			}
			if err != nil {
				return err
			}
		}
	}
}

// answer counts one answer, and checks that its request has no other.
func (c *openConn) answer(m *protocol.Message, now time.Time, rec *harness.Rec) error {
	n, due := m.ID/2-1, time.Duration(0)
	from, to := openAsked, openRefused
	if m.ID%2 == 1 {
		from, to, due = openReleasing, openNone, c.args.Hold
	} else if m.Code == protocol.OK {
		g, err := m.Grant()
		if err != nil {
			return err
		}
		to = max(g.Fence, openStates)
	}
	if m.Code != protocol.OK {
		rec.Err(fmt.Errorf("request %d was answered %v", m.ID, m.Code))
	}
	if !c.place(n).CompareAndSwap(from, to) {
		return fmt.Errorf("request %d is not open, and was answered %v", m.ID, m.Code)
	}
	rec.Op(now.Sub(c.due(n).Add(due)))
	c.answered.Add(1)
	return nil
}
