package client

import "sync"

// keepalives remembers the validity that the keepalives of a connection have stated. A grant needs
// the keepalives that came after it.
type keepalives struct {
	mu  sync.Mutex
	seq uint64 // guarded by mu: number of keepalives received
	// top is guarded by mu. It has each keepalive that states more than all later ones, oldest
	// first. It rarely has more than one.
	top []keepalive
}

type keepalive struct {
	seq   uint64
	until int64
}

func (b *keepalives) add(until int64) {
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
	b.top = append(append(b.top[:0], b.top[past:n]...), keepalive{b.seq, until})
}

func (b *keepalives) last() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seq
}

// furthest returns the latest until of the keepalives from seq on; 0 if there are none.
func (b *keepalives) furthest(seq uint64) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.top {
		if t.seq >= seq {
			return t.until
		}
	}
	return 0
}
