// Package heap has the priority queue that the lock table, the renewer and the simulator share.
package heap

// children is the number of children of an entry. With four, a heap is half as deep as with two,
// and the children of an entry share a cache line or two.
const children = 4

// Order says how the entries of a heap are ordered, and records where they are. It gets entries as
// values, because a pointer to an entry on its way would have it allocated.
type Order[E any] interface {
	Less(a, b E) bool
	// Place records the place of an entry, from 1; 0 means that it has left the heap.
	Place(e E, place int)
}

// Heap is a priority queue whose least entry comes first. An entry knows its place, and so can be
// removed. The zero value is an empty heap. It is not safe for concurrent use.
type Heap[E any, O Order[E]] struct {
	entries []E
	order   O
}

// Len returns the number of entries.
func (h *Heap[E, O]) Len() int { return len(h.entries) }

// At returns the entry at a place. The first place is 1, where the least entry is.
func (h *Heap[E, O]) At(place int) *E { return &h.entries[place-1] }

// Push adds e.
func (h *Heap[E, O]) Push(e E) {
	h.entries = append(h.entries, e)
	h.up(len(h.entries)-1, e)
}

// Set replaces the entry at a place by e.
func (h *Heap[E, O]) Set(place int, e E) { h.fix(place-1, e) }

// Remove removes the entry at a place, and returns it.
func (h *Heap[E, O]) Remove(place int) E {
	i, last := place-1, len(h.entries)-1
	removed, moved := h.entries[i], h.entries[last]
	h.order.Place(removed, 0)
	var zero E
	h.entries[last] = zero
	h.entries = h.entries[:last]
	if i < last {
		h.fix(i, moved)
	}
	return removed
}

// fix puts e at i, or where it has to be.
func (h *Heap[E, O]) fix(i int, e E) {
	if i > 0 && h.order.Less(e, h.entries[(i-1)/children]) {
		h.up(i, e)
	} else {
		h.down(i, e)
	}
}

func (h *Heap[E, O]) set(i int, e E) {
	h.entries[i] = e
	h.order.Place(e, i+1)
}

// up puts e at i, or as far above as it has to be.
func (h *Heap[E, O]) up(i int, e E) {
	for i > 0 {
		parent := (i - 1) / children
		if !h.order.Less(e, h.entries[parent]) {
			break
		}
		h.set(i, h.entries[parent])
		i = parent
	}
	h.set(i, e)
}

// down puts e at i, or as far below as it has to be.
func (h *Heap[E, O]) down(i int, e E) {
	for {
		first := children*i + 1
		if first >= len(h.entries) {
			break
		}
		least := first
		for c := first + 1; c < min(first+children, len(h.entries)); c++ {
			if h.order.Less(h.entries[c], h.entries[least]) {
				least = c
			}
		}
		if !h.order.Less(h.entries[least], e) {
			break
		}
		h.set(i, h.entries[least])
		i = least
	}
	h.set(i, e)
}
