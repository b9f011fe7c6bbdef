package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// losses is a client that notes the keys of the holds that it loses.
type losses struct {
	*testing.T
	sink
	keys []string
}

func (k *losses) Flush() {
	k.Helper()
	k.buf = k.s.Swap(nil)
	for b := k.buf; ; {
		p, rest, ok, err := protocol.Cut(b, protocol.DefaultMaxFrame)
		if err != nil {
			k.Fatal(err)
		}
		if !ok {
			return
		}
		m, err := protocol.DecodeMessage(p)
		if err != nil {
			k.Fatal(err)
		}
		if m.Event == protocol.EventLost {
			key, _, _, _, err := m.Lost()
			if err != nil {
				k.Fatal(err)
			}
			k.keys = append(k.keys, key)
		}
		b = rest
	}
}

// An engine takes an image with every kind of state, and has only one of its two stores. It ends everything at the
// other one, and keeps nothing that refers to it.
func TestAnEngineTakesAnImageWithoutOneOfItsStores(t *testing.T) {
	info := upstream.Info{Name: "test", Rebase: true, Queue: true, Permits: true, Timeout: time.Second}
	for _, c := range []struct {
		name, has, gone string
		lost            []string // the keys of holds there
	}{
		{"the second store", "", "other", nil},
		{"the first store", "other", "", []string{"held", "renewed", "shared"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newRich(t)
			image, was, err := d.e.Image()
			if err != nil {
				t.Fatal(err)
			}
			next := NewEngine(*d.e.settings(), d.now.Load, func(int64) {})
			if _, err := next.AddStore(c.has, info, nil); err != nil {
				t.Fatal(err)
			}
			if err := next.Route([]Namespace{{Store: c.has}}, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := next.Take(image, nil); err == nil {
				t.Fatal("an engine takes an image with a store that it does not have")
			}

			next = NewEngine(*d.e.settings(), d.now.Load, func(int64) {})
			_, err = next.AddStore(c.has, info, nil)
			if err == nil {
				err = next.Route([]Namespace{{Store: c.has}}, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			in, err := next.StandIn(c.gone, info, nil)
			if err != nil {
				t.Fatal(err)
			}
			sessions, err := next.Take(image, map[string]*Unit{c.gone: in})
			if err != nil || len(sessions) != len(was) {
				t.Fatal(len(sessions), err)
			}
			k := &losses{T: t, sink: sink{s: sessions[0]}}
			sessions[0].Carry(k)
			sessions[0].Swap(nil) // what was not written yet
			if !next.Abandon([]*Unit{in}) {
				t.Error("something refers to the store")
			}
			if n := len(next.stores()); n != 1 {
				t.Errorf("there are %d stores", n)
			}
			slices.Sort(k.keys)
			if lost := slices.Compact(k.keys); !slices.Equal(lost, c.lost) {
				t.Errorf("lost: %q, want %q", lost, c.lost)
			}
			if left := next.Leftovers(); left.Amiss != 0 {
				t.Errorf("%+v", left)
			}
			if _, _, err := next.Image(); err != nil {
				t.Error(err)
			}
			for range 100 { // nothing that comes later looks for the store
				d.now.Add(int64(time.Second))
				next.Tick()
			}
		})
	}
}
