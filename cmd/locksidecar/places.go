package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// seen records what this daemon has seen of the servers of a store, so that it notices a server
// that has lost data. A reload may open the same store again: with another password or time limit,
// or as a part of a pair. The new connections use the same record. So does a process that takes
// over.
type seen struct {
	fences *upstream.FenceClock // for Redis, MySQL and PostgreSQL: the bases and the clock
	high   *atomic.Int64        // for etcd and ZooKeeper: the highest revision or transaction id
}

// places keeps the values of seen by place. The zero value is ready to use. A nil *places keeps
// nothing.
type places struct {
	mu   sync.Mutex
	seen map[string]*seen // guarded by mu
}

// at returns the record of a place, which it makes if there is none.
func (p *places) at(place string) *seen {
	fresh := &seen{fences: upstream.NewFenceClock(renewer.Boottime), high: new(atomic.Int64)}
	if p == nil {
		return fresh
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.seen[place]; s != nil {
		return s
	}
	if p.seen == nil {
		p.seen = make(map[string]*seen)
	}
	p.seen[place] = fresh
	return fresh
}

// passedOn is what a successor is told of one place.
type passedOn struct {
	Fences string // the result of FenceClock.Leave
	High   int64
}

// leave returns the records for a successor, which needs them before it opens the stores. It
// includes stores that cannot be taken over: their locks are lost, but the successor must still
// notice a server that has lost data. Anything that this process sees later is missing, but the
// floors of the bases that it grants later come with the locks.
func (p *places) leave() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]passedOn, len(p.seen))
	for place, s := range p.seen {
		all[place] = passedOn{Fences: string(s.fences.Leave()), High: s.high.Load()}
	}
	b, _ := json.Marshal(all) // it cannot fail
	return b
}

// arrive adopts the result of another process's leave. An empty state, which older versions send,
// changes nothing.
func (p *places) arrive(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	var all map[string]passedOn
	if err := json.Unmarshal(b, &all); err != nil {
		return fmt.Errorf("read what the other process has seen of the stores: %w", err)
	}
	for place, was := range all {
		s := p.at(place)
		if err := s.fences.Arrive([]byte(was.Fences)); err != nil {
			return fmt.Errorf("store %s: %w", place, err)
		}
		s.high.Store(max(s.high.Load(), was.High))
	}
	return nil
}
