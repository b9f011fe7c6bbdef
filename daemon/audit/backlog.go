package audit

import (
	"sync"
	"time"
)

// Backlog writes things on a goroutine of its own, because their reader may be slow.
type Backlog[T any] struct {
	most    int // that may wait, give or take one put
	write   func([]T)
	lost    func(n uint64) // so many were not written
	kick    chan struct{}
	closing chan struct{}
	wg      sync.WaitGroup

	mu      sync.Mutex
	queue   []T    // guarded by mu
	dropped uint64 // guarded by mu
}

// gather is for how long things are let gather before they are written: to wake a goroutine for each
// costs more than to write it. Of those that may wait, a gatherPart-th is written at once.
const (
	gather     = 5 * time.Millisecond
	gatherPart = 512
)

// NewBacklog makes a backlog of at most most things, give or take one Put. write writes some of them, and lost is told
// how many were dropped because the backlog was full.
func NewBacklog[T any](most int, write func([]T), lost func(uint64)) *Backlog[T] {
	b := &Backlog[T]{most: most, write: write, lost: lost, kick: make(chan struct{}, 1), closing: make(chan struct{})}
	b.wg.Go(b.run)
	return b
}

// Put has add append to what waits; if that is full, so many things count as lost. It never blocks.
func (b *Backlog[T]) Put(things int, add func(queue []T) []T) {
	b.mu.Lock()
	before := len(b.queue)
	if before < b.most {
		b.queue = add(b.queue)
	} else {
		b.dropped += uint64(things)
	}
	after := len(b.queue)
	b.mu.Unlock()
	if enough := b.most / gatherPart; before == 0 || before < enough && after >= enough {
		select {
		case b.kick <- struct{}{}:
		default:
		}
	}
}

func (b *Backlog[T]) run() {
	var batch []T
	for closed := false; !closed; {
		select {
		case <-b.kick:
			select {
			case <-time.After(gather):
			case <-b.kick:
			case <-b.closing:
			}
		case <-b.closing:
			closed = true // nothing is put any more
		}
		b.mu.Lock()
		batch, b.queue = b.queue, batch[:0]
		dropped := b.dropped
		b.dropped = 0
		b.mu.Unlock()
		if len(batch) > 0 {
			b.write(batch)
		}
		clear(batch)
		if cap(batch) > 4*b.most/gatherPart {
			batch = nil
		}
		if dropped > 0 {
			b.lost(dropped)
		}
	}
}

// Close writes what waits, and ends the goroutine.
func (b *Backlog[T]) Close() {
	close(b.closing)
	b.wg.Wait()
}
