package sim

import (
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// pump carries the batches of a lane to the store, as upstream.Pump does with a
// goroutine for each batch that may be in flight.
type pump struct {
	l    *link
	lane *upstream.Lane
	idle int // how many workers wait for the lane to change
}

// poll has an idle worker check the lane after a kick.
func (p *pump) poll() {
	for p.idle > 0 {
		select {
		case <-p.lane.Changed():
			p.idle--
			p.l.after(p.l.h.w.between(0, p.l.h.w.p.Hop*2/3), p.work)
		default:
			return
		}
	}
}

// work is what a worker without a batch does.
func (p *pump) work() {
	l := p.l
	if l.breaker.down && p == l.pumps[1] {
		l.breaker.parked = append(l.breaker.parked, p)
		return
	}
	if l.h.passing && p != l.pumps[0] || l.h.stopped {
		p.idle++
		return
	}
	b := p.lane.Next()
	if b == nil {
		p.idle++
		return
	}
	p.lane.Kick()
	b.Sent = l.h.clock()
	if l.breaker.down && p != l.pumps[2] {
		p.refuse(b)
		return
	}
	if l.breaker.down {
		l.h.w.counts.Tallies[endsWhileDown] += len(b.Ops)
	}
	f := newFlight(l, b.Ops)
	f.done = func(err error) { p.answered(b, f, err) }
	if l.pair != nil {
		l.pair.fly(f)
		return
	}
	f.send()
}

// newFlight returns a flight for a batch. It copies the batch, because the lane uses it again while
// late copies may still be on their way.
func newFlight(l *link, ops []cache.Op) *flight {
	return &flight{l: l, ops: slices.Clone(ops), results: make([]cache.Result, len(ops)), net: l.s.net,
		session: l.session.id,
		until:   l.session.until}
}

// flight is a batch on its way to the store and back.
type flight struct {
	l       *link
	done    func(error) // takes the answers
	ops     []cache.Op
	results []cache.Result
	net     int   // simStore.net when it was sent: a restart of the store breaks connections
	session int   // the daemon's session at the store when it was sent
	until   int64 // the deadline of that session then
	groups  int   // how many groups have not been answered
	over    bool
}

// checkBatch checks that the batch has one op of each lock, and of each permit.
func (f *flight) checkBatch() {
	type subject struct {
		key   string
		token uint64 // of a permit
	}
	seen := make(map[subject]*cache.Op)
	for i := range f.ops {
		op := &f.ops[i]
		x := subject{key: op.Key}
		if op.Mode == cache.Permit {
			x.token = op.Token
		}
		if o := seen[x]; o != nil {
			f.l.h.w.fail("batch", op.Key, "it has %v %d and %v %d", o.Kind, o.Token, op.Kind, op.Token)
		}
		seen[x] = op
	}
}

// send sends the ops of each script as a group. The ops of a group usually have the same fate.
func (f *flight) send() {
	l, w := f.l, f.l.h.w
	l.asksAnew(f.ops)
	f.checkBatch()
	if l.s.kind != likeEmbedded { // the pump waits for an embedded store, however slow the disk is
		l.at(l.h.departs()+w.p.Timeout, func() { f.deliver(errTimeout) })
	}
	var groups [2 * nScripts][]int // of locks, and of permits
	for i := range f.ops {
		s := scriptOf(&f.ops[i])
		groups[s] = append(groups[s], i)
	}
	fate := l.newFate()
	for _, g := range groups {
		if len(g) == 0 {
			continue
		}
		f.groups++
		if w.chance(300) {
			fate = l.newFate()
		}
		f.dispatch(g, fate)
	}
}

var (
	errTimeout = errors.New("no answer in time")
	errCut     = errors.New("connection reset")
)

// Scripts are the calls into which the driver divides a batch.
const (
	scriptAcquire = iota
	scriptShare
	scriptRelease
	scriptRenew
	scriptDowngrade
	scriptPeek
	nScripts
)

func scriptOf(op *cache.Op) int {
	if op.Mode == cache.Permit {
		lock := *op
		lock.Mode = cache.Exclusive
		return nScripts + scriptOf(&lock)
	}
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		if op.Mode == cache.Shared {
			return scriptShare
		}
		return scriptAcquire
	case cache.OpRelease, cache.OpWithdraw:
		return scriptRelease
	case cache.OpRenew:
		return scriptRenew
	case cache.OpDowngrade:
		return scriptDowngrade
	}
	return scriptPeek
}

// fate says what happens to a request on its way.
type fate struct {
	kind  fault // lostRequest to slowReply; nFaults for no fault
	there int64 // delay of the request
	back  int64 // delay of the answer
	extra int64 // further delay: of a late or second copy, or until the connection breaks
}

