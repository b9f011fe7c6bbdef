package sim

import (
	"cmp"
	"slices"

	"github.com/locksidecar/locksidecar/protocol"
)

// client is a program on a host. It is one process with a connection, as a user of the protocol
// would write it from PROTOCOL.md alone.
type client struct {
	w            *World
	h            *host
	id           int
	gen          int   // of the process
	off          int64 // of its clock against the host's: it may live in another time namespace
	paused       int64 // it does nothing before
	frost        int64 // how long it has been paused altogether
	unresponsive int64 // it does not read before
	silent       int64 // it sends no heartbeats before
	uid          int   // its user; -1 when users do not matter

	chain int // links that it has still to make

	k       *conn // nil while not connected
	greeted bool
	mapped  int64 // what to add to the daemon's times, ms
	t0      int64 // own clock before hello, ms
	nextID  uint64
	calls   []*request
	holds   []*hold // of this connection, until they are over
	known   map[grantID]*hold
	old     []*hold // over; to send stale releases
	buf     []byte
	unread  []byte
}

// grantID names a hold of a connection.
type grantID struct {
	key   *key
	owner uint64
	fence uint64
}

// hold is a client's record of one of its holds.
type hold struct {
	down     uint64 // id of the request that made it shared
	c        *client
	k        *conn
	key      *key
	at       *simStore // where its lease is
	link     *link     // the host's use of that; nil when the host granted it alone
	owner    uint64
	fence    uint64
	mode     protocol.Mode
	count    int   // grants read, less releases sent
	said     int   // count as the daemon last said it
	valid    int64 // ms on the client's clock
	end      int64 // the same; 0 when watched
	begun    int   // its place among all fresh holds
	ttl      int64 // ms
	over     bool  // released, lost, or its connection has ended
	unsure   bool  // said may be behind: an acquire-many that had entered it has given up
	told     bool  // the daemon has sent that it is lost
	gone     bool  // the daemon has said that it is no more
	vague    bool  // mode may be the other one
	degraded bool  // its host granted it alone: without a fence
	closed   bool  // all of it has been given up: acquires sent before that count no more
}

// request is a request that has been sent.
type request struct {
	id        uint64
	op        protocol.Op
	quiet     bool  // release: not answered; a failure is pushed
	doomed    bool  // quiet: it has to fail
	k         *conn // acquire: once it has reached the daemon
	seq       int   // the same: its place among those that did
	came      int64 // the same: when
	any       anyState
	cameAt    int64     // the same: by its host's clock
	at        *simStore // acquire: of a degraded grant, where the key was configured to be then
	key       *key
	keys      []*key
	owner     uint64
	mode      protocol.Mode
	wait      int64 // ms; -1 without bound
	ttl       int64 // ms
	fixed     bool
	keep      int64 // ms
	detached  *kept // release: of a detached hold
	all       bool
	holds     []*hold // what is released, renewed, downgraded or inspected; nil entries for stale ones
	target    *request
	sent      int64
	frost     int64 // of host and client when it was sent
	late      int64 // ns after sent by which it has to be answered
	withdrawn bool  // answered canceled
	dropped   bool  // acquire: nobody wants it any more; a grant is given back at once
	stale     bool  // release: of a fence that is not the hold's
	named     bool  // inspect: asks for the holders
	// wrong is the code that the request deserves, whatever the state of the daemon. The request
	// counts as a ping.
	wrong protocol.Code
}

func (w *World) newClient(h *host, id int) *client {
	c := &client{w: w, h: h, id: id, uid: -1}
	if w.p.Users > 1 {
		c.uid = w.pick(w.p.Users)
	}
	if w.chance(250) {
		c.off = w.between(-10*sec, 100_000*sec)
		w.counts.Tallies[ownClock]++
	}
	c.after(w.between(0, 200*ms), c.connect)
	c.after(w.skewed(w.p.Act), c.act)
	return c
}

// at has this process do something at a time, unless it has died by then. A paused process does it
// when it continues.
func (c *client) at(t int64, gen int, do func()) {
	var try func()
	try = func() {
		switch {
		case c.gen != gen:
		case c.w.now < c.paused:
			c.w.at(c.paused+c.w.between(0, 100*us), try)
		default:
			do()
		}
	}
	c.w.at(t, try)
}

func (c *client) after(d int64, do func()) { c.at(c.w.now+d, c.gen, do) }

// clock returns the time of the client's clock, in ns.
func (c *client) clock() int64 { return c.h.boot() + c.off }

func (c *client) connect() {
	if c.k != nil {
		return
	}
	if !c.h.up || c.h.draining {
		if !c.w.calm {
			c.after(c.w.between(20*ms, 500*ms), c.connect)
		}
		return
	}
	c.k = newConn(c)
	c.h.conns = append(c.h.conns, c.k)
	c.greeted, c.nextID = false, 0
	c.unread = c.unread[:0]
	c.known = make(map[grantID]*hold)
	c.t0 = c.clock() / ms
	least := uint64(1)
	if c.w.chance(5) && !c.w.calm { // of a later world
		least = 7
	}
	c.send(&request{op: protocol.OpHello}, &protocol.Request{MinVersion: least,
		MaxVersion: least + uint64(c.w.pick(3)), Name: []byte("sim")})
}

