package daemon_test

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// Reloads replace a store under one name again and again, while locks are held in the earlier ones.
// All of them have metrics of their own.
func TestStoresThatLeaveHaveDifferentNames(t *testing.T) {
	base := inMemory(t)
	h := start(t, base, nil)
	c := h.dial(client.Options{})
	fences := map[string]uint64{}
	for i := range 4 {
		second := inMemory(t)
		next := serving(base)
		next.Stores = append(next.Stores, daemon.StoreConfig{Name: "second", Store: second,
			Close: func() { _ = second.Close() }})
		next.Namespaces = []engine.Namespace{{Store: "store"}, {Prefix: "k", Store: "second"}}
		if err := h.d.Reload(next); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint("k", i)
		fences[key] = acquire(t, c, client.AcquireArgs{Key: key}).Fence
		if _, err := h.d.Registry().Gather(); err != nil {
			t.Errorf("reload %d: %v", i, err)
		}
	}
	names := map[string]bool{}
	for _, s := range h.d.Totals().Stores {
		if names[s.Name] {
			t.Errorf("two stores are called %q", s.Name)
		}
		names[s.Name] = true
	}
	for key, fence := range fences {
		release(t, c, key, 0, fence)
	}
}

// The namespace of all keys is called default in metrics; another one may have that prefix.
func TestANamespaceMayBeCalledDefault(t *testing.T) {
	h, _ := spaces(t, engine.Namespace{Prefix: "default", Store: "store"})
	if _, err := h.d.Registry().Gather(); err != nil {
		t.Error(err)
	}
}
