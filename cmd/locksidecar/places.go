package main

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// seen is what this daemon has seen of the servers of a store. A reload may open the same store
// anew: with another password or time limit, or as a part of a pair. The new connections then
// continue from what was seen. The connections of a process that takes over continue from it, too.
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

// at returns what has been seen at a place.
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

// leave returns what a successor has to know before it opens the stores. It includes stores that
// cannot be taken over: their locks are lost, but the successor must still notice a server that has
// lost data. It does not include what this process sees later. The floors of the bases that this
// process grants meanwhile come with the locks.
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