func (l *link) newFate() fate {
	w := l.h.w
	f := fate{kind: nFaults, there: w.skewed(w.p.Latency), back: w.skewed(w.p.Latency)}
	if w.calm || l.s.kind == likeEmbedded {
		return f
	}
	for k := lostRequest; k <= slowReply; k++ {
		if w.chance(int(w.p.Faults[k])) {
			f.kind = k
			break
		}
	}
	t := w.p.Timeout
	switch f.kind {
	case lateRequest:
		f.extra = w.between(t/2, 4*t)
	case doubled:
		f.extra = w.skewed(t / 2)
	case cut:
		f.extra = w.between(0, f.there+f.back+ms)
	case slowReply:
		f.there, f.back = w.between(0, t/4), w.between(t/3, t+t/10)
	}
	return f
}

// dispatch sends one group of ops.
func (f *flight) dispatch(group []int, x fate) {
	l, w := f.l, f.l.h.w
	if x.kind < nFaults {
		w.counts.Faults[x.kind]++
	}
	arrive := l.h.departs() + x.there
	if l.isCutOff() {
		if w.chance(500) {
			return
		}
		arrive = l.cutOff + x.there // a socket keeps trying
	}
	switch x.kind {
	case lostRequest:
		return
	case lateRequest:
		f.carryOut(arrive+x.extra, group, nil, x)
	case lostReply:
		f.carryOut(arrive, group, nil, x)
	case doubled:
		first := w.chance(500)
		f.carryOut(arrive, group, f.answers(first), x)
		f.carryOut(arrive+x.extra, group, f.answers(!first), x)
	case cut:
		f.carryOut(arrive, group, f.answers(true), x)
		l.at(l.h.departs()+x.extra, func() { f.deliver(errCut) })
	default:
		f.carryOut(arrive, group, f.answers(true), x)
	}
}

// answers returns where the answers of a group go: to the daemon, or nowhere.
func (f *flight) answers(wanted bool) []cache.Result {
	if wanted {
		return f.results
	}
	return nil
}

// carryOut has the store carry out a group at a time, or as soon as it can after that.
func (f *flight) carryOut(at int64, group []int, answers []cache.Result, x fate) {
	l, w := f.l, f.l.h.w
	inst := l.inst
	var try func()
	try = func() {
		if l.s.net != f.net || l.s.kind == likeEmbedded && (l.closed || l.inst != inst) {
			return // the connection broke before it arrived, or the store went with its daemon
		}
		if w.now < l.s.paused {
			w.at(l.s.paused+w.between(0, ms), try)
			return
		}
		ops, res := make([]*cache.Op, len(group)), make([]*cache.Result, len(group))
		for n, i := range group {
			ops[n], res[n] = &f.ops[i], &cache.Result{Left: -1}
		}
		l.s.carryOut(l, inst, f.session, ops, res)
		if answers == nil {
			return
		}
		back := w.now + x.back
		if l.isCutOff() {
			back = l.cutOff + x.back
		}
		w.at(back, func() {
			if l.s.net != f.net {
				return
			}
			for n, i := range group {
				answers[i] = *res[n]
				if x.kind == doubled && res[n].Status == cache.Refused {
					answers[i].Status = cache.Unknown // the other copy may have done something
				}
			}
			if f.groups--; f.groups == 0 {
				l.at(w.now, func() { f.deliver(nil) })
			}
		})
	}
	w.at(at, try)
}

// deliver gives the batch back once, with the results that have been answered.
func (f *flight) deliver(err error) {
	if f.over {
		return
	}
	f.over = true
	for i := range f.results {
		f.l.confirmSession(f, &f.ops[i], &f.results[i])
	}
	f.end(err)
}

func (f *flight) end(err error) {
	for i := range f.results {
		if r := &f.results[i]; r.Status == cache.Unknown && r.Err == nil {
			r.Err = err
		}
	}
	f.done(err)
}

// answered gives the engine the answers to a batch.
func (p *pump) answered(b *upstream.Batch, f *flight, err error) {
	l, h := p.l, p.l.h
	for i := range f.results {
		r := &f.results[i]
		l.gave(h.w.key(f.ops[i].Key), r)
		h.learns(&f.ops[i], r)
		h.w.counts.Results[r.Status]++
		h.w.note(kindResult, h.w.key(f.ops[i].Key), uint64(r.Status), r.Base)
		h.w.say(h.w.key(f.ops[i].Key), "host %d: %v %d answered %v base %d wanted %v", h.id,
			f.ops[i].Kind, f.ops[i].Token, r.Status, r.Base, r.Contended)
	}
	copy(b.Results, f.results)
	if err != nil {
		l.suspect()
	}
	h.eng.Deliver(b)
	p.lane.Done(b)
	p.work()
}
