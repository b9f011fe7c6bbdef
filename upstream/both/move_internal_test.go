package both

import (
	"maps"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
)

// A successor knows of each token whether it may be in the new store, or is being withdrawn.
func TestPlacesArePassedOn(t *testing.T) {
	was := &Store{tokens: map[token]tokenState{{"k", 1}: queued, {"k", 2}: withdrawn,
		{"l", 1}: withdrawn}}
	is := &Store{tokens: make(map[token]tokenState)}
	c := new(cache.Coder)
	was.code(c, new([2][]byte))
	r := &cache.Coder{B: c.B, Reading: true}
	if is.code(r, new([2][]byte)); r.Err != nil || !maps.Equal(is.tokens, was.tokens) {
		t.Errorf("%v (%v), and it was %v", is.tokens, r.Err, was.tokens)
	}
}
