package sim

import (
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
)

// host is one machine with its clock, and the daemon that runs there at present.
type host struct {
	w   *World
	id  int
	off int64 // what its boot clock showed at epoch
	ppm int64 // how much too fast that clock runs, in parts of a million

	eng         *engine.Engine
	conf        *conf
	links       []*link   // the stores in use
	opened      int       // how many links there have been
	embedded    *simStore // its embedded store
	started     int64     // true time of the present daemon's start
	gen         int       // rises with each daemon: events that an earlier one scheduled do nothing
	up          bool
	draining    bool
	passing     bool   // another process is about to take over
	steps       *steps // of a reload in progress; nil for none
	emptied     int64  // while passing: the time at which no op was left in the main lanes; see busy
	queries     int    // how many queries of stores are in progress
	stopped     bool   // while passing: the timer and the main lanes are stopped, too
	frozen      int64  // the daemon does nothing before this true time
	frozenTotal int64  // how long it has been frozen in total
	stale       int64  // the old clock reading that the present step works with; 0 for a fresh one
	asOf        int64  // the true time of the present step's clock reading
	midway      int64  // how long to freeze the next step between its decision and its I/O
	tickAt      int64  // boot time of the next Tick; cache.Forever for none
	tickSeq     int
	conns       []*conn
	lastID      uint64
	grants      []granted // that the present step has sent
	waits       map[*key][]*request
	anys        []*request          // acquires of one of several keys, in progress
	lastAbout   map[*key]*request   // the last request to arrive about each key
	contention  map[*key]contention // what the daemon knows of its latest lease of each key
	bases       map[baseOf]*link    // the link at which each lease is or was
	audit       map[audited]int     // holds that have begun in the audit log, and have not ended there
	released    map[audited]bool    // those that are released; each may be reported as lost later
	forced      map[string]int      // by key: holds ended by force that no answer has counted yet
	began       map[uint64]int64    // true time at which the latest hold of a session began
	since       map[audited]int64   // when holds began, by the host's clock; only in runs with keeps
	kept        map[audited]*kept   // holds with keeps
	detached    []*kept
	strict      map[string]int64 // when a reload last required heartbeats for a key
	arrived     []*request       // acquires that have arrived in the present step
	seq         int              // how many acquires have arrived
}

// drift bounds the error of a clock, in parts of a million. A lease's deadline allows for 1 %
// between two clocks.
const drift = 4000

func (w *World) newHost(id int) *host {
	h := &host{w: w, id: id, off: w.between(20*sec, 100_000*sec), ppm: w.between(-drift, drift+1),
		waits: make(map[*key][]*request), contention: make(map[*key]contention),
		bases: make(map[baseOf]*link),
		audit: make(map[audited]int), since: make(map[audited]int64),
		kept: make(map[audited]*kept), released: make(map[audited]bool),
		forced: make(map[string]int), began: make(map[uint64]int64), strict: make(map[string]int64)}
	h.embedded = w.newStore(likeEmbedded)
	h.start()
	return h
}

// boot is the host's clock.
func (h *host) boot() int64 {
	d := h.w.now - epoch
	return h.off + d + d*h.ppm/1_000_000
}

// clock returns the time that code on this host reads.
func (h *host) clock() int64 {
	if h.stale != 0 {
		return h.stale
	}
	return h.boot()
}

// trueTime returns when the host's clock will show at least c.
func (h *host) trueTime(c int64) int64 {
	d := min(c-h.off, 8000*sec)
	return epoch + d*1_000_000/(1_000_000+h.ppm) + 1
}

// start begins a new daemon.
func (h *host) start() {
	h.gen++
	h.up, h.draining, h.passing, h.tickAt, h.started = true, false, false, cache.Forever, h.w.now
	h.emptied, h.stopped, h.queries = 0, false, 0
	clear(h.waits)
	h.anys, h.lastAbout = nil, make(map[*key]*request)
	clear(h.audit)
	clear(h.released)
	clear(h.forced)
	clear(h.began)
	clear(h.strict)
	h.conf = h.w.conf
	h.newEngine()
	for _, s := range h.conf.stores() {
		if _, err := h.open(s); err != nil {
			panic(err)
		}
	}
	if err := h.route(h.conf, h.links, false); err != nil {
		panic(err)
	}
}

