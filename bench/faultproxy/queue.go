package faultproxy

import (
	"context"
	"sync"
	"time"
)

// maxOnTheWay bounds the bytes of one direction between its two ends.
const maxOnTheWay = 4 << 20

// chunk is what was read at once; no bytes are the end of file.
type chunk struct {
	b   []byte
	due time.Time
}

// cost counts the memory of small chunks too.
func (c chunk) cost() int { return len(c.b) + 64 }

// queue is what is on the way in one direction, first in, first out. It has one
// reader and one writer.
type queue struct {
	more, room chan struct{} // told that something was put in, that something was taken

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

// put blocks while the queue is full; false when ctx ends first.
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

// take blocks while the queue is empty; false when ctx ends first.
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
