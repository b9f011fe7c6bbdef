package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// conn is a Unix socket between a client and a daemon: two streams of bytes, each in order, with a
// delay. It does for the engine what the daemon's own conn does.
type conn struct {
	h   *host
	gen int // the daemon's: see host.gen
	c   *client
	s   *engine.Session // nil until the daemon has accepted

	up       stream
	unread   []byte // what the daemon has read behind the last whole frame
	down     stream
	inSocket int  // how many bytes towards the client it has not read
	stuck    bool // the daemon's output waits for room in the socket

	pacing       pacing
	heard        int64  // true time at which the daemon last read a whole frame
	heardFrozen  int64  // how long the host had been frozen by then
	asked        int64  // when the daemon sent the first keepalive after that; 0 for none
	unresponsive bool   // the daemon reads nothing more from it
	killed       bool   // the engine has ended the session
	last         []byte // the output from before that, which ends with the reason
	left         bool   // the client has closed its side
	ended        bool   // the daemon has released everything

	forced map[grantID]int // holds that were unlocked by force, and the client has not read it yet
	calls  []*request      // of the client, not answered yet; known here before the daemon reads them
	// quiet has the client's quiet releases, without the ones that it knows to have failed.
	quiet map[grantID][]*request
}

func newConn(c *client) *conn {
	return &conn{h: c.h, gen: c.h.gen, c: c, forced: make(map[grantID]int),
		quiet: make(map[grantID][]*request)}
}

// stream has the bytes on their way in one direction.
type stream struct {
	chunks []chunk
	last   int64 // when the last chunk arrives: no later one may overtake it
}

type chunk struct {
	at  int64
	b   []byte
	q   *request // the request whose last byte b has; nil for none
	fin bool     // the end of the stream
}

// socketBuffer is how many bytes wait in a socket for the client to read them.
const socketBuffer = 4096

// send has bytes arrive after a delay, after all bytes that were sent before.
func (s *stream) send(at int64, b []byte, q *request, fin bool) int64 {
	s.last = max(s.last, at)
	s.chunks = append(s.chunks, chunk{s.last, b, q, fin})
	return s.last
}

// take returns the bytes that have arrived.
func (s *stream) take(now int64, b []byte, each func(q *request, end int)) (_ []byte, fin bool) {
	n := 0
	for _, c := range s.chunks {
		if c.at > now {
			break
		}
		b = append(b, c.b...)
		fin = fin || c.fin
		if c.q != nil {
			each(c.q, len(b))
		}
		n++
	}
	s.chunks = slices.Delete(s.chunks, 0, n)
	return b, fin
}

// at has the daemon at the other end do something at a time, if it still runs then.
func (k *conn) at(t int64, do func()) {
	if k.h.gen == k.gen {
		k.h.at(t, do)
	}
}

// accept is the daemon's side of a new connection.
func (k *conn) accept() {
	k.s = k.h.eng.Open(engine.Peer{PID: -1, UID: k.c.uid, GID: -1, Watched: true}, k)
	if k.h.w.p.Rate > 0 {
		k.pacing.limit, k.pacing.uncharged, k.pacing.setup = k.s.RateLimit(), connCost, true
	}
}

// say sends bytes of the client to the daemon.
func (k *conn) say(b []byte, q *request, fin bool) {
	w := k.h.w
	if len(b) > 1 && w.chance(cutPermille) { // the reader gets it in two pieces
		n := w.between(1, int64(len(b)))
		k.at(k.up.send(w.now+w.hop(), b[:n], nil, false), k.readable)
		b = b[n:]
	}
	k.at(k.up.send(w.now+w.hop(), b, q, fin), k.readable)
}

// hop draws how long bytes take between two processes of a host.
func (w *World) hop() int64 { return w.between(10*us, w.p.Hop) }

// cutPermille is how often bytes that were written together are read in two parts.
const cutPermille = 20

// readable is the daemon's reader.
func (k *conn) readable() {
	if k.h.passing { // it is read when the next process has taken over
		return
	}
	if k.pacing.delayed {
		if k.up.closedBy(k.h.asOf) { // what the client has sent before does not count
			k.endDelay()
			k.leave()
		}
		return
	}
	var fin bool
	had := len(k.unread)
	k.unread, fin = k.up.take(k.h.asOf, k.unread, func(q *request, end int) {
		if k.h.w.p.Rate > 0 {
			k.pacing.coming = append(k.pacing.coming, coming{q, end})
		} else {
			k.arrives(q)
		}
	})
	if k.ended {
		return
	}
	if k.s == nil {
		k.accept()
	}
	switch {
	case k.unresponsive || len(k.unread) == had && !k.pacing.more:
	case k.h.w.p.Rate > 0:
		if !k.keepPace() { // which first charges for the connection itself
			k.paced()
		}
	default:
		rest, ok := k.s.Receive(k.unread)
		if len(rest) < len(k.unread) { // part of a frame does not count
			k.hears()
		}
		k.unread = k.unread[:copy(k.unread, rest)]
		k.unresponsive = !ok
	}
	if fin {
		if k.pacing.delayed {
			k.endDelay()
		}
		k.leave()
	}
}

// arrives records the order in which acquires reach the daemon.
func (k *conn) arrives(q *request) {
	k.arrivesAny(q)
	if q.op == protocol.OpAcquire && !k.unresponsive && !k.ended {
		k.h.seq++
		q.k, q.seq, q.came, q.cameAt = k, k.h.seq, k.h.w.now, k.h.clock()
		k.h.waits[q.key] = append(k.h.waits[q.key], q)
		k.h.arrived = append(k.h.arrived, q)
	}
}

