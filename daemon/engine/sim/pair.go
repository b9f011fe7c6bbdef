package sim

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/both"
)

// This file has two stores at once: the real driver, upstream/both, over two stores of this world.
// Its requests to one of them take virtual time. Each Apply is a coroutine, which is suspended
// while a request is on its way. So the driver and the world never run at the same time, and a seed
// always gives the same run.

// pair is the state of a link to two stores.
type pair struct {
	both    *both.Store
	parts   [2]*link        // to the old store and to the new one
	applies map[*apply]bool // in progress
}

// apply is one Apply of the driver in progress.
type apply struct {
	next func() (*trip, bool) // resumes it until its next trip
	stop func()
}

// trip is a batch on its way to one store of a pair.
type trip struct {
	to      *link
	ops     []upstream.Op
	results []upstream.Result
	note    func() // reads or changes the note at the store, instead of ops
	writes  bool   // it may change the note
	err     error
}

// note is the text in a store by which hosts with both stores agree on fences.
type note struct {
	text    []byte
	version int64
}

// member is one store of a pair, as the driver sees it.
type member struct {
	part     *link
	hints    chan upstream.Hint
	sessions chan upstream.Session // nil where leases live by their TTLs
}

type yieldKey struct{}

var errPairClosed = errors.New("the daemon does not use the two stores any more")

// Apply suspends the driver until the world has the answers.
func (m *member) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	return (&trip{to: m.part, ops: ops, results: results}).fly(ctx)
}

// Note returns the note of the store.
func (m *member) Note(ctx context.Context) (text []byte, version int64, err error) {
	n := &m.part.s.note
	err = (&trip{to: m.part, note: func() { text, version = n.text, n.version }}).fly(ctx)
	return text, version, err
}

// SetNote changes the note of the store.
func (m *member) SetNote(ctx context.Context, text []byte, version int64) (ok bool, err error) {
	n := &m.part.s.note
	err = (&trip{to: m.part, writes: true, note: func() {
		if ok = n.version == version; ok {
			n.text, n.version = text, version+1
			m.part.h.w.counts.Tallies[notes]++
		}
	}}).fly(ctx)
	return ok, err
}

// fly suspends the driver until the trip is over.
func (t *trip) fly(ctx context.Context) error {
	if yield := ctx.Value(yieldKey{}).(func(*trip) bool); !yield(t) {
		return errPairClosed
	}
	return t.err
}

func (m *member) Info() upstream.Info                 { return m.part.s.info() }
func (m *member) Capabilities() upstream.Capabilities { return upstream.Capabilities{Noter: m} }
func (m *member) Hints() <-chan upstream.Hint         { return m.hints }
func (m *member) Sessions() <-chan upstream.Session   { return m.sessions }
func (m *member) Ping(context.Context) error          { return nil } // see link.ping
func (m *member) Close() error                        { return nil }

// newPair makes a store that stands before two others.
func (w *World) newPair(old, new *simStore) *simStore {
	s := w.newStore(likeBoth)
	s.leaves = []*simStore{old, new}
	return s
}

// newPairs adds pairs of the stores that hosts share and whose bases can be raised. No two pairs
// have the same stores in opposite roles: hosts that follow different configurations could wait for
// each other then, as long as they do.
func (w *World) newPairs() {
	all := slices.DeleteFunc(slices.Clone(w.stores), func(s *simStore) bool {
		return s.kind == likeEmbedded || !s.rebase
	})
	for range 2 {
		old, new := all[w.pick(len(all))], all[w.pick(len(all))]
		opposite := slices.ContainsFunc(w.stores, func(s *simStore) bool {
			return len(s.leaves) == 2 && s.leaves[0] == new && s.leaves[1] == old
		})
		if old != new && !opposite {
			w.stores = append(w.stores, w.newPair(old, new))
		}
	}
}

