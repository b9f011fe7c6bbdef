package zookeeper

import (
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

// The readers of a key may leave between two requests about it.
func TestAnEmptyQueueHasNoHolders(t *testing.T) {
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
		if n := holders(nil, mode); n != 0 {
			t.Errorf("%v: %d nodes of an empty queue hold the lock", mode, n)
		}
	}
	reader := node{ours: true, shared: true}
	for mode, want := range map[cache.Mode]int{cache.Exclusive: 1, cache.Shared: 2} {
		if n := holders([]node{reader, reader, {ours: true}}, mode); n != want {
			t.Errorf("%v: %d nodes hold the lock, want %d", mode, n, want)
		}
	}
}
