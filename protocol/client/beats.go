package client

import "sync"

// beats remembers how far each part of the stream's beats has stated validity.
type beats struct {
	mu  sync.Mutex
	seq uint64 // guarded by mu: how many have come
	// top is guarded by mu: those that no later one outdoes, oldest first, so with
	// falling until. There is seldom more than one.
	top []beat
}

type beat struct {
	seq   uint64
	until int64
}

func (b *beats) add(until int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seq++
	n := len(b.top)
	for n > 0 && b.top[n-1].until <= until {
		n--
	}
	past := 0
	for t := now(); past < n && b.top[past].until < t; past++ {
	}
	b.top = append(append(b.top[:0], b.top[past:n]...), beat{b.seq, until})
}

func (b *beats) last() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seq
}

// furthest returns the latest until of the beats from seq on, 0 without any.
func (b *beats) furthest(seq uint64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.top {
		if t.seq >= seq {
			return t.until
		}
	}
	return 0
}