// openPair begins to use the two stores of a pair.
func (l *link) openPair() (err error) {
	p := &pair{applies: make(map[*apply]bool)}
	var members [2]upstream.Store
	for i, s := range l.s.leaves {
		m := &member{hints: make(chan upstream.Hint)}
		if s.info().Session > 0 {
			m.sessions = make(chan upstream.Session)
		}
		m.part = &link{h: l.h, of: s, s: s, name: s.name, storeLane: l.storeLane, whole: l, member: m}
		p.parts[i], members[i] = m.part, m
	}
	l.pair = p
	if p.both, err = both.New(members[0], members[1], l.s.epoch); err == nil {
		p.both.SetWall(func() int64 { return l.s.leaves[0].clock() / us })
		p.both.CoverLater([]both.Keys{{}}) // all
		p.cover(l)
	}
	return err
}

// lines returns the links to single stores: for a pair, one for each of its stores.
func (h *host) lines() (all []*link) {
	for _, l := range h.links {
		all = append(all, l.lines()...)
	}
	return all
}

func (l *link) lines() []*link {
	if l.pair != nil {
		return l.pair.parts[:]
	}
	return []*link{l}
}

// news passes news of the daemon's store session to the engine. For a pair, the driver first
// derives the session of both.
func (l *link) news(n upstream.Session) {
	if l.whole != nil {
		l.member.sessions <- n
		n, l = <-l.whole.pair.both.Sessions(), l.whole
	}
	l.h.eng.StoreSession(l.storeLane, n)
}

// fly carries out a batch at both stores.
func (p *pair) fly(f *flight) {
	p.run(func(ctx context.Context) error { return p.both.Apply(ctx, f.ops, f.results) }, f.end)
}

// cover has the driver write the rules of the host's keys into the note, as a ping does.
func (p *pair) cover(l *link) {
	p.run(p.both.Ping, func(err error) {
		if err != nil {
			l.after(sec, func() {
				if l.pair == p {
					p.cover(l)
				}
			})
		}
	})
}

// run has the driver do something, and calls done with its error.
func (p *pair) run(do func(context.Context) error, done func(error)) {
	var err error
	a := new(apply)
	a.next, a.stop = iter.Pull(func(yield func(*trip) bool) {
		err = do(context.WithValue(context.Background(), yieldKey{}, yield))
	})
	p.applies[a] = true
	var resume func()
	resume = func() {
		t, more := a.next()
		if !more {
			delete(p.applies, a)
			done(err)
			return
		}
		t.to.h.w.counts.Tallies[pairTrips]++
		if t.note != nil {
			t.carryNote(resume)
			return
		}
		one := newFlight(t.to, t.ops)
		one.done = func(err error) {
			copy(t.results, one.results)
			t.err = err
			resume()
		}
		one.send()
	}
	resume()
}

// carryNote carries a request for the note to its store and back. Any fault loses the answer, and
// sometimes the request too.
func (t *trip) carryNote(resume func()) {
	l, w, x, net, over := t.to, t.to.h.w, t.to.newFate(), t.to.s.net, false
	end := func(err error) {
		if !over {
			over, t.err = true, err
			resume()
		}
	}
	l.at(l.h.departs()+w.p.Timeout, func() { end(errTimeout) })
	if l.isCutOff() || x.kind == lostRequest {
		return
	}
	var try func()
	try = func() {
		switch {
		case l.s.net != net:
		case w.now < l.s.paused:
			w.at(l.s.paused+w.between(0, ms), try)
		case t.writes && w.now < max(l.s.readOnly, l.s.full):
			l.after(x.back, func() { end(errRefused) })
		default:
			if t.note(); x.kind == nFaults && !l.isCutOff() {
				l.after(x.back, func() { end(nil) })
			}
		}
	}
	w.at(l.h.departs()+x.there, try)
}

// close ends everything in progress, and nothing more is sent.
func (p *pair) close() {
	for _, part := range p.parts {
		part.close()
	}
	for a := range p.applies {
		a.stop()
	}
	clear(p.applies)
	_ = p.both.Close() // the members' never fail
}
