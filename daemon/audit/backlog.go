package audit

import (
	"sync"
	"time"
)

// Backlog writes values on a goroutine of its own, because their reader may be slow.
type Backlog[T any] struct {
	limit   int // of the queue; one call of Put may exceed it
	write   func([]T)
	lost    func(n uint64) // is called with the number of dropped values
	kick    chan struct{}
	closing chan struct{}
	wg      sync.WaitGroup

	mu      sync.Mutex
	queue   []T    // guarded by mu
	dropped uint64 // guarded by mu
}

// gather is how long a backlog collects values before it writes them, because waking the goroutine
// for each costs more than writing it. When the queue has a gatherPart-th of its limit, it is
// written at once.
const (
	gather     = 5 * time.Millisecond
	gatherPart = 512
)

// NewBacklog returns a backlog whose queue has a limit, which one call of Put may exceed. write
// writes a part of the queue. lost is called with the number of values that were dropped because
// the queue was full.
func NewBacklog[T any](limit int, write func([]T), lost func(uint64)) *Backlog[T] {
	b := &Backlog[T]{limit: limit, write: write, lost: lost, kick: make(chan struct{}, 1),
		closing: make(chan struct{})}
	b.wg.Go(b.run)
	return b
}

// Put calls add, which appends things values to the queue. If the queue is full, they count as lost
// instead. Put never blocks.
func (b *Backlog[T]) Put(things int, add func(queue []T) []T) {
	b.mu.Lock()
	before := len(b.queue)
	if before < b.limit {
		b.queue = add(b.queue)
	} else {
		b.dropped += uint64(things)
	}
	after := len(b.queue)
	b.mu.Unlock()
	if enough := b.limit / gatherPart; before == 0 || before < enough && after >= enough {
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
			closed = true // Put is not called any more
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
		if cap(batch) > 4*b.limit/gatherPart {
			batch = nil
		}
		if dropped > 0 {
			b.lost(dropped)
		}
	}
}

// Close writes the queue, and ends the goroutine.
func (b *Backlog[T]) Close() {
	close(b.closing)
	b.wg.Wait()
}