// newEngine makes the daemon's engine, without stores.
func (h *host) newEngine() {
	w := h.w
	c := cache.DefaultConfig()
	limits := h.conf.limits
	c.MaxHolds, c.MaxWaiters = int64(limits.MaxHolds), int64(limits.MaxWaiters)
	c.Habits, c.Seed = w.p.Habits, w.rng.Uint64()
	set := engine.Settings{Table: c, Users: limits.Users, MaxFrame: maxFrame, OutBuffer: w.p.Out,
		Version: "sim", InFlight: w.p.InFlight, BatchSize: w.p.Batch,
		Survey: w.p.Survey, Wakes: w.p.Wakes, FirstID: h.lastID, Step: h.betweenSteps}
	gen := h.gen
	h.eng = engine.NewEngine(set, h.clock, func(at int64) {
		if h.gen == gen {
			h.wake(at)
		}
	})
	if w.p.Queries {
		h.eng.SetQueries(h.ask)
	}
	h.eng.Observe(observer{h})
	h.eng.SetAudit(true)
	h.eng.SetOperators(operators)
}

// at has the present daemon do something at a time, or when it is no longer frozen.
func (h *host) at(t int64, do func()) {
	w, gen := h.w, h.gen
	var try func()
	try = func() {
		switch {
		case h.gen != gen:
		case w.now < h.frozen:
			w.at(h.frozen+w.between(0, 300*us), try)
		default:
			h.run(do)
		}
	}
	w.at(t, try)
}

func (h *host) after(d int64, do func()) { h.at(h.w.now+d, do) }

// run does one step of the daemon.
func (h *host) run(do func()) {
	w := h.w
	if h.midway > 0 {
		w.counts.Faults[hostFreezeMid]++
		h.freeze(h.midway)
		h.midway = 0
	}
	if w.chance(int(w.p.Faults[hostLag])) && !w.calm {
		w.counts.Faults[hostLag]++
		h.lag(do)
		return
	}
	h.step(do)
}

// lag has a goroutine read the clock, lose the CPU, and do its step after others have done theirs.
func (h *host) lag(do func()) {
	w := h.w
	d := w.skewed(3 * ms)
	if w.chance(30) {
		d = w.skewed(sec)
	}
	read, at, gen := h.boot(), w.now, h.gen
	w.after(d, func() {
		if h.gen != gen {
			return
		}
		if w.now >= h.frozen { // a freeze that came meanwhile is the greater delay: it counts alone
			h.stale, h.asOf = read, at
		}
		h.step(do)
		h.stale = 0
	})
}

func (h *host) step(do func()) {
	w, gen := h.w, h.gen
	if h.stale == 0 {
		h.asOf = w.now
	}
	do()
	if h.gen != gen || w.failure != nil {
		return
	}
	for _, l := range h.links {
		for _, p := range l.pumps {
			p.poll()
		}
	}
	h.noteQueued()
	w.checkOrder(h)
	for _, q := range h.arrived {
		h.notTooManyWait(q)
	}
	h.arrived = h.arrived[:0]
}

// freeze stops the host's daemon, as SIGSTOP or suspending the machine does.
func (h *host) freeze(d int64) {
	h.w.note(kindFault, nil, uint64(hostFreeze), uint64(h.id))
	h.w.say(nil, "host %d frozen for %v", h.id, time.Duration(d))
	until := h.w.now + d
	h.frozenTotal += max(0, until-max(h.frozen, h.w.now))
	h.frozen = max(h.frozen, until)
}

// frozenSoFar returns how long the daemon has been frozen so far.
func (h *host) frozenSoFar() int64 { return h.frozenTotal - max(0, h.frozen-h.w.now) }