// send sends a request.
func (c *client) send(q *request, p *protocol.Request) {
	w := c.w
	c.nextID++
	q.id, q.sent, q.frost = c.nextID, w.now, c.thaw()
	q.late = cmp.Or(q.late, patience)
	if q.wait > 0 {
		q.late += q.wait * ms
	}
	if p.ID = q.id; p.Op == 0 {
		p.Op = q.op
	}
	if q.quiet {
		id := grantID{q.key, q.owner, p.Fence}
		c.k.quiet[id] = append(c.k.quiet[id], q)
	} else {
		c.calls = append(c.calls, q)
		c.k.calls = append(c.k.calls, q)
	}
	if int(p.Op) < len(w.counts.Requests) {
		w.counts.Requests[p.Op]++
	}
	w.counts.flagged(p)
	w.note(kindSend, q.key, uint64(c.id)<<8|uint64(q.op), q.id)
	if w.trace != nil {
		w.say(q.key, "client %d: %s %d%s owner %d mode %d wait %d ttl %d fixed %v fence %d·%d", c.id,
			requestNames[q.op], q.id,
			q.keyNames(), q.owner, q.mode, q.wait, q.ttl, q.fixed, p.Fence>>10, p.Fence&1023)
	}
	c.buf = protocol.AppendRequest(nil, p)
	c.k.say(c.buf, q, false)
}

// read handles the bytes that have arrived, frame by frame.
func (c *client) read() {
	if c.k == nil {
		return
	}
	if c.w.now < c.unresponsive {
		c.at(c.unresponsive, c.gen, c.read)
		return
	}
	had := len(c.unread)
	b, fin := c.k.down.take(c.w.now, c.unread, nil)
	if n := len(b) - had; n > 0 {
		c.k.drained(n)
	}
	c.unread = b
	k := c.k
	for c.k == k && c.w.failure == nil {
		payload, rest, ok, err := protocol.Cut(b, 1<<20)
		if err != nil {
			c.w.fail("protocol", "", "frame from the daemon: %v", err)
		}
		if !ok {
			break
		}
		b = rest
		m, err := protocol.DecodeMessage(payload)
		if err != nil {
			c.w.fail("protocol", "", "message from the daemon: %v", err)
			return
		}
		c.handle(m)
	}
	if c.k != k {
		return
	}
	c.unread = c.unread[:copy(c.unread, b)]
	if fin {
		c.close()
		c.reconnect()
	}
}

// close closes the connection on the client's side.
func (c *client) close() {
	if c.k == nil {
		return
	}
	for _, h := range c.holds {
		c.w.over(h)
	}
	c.k.say(nil, nil, true)
	c.k.calls = nil // nobody reads the answers
	c.k, c.calls, c.holds, c.old = nil, nil, nil, nil
}

func (c *client) reconnect() {
	if !c.w.calm {
		c.after(c.w.skewed(100*ms), c.connect)
	}
}

// kill ends the process; the kernel closes its socket.
func (c *client) kill() {
	c.w.say(nil, "client %d killed", c.id)
	if k := c.k; k != nil {
		c.close()
		if c.w.chance(500) { // the daemon sees the process end before it has read the socket
			k.at(c.w.now+c.w.between(0, 100*us), k.leave)
		}
	}
	c.gen++
	c.paused, c.unresponsive, c.silent = 0, 0, 0
	c.after(c.w.skewed(sec), c.connect)
	c.after(c.w.skewed(c.w.p.Act), c.act)
}

// pause stops the process, as a garbage collection or SIGSTOP does.
func (c *client) pause(d int64) {
	until := c.w.now + d
	c.frost += max(0, until-max(c.paused, c.w.now))
	c.paused = max(c.paused, until)
	c.w.say(nil, "client %d paused for %d ms", c.id, d/ms)
}

// deafen has the client read nothing for a while.
func (c *client) deafen(d int64) {
	until := c.w.now + d
	c.frost += max(0, until-max(c.unresponsive, c.w.now))
	c.unresponsive = max(c.unresponsive, until)
}

// thaw returns how long this client or its host has been frozen so far.
func (c *client) thaw() int64 {
	now := c.w.now
	return c.frost - max(0, c.paused-now) - max(0, c.unresponsive-now) + c.h.stood()
}

// own maps a time of the daemon to the client's clock, both in ms.
func (c *client) own(daemon uint64) int64 { return int64(daemon) + c.mapped }

// find returns the hold of an owner that the client believes in or is about to end.
func (c *client) find(k *key, owner uint64) *hold {
	for _, h := range c.holds {
		if h.key == k && h.owner == owner && !h.over {
			return h
		}
	}
	return nil
}

// waiting returns an acquire of the owner that has not been answered.
func (c *client) waiting(k *key, owner uint64) *request {
	for _, q := range c.calls {
		if q.owner == owner && (q.asksOnly(k) || slices.Contains(q.keys, k) &&
			q.op == protocol.OpAcquireMany) {
			return q
		}
	}
	return nil
}

func (q *request) keyNames() (s string) {
	for _, k := range q.keys {
		s += " " + k.name
	}
	return s
}
