package faultproxy

import (
	"context"
	"sync"
	"time"
)

// maxOnTheWay bounds the bytes that are on the way in one direction.
const maxOnTheWay = 4 << 20

// chunk has the bytes of one read. A chunk without bytes is the end of file.
type chunk struct {
	b   []byte
	due time.Time
}

// cost returns the size of the chunk, including its own memory, which matters for small chunks.
func (c chunk) cost() int { return len(c.b) + 64 }

// queue has the chunks that are on the way in one direction, first in, first out. It has one reader
// and one writer.
type queue struct {
	more, room chan struct{} // signal that a chunk was put in, and that one was taken

	mu   sync.Mutex
	line []chunk // guarded by mu
	cost int     // guarded by mu
}

func newQueue() *queue {
	return &queue{more: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func tell(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put blocks while the queue is full. It returns false if ctx ends first.
func (q *queue) put(ctx context.Context, c chunk) bool {
	for {
		q.mu.Lock()
		if q.cost < maxOnTheWay {
			q.line = append(q.line, c)
			q.cost += c.cost()
			q.mu.Unlock()
			tell(q.more)
			return true
		}
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-ctx.Done():
			return false
		}
	}
}

// take blocks while the queue is empty. It returns false if ctx ends first.
func (q *queue) take(ctx context.Context) (chunk, bool) {
	for {
		q.mu.Lock()
		if len(q.line) > 0 {
			c := q.line[0]
			q.line[0] = chunk{}
			q.line = q.line[1:]
			q.cost -= c.cost()
			q.mu.Unlock()
			tell(q.room)
			return c, true
		}
		q.mu.Unlock()
		select {
		case <-q.more:
		case <-ctx.Done():
			return chunk{}, false
		}
	}
}
