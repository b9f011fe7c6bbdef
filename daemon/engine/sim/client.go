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
	gen          int   // rises with each process that this client runs as
	off          int64 // its clock, less the host's: it may live in another time namespace
	paused       int64 // the process does nothing before this true time
	frozenTotal  int64 // how long it has been paused or unresponsive in total
	unresponsive int64 // it does not read before this true time
	silent       int64 // it sends no heartbeats before this true time
	uid          int   // its user; -1 when users do not matter

	chain int // how many more times it acquires the key of a chain

	k       *conn // nil while not connected
	greeted bool
	offset  int64 // what to add to the daemon's times, ms
	helloAt int64 // its own clock before the hello, ms
	nextID  uint64
	calls   []*request        // not answered yet
	holds   []*hold           // of this connection, until they are over
	known   map[grantID]*hold // all holds that this connection was granted
	old     []*hold           // the last holds that are over, to send stale releases
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
	down     uint64 // id of the downgrade that made it shared; 0 for none
	c        *client
	k        *conn
	key      *key
	at       *simStore // where its lease is
	link     *link     // the host's use of that; nil when the host granted it alone
	owner    uint64
	fence    uint64
	mode     protocol.Mode
	count    int   // grants read, less releases sent
	said     int   // the count that the daemon has stated last
	valid    int64 // the client may rely on it until then: ms on the client's clock
	end      int64 // of a fixed hold, on the same clock; 0 for a watched one
	begun    int   // its place among all fresh holds
	ttl      int64 // ms
	over     bool  // released, lost, or its connection has ended
	unsure   bool  // said may be too high: a multi-acquire that had re-entered it has failed
	lossSent bool  // the daemon has sent that it is lost
	gone     bool  // the client has read that the daemon no longer has it
	vague    bool  // mode may be the other one
	degraded bool  // its host granted it alone: without a fence
	closed   bool  // all counts are released: grants of acquires sent before add none
}

// request is a request that has been sent.
type request struct {
	id     uint64
	op     protocol.Op
	quiet  bool // of a release: only a failure is reported, by a push
	doomed bool // of a quiet release: it has to fail
	// The next four are of acquires that have reached the daemon.
	k            *conn
	seq          int   // its place among all acquires that have reached this host
	came         int64 // the true time at which it arrived
	cameAt       int64 // the same by its host's clock
	any          anyState
	at           *simStore // where the lease is; for a degraded hold, the key's store then
	key          *key
	keys         []*key
	owner        uint64
	mode         protocol.Mode
	wait         int64 // ms; -1 without bound
	ttl          int64 // ms
	fixed        bool
	keep         int64 // ms
	detached     *kept // the detached hold that a release names
	all          bool
	holds        []*hold // what it is about; nil entries for stale fences
	target       *request
	sent         int64
	frozenBefore int64 // how long host and client had been frozen when it was sent
	late         int64 // ns after sent by which it has to be answered
	withdrawn    bool  // it was answered canceled
	dropped      bool  // of an acquire: it has been canceled; a grant is released at once
	stale        bool  // it names a fence that is not a present hold's
	asksHolders  bool  // of an inspect: it asks for the holders
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
	c.helloAt = c.clock() / ms
	least := uint64(1)
	if c.w.chance(5) && !c.w.calm { // a client that knows only later versions of the protocol
		least = 7
	}
	c.send(&request{op: protocol.OpHello}, &protocol.Request{MinVersion: least,
		MaxVersion: least + uint64(c.w.pick(3)), Name: []byte("sim")})
}

// send sends a request.
func (c *client) send(q *request, p *protocol.Request) {
	w := c.w
	c.nextID++
	q.id, q.sent, q.frozenBefore = c.nextID, w.now, c.frozenSoFar()
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
	c.k.calls = nil // the client reads no more answers
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
	c.frozenTotal += max(0, until-max(c.paused, c.w.now))
	c.paused = max(c.paused, until)
	c.w.say(nil, "client %d paused for %d ms", c.id, d/ms)
}

// stopReading has the client read nothing for the time d.
func (c *client) stopReading(d int64) {
	until := c.w.now + d
	c.frozenTotal += max(0, until-max(c.unresponsive, c.w.now))
	c.unresponsive = max(c.unresponsive, until)
}

// frozenSoFar returns how long this client and its host have been frozen so far, added up.
func (c *client) frozenSoFar() int64 {
	now := c.w.now
	return c.frozenTotal - max(0, c.paused-now) - max(0, c.unresponsive-now) + c.h.frozenSoFar()
}

// fromDaemon maps a time of the daemon to the client's clock, both in ms.
func (c *client) fromDaemon(daemon uint64) int64 { return int64(daemon) + c.offset }

// find returns the hold of an owner that is not over; nil if there is none.
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
