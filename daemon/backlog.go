package daemon

import (
	"slices"
	"sync"
	"time"
)

// backlog has things written on a goroutine of its own: whoever reads them may be slow, and
// renewals must not wait for him.
type backlog[T any] struct {
	most    int // that may wait
	write   func(*T)
	lost    func(n uint64) // so many were not written
	kick    chan struct{}
	closing chan struct{}
	wg      sync.WaitGroup

	mu      sync.Mutex
	queue   []T    // guarded by mu
	dropped uint64 // guarded by mu
}

// gather is for how long things are let gather before they are written: to wake a goroutine for each
// costs more than to write it.
const gather = 5 * time.Millisecond

func newBacklog[T any](most int, write func(*T), lost func(uint64)) *backlog[T] {
	b := &backlog[T]{most: most, write: write, lost: lost, kick: make(chan struct{}, 1), closing: make(chan struct{})}
	b.wg.Go(b.run)
	return b
}

// put takes in n things, which fill sets one by one. It never blocks.
func (b *backlog[T]) put(n int, fill func(i int, to *T)) {
	b.mu.Lock()
	at := len(b.queue)
	room := min(n, b.most-at)
	b.queue = slices.Grow(b.queue, room)[:at+room]
	for i := range room {
		fill(i, &b.queue[at+i])
	}
	b.dropped += uint64(n - room)
	b.mu.Unlock()
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

func (b *backlog[T]) run() {
	var batch []T
	for closed := false; !closed; {
		select {
		case <-b.kick:
			select {
			case <-time.After(gather):
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
		for i := range batch {
			b.write(&batch[i])
		}
		clear(batch)
		if cap(batch) > 1<<14 {
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