// forgetWaits drops the requests that the daemon no longer answers.
func (k *conn) forgetWaits() {
	for _, key := range k.h.w.all() {
		k.h.waits[key] = slices.DeleteFunc(k.h.waits[key], func(q *request) bool { return q.k == k })
	}
	k.h.anys = slices.DeleteFunc(k.h.anys, func(q *request) bool { return q.k == k })
}

// leave tells the daemon that the client has gone.
func (k *conn) leave() {
	k.left = true
	switch {
	case k.s == nil:
		k.ended = true
		k.h.drop(k)
	case !k.ended:
		k.end()
	}
}

func (h *host) drop(k *conn) {
	h.conns = slices.DeleteFunc(h.conns, func(o *conn) bool { return o == k })
}

// end ends the session, and releases its holds.
func (k *conn) end() {
	k.ended = true
	k.forgetWaits()
	k.h.eng.End(k.s)
	k.h.drop(k)
	if holds, waits := k.s.Counts(); holds != 0 || waits != 0 {
		k.h.w.fail("nothing left", "", "an ended session still counts %d holds and %d waiters", holds,
			waits)
	}
	if !k.left { // its stated validity is over, so the daemon need not wait for it any longer
		k.hangUp()
	}
}

// Flush writes the output for the client, as far as its socket takes it.
func (k *conn) Flush() {
	if k.inSocket >= socketBuffer {
		k.stuck = true
		return
	}
	if k.ended || k.s == nil {
		return
	}
	if holds, waits := k.s.Counts(); holds > k.h.w.p.MaxHolds || waits > k.h.w.p.MaxWaits {
		k.h.w.fail("limits", "", "a session has %d holds and %d waiters", holds, waits)
	}
	b := append(k.last, k.s.Swap(nil)...)
	k.last = nil
	if len(b) == 0 {
		return
	}
	w := k.h.w
	k.inSocket += len(b)
	w.emitted(k, b)
	k.stuck = false
	if len(b) > 1 && w.chance(cutPermille) {
		n := w.between(1, int64(len(b)))
		k.c.at(k.down.send(k.h.departs()+w.hop(), b[:n], nil, false), k.c.gen, k.c.read)
		b = b[n:]
	}
	k.c.at(k.down.send(k.h.departs()+w.hop(), b, nil, false), k.c.gen, k.c.read)
}

// Yield does nothing, because the end of a session is one step here.
func (k *conn) Yield() {}

// Kill is called when the engine ends the session. Its keys stay closed until the client has closed
// its side, or until the stated validity is over.
func (k *conn) Kill() {
	if k.killed {
		return
	}
	k.killed, k.unresponsive = true, true
	if k.last = k.s.Swap(nil); len(k.last) == 0 { // any other end sends the reason
		k.h.w.counts.Tallies[tooSlow]++
	}
	k.forgetWaits()
	k.at(k.h.w.now+k.h.w.between(0, 200*us), func() {
		if k.ended {
			return
		}
		k.h.eng.EndWaits(k.s)
		k.Flush()
		k.hangUp()
		k.endWhenOver()
	})
}

// endWhenOver ends the session once it has no holds or its stated validity is over.
func (k *conn) endWhenOver() {
	if k.ended {
		return
	}
	until := k.s.Stated()
	if holds, _ := k.s.Counts(); holds == 0 || k.h.clock() >= until {
		k.end()
		return
	}
	k.at(k.h.trueTime(until), k.endWhenOver)
}

// hangUp ends the stream towards the client.
func (k *conn) hangUp() {
	w := k.h.w
	k.c.at(k.down.send(k.h.departs()+w.hop(), nil, nil, true), k.c.gen, k.c.read)
}

// drained records that the client has read n bytes. A writer of the daemon that waited for room in
// the socket continues.
func (k *conn) drained(n int) {
	full := k.inSocket >= socketBuffer
	k.inSocket -= n
	if full && k.inSocket < socketBuffer {
		k.at(k.h.w.now, k.Flush)
	}
}

// call returns the unanswered request with an id; nil if there is none.
func (k *conn) call(id uint64) *request {
	for _, q := range k.calls {
		if q.id == id {
			return q
		}
	}
	return nil
}

// unwritten reports whether the daemon has answered q, and the answer waits in the outbox. It waits
// there while the client does not read, or until the next step of a reload.
func (k *conn) unwritten(q *request) bool {
	if k.s == nil {
		return false
	}
	b := k.s.Output()
	for {
		payload, rest, ok, err := protocol.Cut(b, 1<<20)
		if !ok || err != nil {
			return false
		}
		if m, err := protocol.DecodeMessage(payload); err == nil && m.ID == q.id {
			return true
		}
		b = rest
	}
}

func (k *conn) answered(q *request) {
	if i := slices.Index(k.calls, q); i >= 0 {
		k.calls = slices.Delete(k.calls, i, i+1)
	}
}

// emitted checks the bytes that the daemon sends, when it sends them.
func (w *World) emitted(k *conn, b []byte) {
	for {
		payload, rest, ok, err := protocol.Cut(b, 1<<20)
		if err != nil {
			w.fail("protocol", "", "the daemon's frame: %v", err)
		}
		if !ok {
			if len(b) > 0 {
				w.fail("protocol", "", "the daemon has flushed half a frame")
			}
			return
		}
		b = rest
		m, err := protocol.DecodeMessage(payload)
		if err != nil {
			w.fail("protocol", "", "the daemon's message: %v", err)
			return
		}
		if m.ID == 0 {
			w.pushing(k, m)
			continue
		}
		if k.c.k != k {
			continue // the client has closed this connection already
		}
		q := k.call(m.ID)
		if q == nil {
			w.fail("one reply", "", "a reply to %d, which is not in flight", m.ID)
			return
		}
		w.replying(k, q, m)
	}
}
