package daemon

import (
	"sync"
	"time"
)

// backlog has things written on a goroutine of its own: whoever reads them may be slow, and
// renewals must not wait for him.
type backlog[T any] struct {
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

func newBacklog[T any](most int, write func([]T), lost func(uint64)) *backlog[T] {
	b := &backlog[T]{most: most, write: write, lost: lost, kick: make(chan struct{}, 1), closing: make(chan struct{})}
	b.wg.Go(b.run)
	return b
}

// put has add append to what waits; if that is full, so many things count as lost. It never blocks.
func (b *backlog[T]) put(things int, add func(queue []T) []T) {
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

func (b *backlog[T]) run() {
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

// close writes what waits.
func (b *backlog[T]) close() {
	close(b.closing)
	b.wg.Wait()
}
