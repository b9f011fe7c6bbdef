package heap

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type item struct{ value, place int }

type byValue struct{}

func (byValue) Less(a, b *item) bool     { return a.value < b.value }
func (byValue) Place(e *item, place int) { e.place = place }

// A heap agrees with a sorted slice, whatever is pushed, changed and removed.
func TestAHeapAgreesWithASortedSlice(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var h Heap[*item, byValue]
	var all []*item
	for range 20000 {
		switch n := rng.IntN(10); {
		case n < 5 || len(all) == 0:
			it := &item{value: rng.IntN(500)}
			all = append(all, it)
			h.Push(it)
		case n < 7:
			it := all[rng.IntN(len(all))]
			it.value = rng.IntN(500)
			h.Set(it.place, it)
		default:
			i := rng.IntN(len(all))
			if n == 9 {
				i = slices.Index(all, *h.At(1))
			}
			if it := all[i]; h.Remove(it.place) != it || it.place != 0 {
				t.Fatal("another entry was removed")
			}
			all = slices.Delete(all, i, i+1)
		}
		if h.Len() != len(all) {
			t.Fatalf("%d entries, want %d", h.Len(), len(all))
		}
		if len(all) == 0 {
			continue
		}
		least := slices.MinFunc(all, func(a, b *item) int { return a.value - b.value })
		if got := *h.At(1); got.value != least.value || got.place != 1 {
			t.Fatalf("the first is %+v, want the value %d", *got, least.value)
		}
	}
}

// Timers are set and ended with every request, so a heap that has its size allocates nothing.
func TestAHeapDoesNotAllocate(t *testing.T) {
	var h Heap[*item, byValue]
	items := make([]item, 100)
	for i := range items {
		items[i].value = i
		h.Push(&items[i])
	}
	it := new(item)
	if n := testing.AllocsPerRun(100, func() {
		it.value = 50
		h.Push(it)
		it.value = 20
		h.Set(it.place, it)
		h.Remove(it.place)
		h.Push(h.Remove(1))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
