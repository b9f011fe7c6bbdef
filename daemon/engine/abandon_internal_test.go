package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
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
	for _, m := range messages(k, k.buf) {
		if m.Event == protocol.EventLost {
			key, _, _, _, err := m.Lost()
			if err != nil {
				k.Fatal(err)
			}
			k.keys = append(k.keys, key)
		}
	}
}

// An engine takes a snapshot with every kind of state, and has only one of its two stores. It ends
// everything at the other one, and keeps nothing that refers to it.
func TestAnEngineTakesASnapshotWithoutOneOfItsStores(t *testing.T) {
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
			snapshot, was, err := d.e.Snapshot()
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
			if _, err := next.Take(snapshot, nil); err == nil {
				t.Fatal("an engine takes a snapshot with a store that it does not have")
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
			sessions, err := next.Take(snapshot, map[string]*StoreLane{c.gone: in})
			if err != nil || len(sessions) != len(was) {
				t.Fatal(len(sessions), err)
			}
			k := &losses{T: t, sink: sink{s: sessions[0]}}
			sessions[0].SetTransport(k)
			sessions[0].Swap(nil) // what was not written yet
			if !next.Abandon([]*StoreLane{in}) {
				t.Error("something refers to the store")
			}
			if n := len(next.Stores()); n != 1 {
				t.Errorf("there are %d stores", n)
			}
			slices.Sort(k.keys)
			if lost := slices.Compact(k.keys); !slices.Equal(lost, c.lost) {
				t.Errorf("lost: %q, want %q", lost, c.lost)
			}
			if left := next.Residue(); left.Unaccounted != 0 {
				t.Errorf("%+v", left)
			}
			if _, _, err := next.Snapshot(); err != nil {
				t.Error(err)
			}
			for range 100 { // nothing that comes later looks for the store
				d.now.Add(int64(time.Second))
				next.Tick()
			}
		})
	}
}

// A waiter's store is left behind, and the store to which its key is routed now was down when the
// process before left its state, a minute ago. That store is asked before the waiter is refused.
func TestAnAbandonedWaiterIsNotRefusedForAStoreThatWasDown(t *testing.T) {
	d, next := newTwoStores(t), newBeating(t)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"),
		Wait: protocol.WaitAlways})
	if d.otherAnswers(cache.Result{Status: cache.Queued}) == 0 {
		t.Fatal("the store was not asked")
	}
	d.e.StoreDown(d.u, upstream.ErrDown)
	d.now.Add(int64(time.Minute))
	snapshot, _, err := d.e.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	next.now.Store(d.now.Load())
	next.e.End(next.s)
	in, err := next.e.StandIn("other", upstream.Info{Rebase: true, Queue: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	sessions, err := next.e.Take(snapshot, map[string]*StoreLane{"other": in})
	if err != nil {
		t.Fatal(err)
	}
	k := &sink{s: sessions[0]}
	sessions[0].SetTransport(k)
	if !next.e.Abandon([]*StoreLane{in}) {
		t.Error("something refers to the store")
	}
	next.e.StoreUp(next.u)
	next.answer()
	if m := k.last(t); m.ID != 7 || m.Code != protocol.OK {
		t.Error(m.ID, m.Code)
	}
}
