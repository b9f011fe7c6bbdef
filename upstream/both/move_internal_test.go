package both

import (
	"maps"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

// A successor knows of each token whether it may stand in the new store, or is being withdrawn.
func TestPlacesArePassedOn(t *testing.T) {
	was := &Store{places: map[place]standing{{"k", 1}: waits, {"k", 2}: leaves, {"l", 1}: leaves}}
	is := &Store{places: make(map[place]standing)}
	c := new(cache.Coder)
	was.code(c, new([2][]byte))
	r := &cache.Coder{B: c.B, Reading: true}
	if is.code(r, new([2][]byte)); r.Err != nil || !maps.Equal(is.places, was.places) {
		t.Errorf("%v (%v), and it was %v", is.places, r.Err, was.places)
	}
}