// wake is called when the engine wants Tick called. It keeps only the earliest time, as the timer
// does.
func (h *host) wake(at int64) {
	if at >= h.tickAt {
		return
	}
	h.tickAt = at
	h.tickSeq++
	seq, w, gen := h.tickSeq, h.w, h.gen
	late := w.between(0, 100*us)
	if w.chance(20) {
		late = w.between(0, 20*ms)
	}
	w.at(max(w.now, h.trueTime(at))+late, func() {
		if h.gen != gen || h.tickSeq != seq {
			w.events-- // the engine has asked for an earlier time since: this is no event
			return
		}
		h.at(w.now, h.tick)
	})
}

func (h *host) tick() {
	h.tickAt = cache.Forever
	if h.stopped {
		return // takeOver wakes the engine when the takeover is over
	}
	h.wake(h.eng.Tick())
}

// kill ends the daemon as SIGKILL does. The kernel closes its sockets, and the store gets no
// message.
func (h *host) kill() {
	h.w.say(nil, "host %d killed", h.id)
	h.end()
	h.hangUp()
}

func (h *host) hangUp() {
	for _, k := range h.conns {
		k.ended = true
		k.hangUp()
	}
	h.conns = nil
}

func (h *host) end() {
	h.leaveKept()
	h.lastID += 1000
	h.gen++
	h.up, h.draining, h.frozen, h.stale, h.midway = false, false, 0, 0, 0
	h.cutSteps()
	for _, l := range h.links {
		l.close()
	}
	h.links = nil
}

// restart starts the next daemon after a while.
func (h *host) restart(after int64) {
	h.w.after(after, func() {
		if !h.up {
			h.w.say(nil, "host %d started", h.id)
			h.start()
		}
	})
}

// drain is the daemon's orderly end, in the steps of daemon.drain.
func (h *host) drain(limit int64) {
	switch {
	case h.draining:
		return
	case h.steps != nil: // the daemon applies the configuration first
		h.after(ms, func() { h.drain(limit) })
		return
	}
	h.w.say(nil, "host %d drains", h.id)
	h.draining = true
	h.eng.Drain(time.Duration(limit))
	end := h.w.now + limit
	var poll func()
	poll = func() {
		if (h.eng.Held() > 0 || h.queries > 0) && h.w.now < end {
			h.after(20*ms, poll)
			return
		}
		h.eng.Shut()
		for _, k := range h.conns {
			if k.s != nil {
				k.s.Fatal(protocol.Draining, "the daemon is stopping")
			}
		}
		h.awaitClients(h.w.now + 2*sec)
	}
	h.after(20*ms, poll)
}

// awaitClients waits for clients to close their side, then for the store to confirm.
func (h *host) awaitClients(end int64) {
	if len(h.conns) > 0 && h.w.now < end {
		h.after(20*ms, func() { h.awaitClients(end) })
		return
	}
	h.hangUp()
	h.settle(h.w.now + 2*sec)
}

// settle waits for the stores to confirm what the daemon has released, and then ends the daemon.
func (h *host) settle(end int64) {
	left := h.eng.Unkept()
	for _, l := range h.links {
		waiting, flying := l.storeLane.Main().Depth()
		if !l.breaker.down {
			left += waiting + flying
		}
		waiting, flying = l.storeLane.Ends().Depth()
		left += waiting + flying
	}
	if left > 0 && h.w.now < end {
		h.after(5*ms, func() { h.settle(end) })
		return
	}
	if left == 0 {
		h.storesKnow()
	}
	if h.park() {
		return
	}
	h.eng.ShutDetached()
	for _, l := range h.links {
		if l.s.kind == likeEmbedded {
			l.endEmbedded()
		}
	}
	h.w.say(nil, "host %d has drained", h.id)
	h.end()
	h.restart(h.w.between(100*ms, 3*sec))
}

// departs returns when the messages of the present step leave the host. A frozen host sends them
// later.
func (h *host) departs() int64 { return max(h.w.now, h.frozen) }
