package sim

import (
	"fmt"

	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/upstream"
)

// link is a daemon's use of a store: the state for each store that the daemon keeps outside the
// engine. A takeover passes links on; a reload opens and drops them.
type link struct {
	h    *host
	of   *simStore // the store that the configuration names
	s    *simStore // the same store, except that each host has an embedded store of its own
	name string    // the engine's name for it
	no   int       // its number among the links of the host

	storeLane *engine.StoreLane
	inst      uint32   // identifies the daemon at the store
	pumps     [3]*pump // one for each lane: see lane
	breaker   breaker
	cutOff    int64 // the host cannot reach the store before this true time
	session   storeSession
	pair      *pair          // nil unless the store is two stores, with a link as a part for each
	whole     *link          // of a part: the link for both stores
	member    *member        // of a part: what the driver of both stores sees of it
	ended     map[ended]bool // tokens that were withdrawn or released there
	leaving   bool           // no namespace uses the store: it is dropped once it is empty
	closed    bool           // the store was dropped, or the daemon has ended
}

// open begins to use a store.
func (h *host) open(of *simStore) (*link, error) {
	w := h.w
	h.opened++
	l := &link{h: h, of: of, s: h.site(of), name: of.name, no: h.opened}
	if l.s.kind == likeBoth {
		if err := l.openPair(); err != nil {
			return nil, err
		}
	}
	if err := l.add(h.eng); err != nil {
		return nil, err
	}
	for i := range l.pumps {
		l.pumps[i] = &pump{l: l, lane: l.lane(i), idle: w.p.InFlight}
	}
	h.links = append(h.links, l)
	l.begin()
	return l, nil
}

// begin has a new instance of the daemon begin at the store.
func (l *link) begin() {
	for _, line := range l.lines() {
		line.inst = l.h.w.newInstance()
		line.openSession()
	}
}

func (w *World) newInstance() uint32 {
	w.instances++
	return w.instances
}

// add makes the store known to an engine.
func (l *link) add(eng *engine.Engine) (err error) {
	var inline upstream.Inline
	if l.s.kind == likeEmbedded {
		inline = inlineStore{l}
	}
	l.storeLane, err = eng.AddStore(l.name, l.info(), inline)
	for _, line := range l.lines() {
		line.storeLane = l.storeLane
	}
	return err
}

func (l *link) info() upstream.Info {
	if l.pair != nil {
		return l.pair.both.Info()
	}
	return l.s.info()
}

// rename gives a store that is leaving another name, because a new store may have its name. A store
// that is taken back gets its own name again.
func (l *link) rename(leaving bool) {
	l.name = l.of.name
	if leaving {
		l.name = fmt.Sprintf("%s (leaving, %d)", l.of.name, l.no)
	}
	l.h.eng.Rename(l.storeLane, l.name)
}

// lane returns a lane of the store: 0 is the main lane, 1 renewals, and 2 the lane of ends.
func (l *link) lane(i int) *upstream.Lane {
	return [...]*upstream.Lane{l.storeLane.Main(), l.storeLane.Renewals(), l.storeLane.Ends()}[i]
}

// close ends the use of a store, because the daemon has ended or has dropped the store.
func (l *link) close() {
	l.closed = true
	if l.pair != nil {
		l.pair.close()
		return
	}
	l.closeSession()
}

// at has the daemon do something at a time, unless the store has been dropped by then.
func (l *link) at(t int64, do func()) {
	l.h.at(t, func() {
		if !l.closed {
			do()
		}
	})
}

func (l *link) after(d int64, do func()) { l.at(l.h.w.now+d, do) }

// isCutOff reports whether the host cannot reach the store.
func (l *link) isCutOff() bool {
	return l.cutOff > l.h.w.now && !l.h.w.calm && l.s.kind != likeEmbedded
}

// hint passes a hint on to the daemon.
func (l *link) hint(x upstream.Hint) {
	if l.whole != nil {
		l.member.hints <- x
		x, l = <-l.whole.pair.both.Hints(), l.whole
	}
	l.h.w.counts.Hints[x.Kind]++
	l.h.eng.Hint(l.storeLane, x)
}

// site returns the store that a host uses for a store of the configuration.
func (h *host) site(s *simStore) *simStore {
	if s.kind == likeEmbedded {
		return h.embedded
	}
	return s
}
