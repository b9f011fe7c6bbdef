package main

import (
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream"
)

// seen is what this daemon has seen of a store's servers. A reload may open the same store anew: with another
// password or time limit, or as one of two. Then the new connections continue from it.
type seen struct {
	fences *upstream.FenceClock // Redis and MySQL: the bases, and the clock
	high   *atomic.Int64        // etcd and ZooKeeper: the highest revision or transaction id
}

// places keeps seen by place. The zero value is ready to use; of nil nothing is kept.
type places struct {
	mu   sync.Mutex
	seen map[string]*seen // guarded by mu
}

// at is what has been seen at a place.
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
