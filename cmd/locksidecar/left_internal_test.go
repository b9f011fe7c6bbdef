package main

import (
	"testing"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
)

type closing struct {
	upstream.Store
	n int
}

func (c *closing) Close() error { c.n++; return nil }

// A reload drops a store, a second reload brings it back before it is closed, and a third one drops
// it again. Then the daemon stops using it twice. (Close can take that long: it waits up to 5 s for
// each request in flight.)
func TestAStoreIsLeftTwice(t *testing.T) {
	all := newOpenStores(zap.NewNop())
	st := &closing{}
	all.open["a"], all.needs["a"] = st, &need{key: "a"}
	all.used = map[string]bool{} // after the third reload; the daemon now stops using the store twice
	all.closeUnused("a")
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("the daemon panics: %v", r)
		}
	}()
	all.closeUnused("a")
}
