package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// anyKeys are at the second store of twoStores.
var anyKeys = []string{"o:a", "o:b", "o:c"}

// askAny sends an acquire-any with the id 9 for the owner 3.
func (d *twoStores) askAny(s *Session, keys []string, wait int64, mode protocol.Mode) {
	q := &protocol.Request{Op: protocol.OpAcquireAny, ID: 9, Owner: 3, Wait: wait, TTL: 30000,
		Mode: mode}
	for _, k := range keys {
		q.Keys = append(q.Keys, []byte(k))
	}
	send(s, q)
}

// round has the second store answer the ops that wait for it, and returns them. With rounds it
// makes batches, as a store that is slower than the host does.
func (d *twoStores) round(answer func(op *upstream.Op) upstream.Result) (ops []upstream.Op) {
	p := d.other.main.Next()
	if p == nil {
		return nil
	}
	p.Sent = d.now.Load()
	for i := range p.Ops {
		p.Results[i] = answer(&p.Ops[i])
	}
	ops = slices.Clone(p.Ops)
	d.e.Deliver(p)
	d.other.main.Done(p)
	return ops
}

// always answers acquires with r, and the rest with success.
func always(r upstream.Result) func(*upstream.Op) upstream.Result {
	return func(op *upstream.Op) upstream.Result {
		if op.Kind == cache.OpTry || op.Kind == cache.OpJoin {
			return r
		}
		return upstream.Result{Status: cache.Done}
	}
}

var (
	busy    = always(upstream.Result{Status: cache.Busy, Left: -1})
	queued  = always(upstream.Result{Status: cache.Queued, Left: -1})
	grants  = always(upstream.Result{Status: cache.Granted, Base: 5})
	unknown = always(upstream.Result{Status: cache.Unknown, Err: upstream.ErrDown})
)

// kinds checks the kinds of ops.
func (d *twoStores) kinds(ops []upstream.Op, want ...cache.OpKind) {
	d.Helper()
	var got []cache.OpKind
	for i := range ops {
		got = append(got, ops[i].Kind)
	}
	if !slices.Equal(got, want) {
		d.Fatalf("ops %v, want %v", got, want)
	}
}

// toPhase brings an acquire-any with a wait to a phase: 0 it tries one key, 1 it tries the others,
// 2 it joins the queues, 3 it waits in them.
func (d *twoStores) toPhase(phase int) {
	d.Helper()
	d.askAny(d.s, anyKeys, protocol.WaitAlways, protocol.Exclusive)
	for i := range phase {
		d.round([]func(*upstream.Op) upstream.Result{busy, busy, queued}[i])
	}
}

// grantOf returns the grant that was sent last, and the index of its key.
func (d *twoStores) grantOf(k *sink) (protocol.Grant, uint64) {
	d.Helper()
	m := k.last(d)
	g, index, err := m.GrantOf()
	if m.Code != protocol.OK || m.ID != 9 || err != nil {
		d.Fatal(m.ID, m.Code, err)
	}
	return g, index
}

// nothingElse has the store carry out everything that waits. Then it checks that the session has
// the given number of holds and no waiters, and that this host has no other leases.
func (d *twoStores) nothingElse(s *Session, holds int64) {
	d.Helper()
	for d.round(grants) != nil { // withdrawals and releases
	}
	if h, w := s.Counts(); h != holds || w != 0 || len(s.anyAcquires) != 0 {
		d.Fatalf("%d holds, %d waiters, %d requests", h, w, len(s.anyAcquires))
	}
	if l := d.e.Residue(); int64(l.Held) != holds || l.Waiting != 0 || l.Unaccounted != 0 {
		d.Fatal(l)
	}
}

func TestAnAcquireAnyTakesOneKeyOfThoseThatAreFree(t *testing.T) {
	d := newTwoStores(t)
	d.askAny(d.s, anyKeys, 0, protocol.Exclusive)
	d.kinds(d.round(busy), cache.OpTry)
	d.kinds(d.round(grants), cache.OpTry, cache.OpTry)
	g, index := d.grantOf(d.k)
	d.kinds(d.round(grants), cache.OpRelease)
	d.nothingElse(d.s, 1)
	send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 10, Owner: 3, Fence: g.Fence,
		Key: []byte(anyKeys[index])})
	d.nothingElse(d.s, 0)
	if c := d.e.Totals().Classes; c[0].Acquires[protocol.OK]+c[1].Acquires[protocol.OK] != 1 {
		t.Errorf("%+v", c)
	}
}

func TestAnAcquireAnyThatIsBusyLeavesNothing(t *testing.T) {
	d := newTwoStores(t)
	d.askAny(d.s, anyKeys, 0, protocol.Exclusive)
	left := time.Hour
	shorter := func(op *upstream.Op) upstream.Result {
		left -= time.Minute
		return upstream.Result{Status: cache.Busy, Left: int64(left)}
	}
	d.round(shorter)
	d.round(shorter)
	m := d.k.last(t)
	if _, detail, _ := m.Error(); m.Code != protocol.Busy || detail != left.Milliseconds() {
		t.Error(m.Code, detail)
	}
	d.nothingElse(d.s, 0)
}

// In each phase, a grant of all keys at once makes one hold, and a cancel, the end of the session,
// a takeover and a drain leave nothing behind.
func TestAnAcquireAnyInEachPhase(t *testing.T) {
	for phase := range 4 {
		end := func(t *testing.T, d *twoStores) { // the store grants whatever is asked
			d.now.Add(int64(time.Second)) // for a daemon that waits in a queue
			d.e.Tick()
			d.round(grants)
		}
		for name, run := range map[string]func(t *testing.T, d *twoStores){
			"granted": func(t *testing.T, d *twoStores) {
				end(t, d)
				d.grantOf(d.k)
				d.nothingElse(d.s, 1)
			},
			"withdrawn": func(t *testing.T, d *twoStores) {
				d.k.buf = nil
				send(d.s, &protocol.Request{Op: protocol.OpCancel, ID: 10, Target: 9,
					Key: []byte(anyKeys[2])})
				all := messages(t, d.k.buf)
				if len(all) != 2 || all[0].ID != 9 || all[0].Code != protocol.Canceled || all[1].ID != 10 {
					t.Fatal(all)
				}
				if n, _ := all[1].Number(); n != 1 {
					t.Error("not found")
				}
				end(t, d)
				d.nothingElse(d.s, 0)
			},
			"ended": func(t *testing.T, d *twoStores) {
				d.e.End(d.s)
				end(t, d)
				for d.round(grants) != nil {
				}
				if l := d.e.Residue(); !l.None() {
					t.Error(l)
				}
				gone := uint64(0)
				for _, c := range d.e.Totals().Classes {
					gone += c.Acquires[cache.OutGone]
				}
				if gone != 1 {
					t.Errorf("counted %d times", gone)
				}
			},
			"drained": func(t *testing.T, d *twoStores) {
				d.k.buf = nil
				d.e.Drain(time.Minute)
				if m := messages(t, d.k.buf)[1]; m.ID != 9 || m.Code != protocol.Draining {
					t.Error(m.ID, m.Code)
				}
				end(t, d)
				d.nothingElse(d.s, 0)
			},
			"taken over": func(t *testing.T, d *twoStores) {
				next := newTwoStores(t)
				s := d.takenOver(next.beating)
				end(t, next)
				next.grantOf(s.transport.(*sink))
				next.nothingElse(s, 1)
				next.e.End(s)
			},
			"denied": func(t *testing.T, d *twoStores) {
				d.s.peer.UID = 1000
				d.route(Namespace{}, Namespace{Prefix: "o:", Store: "other"},
					Namespace{Prefix: anyKeys[1], Store: "other", Users: []int{7}})
				for i := phase; i < 3; i++ {
					d.round([]func(*upstream.Op) upstream.Result{busy, busy, queued}[i])
				}
				if m := d.k.last(t); m.ID != 9 || m.Code != protocol.Denied {
					t.Error(m.ID, m.Code)
				}
				end(t, d)
				d.nothingElse(d.s, 0)
			},
			"moved": func(t *testing.T, d *twoStores) {
				d.route(Namespace{})
				end(t, d)
				d.otherAnswers(cache.Result{Status: cache.Done})
				d.answer()
				d.grantOf(d.k)
				if h, w := d.s.Counts(); h != 1 || w != 0 {
					t.Error(h, w)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				d := newTwoStores(t)
				d.toPhase(phase)
				run(t, d)
			})
		}
	}
}

// The wait bounds the request, whatever the store does.
func TestTheWaitOfAnAcquireAnyBoundsItsTriesToo(t *testing.T) {
	for phase := range 4 {
		d := newTwoStores(t)
		d.askAny(d.s, anyKeys, 1000, protocol.Exclusive)
		for i := range phase {
			d.round([]func(*upstream.Op) upstream.Result{busy, busy, queued}[i])
		}
		d.k.buf = nil
		d.now.Add(int64(time.Second))
		d.e.Tick()
		if m := d.k.last(t); m.ID != 9 || m.Code != protocol.Timeout {
			t.Error(phase, m.ID, m.Code)
		}
		d.nothingElse(d.s, 0)
	}
}

// One store fails. A try that can have another key is granted, and one that cannot is not called
// busy.
func TestAnAcquireAnyWithAStoreThatFails(t *testing.T) {
	for _, held := range []bool{false, true} {
		d := newTwoStores(t)
		var g protocol.Grant
		if held {
			g = d.acquire("a", time.Hour)
		}
		d.e.anyStart.Store(1) // it begins with o:b
		d.askAny(d.s, []string{"a", "o:b"}, 0, protocol.Exclusive)
		d.round(unknown)
		d.answer()
		if m := d.k.last(t); held && (m.ID != 9 || m.Code != protocol.Unavailable) {
			t.Error(m.ID, m.Code)
		} else if !held {
			d.grantOf(d.k)
		}
		_ = g
	}
}

// A key that the owner holds is re-entered, and one that it holds shared is left out.
func TestAnAcquireAnyOfKeysThatTheOwnerHolds(t *testing.T) {
	for start := range uint64(3) {
		d := newTwoStores(t)
		d.e.anyStart.Store(start)
		hold := func(key string, mode protocol.Mode) {
			send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte(key), Owner: 3,
				Mode: mode})
			d.round(grants)
			if m := d.k.last(t); m.ID != 5 || m.Code != protocol.OK {
				t.Fatal(m.ID, m.Code)
			}
		}
		hold(anyKeys[1], protocol.Exclusive)
		d.askAny(d.s, anyKeys, 0, protocol.Shared)
		if g, index := d.grantOf(d.k); index != 1 || g.Count != 2 {
			t.Error(index, g)
		}
		hold(anyKeys[0], protocol.Shared)
		hold(anyKeys[2], protocol.Shared)
		d.askAny(d.s, []string{anyKeys[0], anyKeys[2]}, protocol.WaitAlways, protocol.Exclusive)
		if m := d.k.last(t); m.ID != 9 || m.Code != protocol.Upgrade {
			t.Error(m.ID, m.Code)
		}
		d.askAny(d.s, []string{anyKeys[0], "o:d", anyKeys[2]}, protocol.WaitAlways, protocol.Exclusive)
		for _, answer := range []func(*upstream.Op) upstream.Result{busy, grants} {
			d.round(answer)
		}
		if _, index := d.grantOf(d.k); index != 1 {
			t.Error(index)
		}
		d.e.End(d.s)
	}
}

// While an acquire-any waits for its keys, its owner gets one of them by another request. That is a
// re-entry.
func TestAnAcquireAnyReentersAKeyThatItsOwnerGetsMeanwhile(t *testing.T) {
	d := newTwoStores(t)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte(anyKeys[1]), Owner: 3,
		Wait: protocol.WaitAlways})
	d.askAny(d.s, anyKeys, protocol.WaitAlways, protocol.Exclusive)
	d.k.buf = nil
	for range 4 {
		d.round(func(op *upstream.Op) upstream.Result {
			if op.Key == anyKeys[1] {
				return queued(op)
			}
			return busy(op)
		})
		d.now.Add(int64(time.Millisecond))
		d.e.Tick()
	}
	d.now.Add(int64(time.Second))
	d.e.Tick()
	d.round(func(op *upstream.Op) upstream.Result {
		if op.Key == anyKeys[1] {
			return grants(op)
		}
		return queued(op)
	})
	all := messages(t, d.k.buf)
	if len(all) != 2 || all[0].ID != 5 || all[1].ID != 9 {
		t.Fatal(all)
	}
	if g, index, _ := all[1].GrantOf(); index != 1 || g.Count != 2 {
		t.Error(index, g)
	}
	d.nothingElse(d.s, 1)
}

// The waiters of a key whose turn comes for an acquire-any that has another key are served at once,
// and no handoff is counted for it.
func TestAnAcquireAnyThatIsDecidedDoesNotHoldUpOthers(t *testing.T) {
	d := newTwoStores(t)
	d.toPhase(3)
	other, k := open(t, d.e)
	send(other, &protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte(anyKeys[1]),
		Wait: protocol.WaitAlways})
	d.now.Add(int64(time.Second))
	d.e.Tick()
	d.round(grants)
	d.grantOf(d.k)
	m := k.last(t)
	g, err := m.Grant()
	if m.ID != 5 || m.Code != protocol.OK || err != nil || g.Fence&1023 != 0 {
		t.Fatal(m.ID, m.Code, g)
	}
	d.e.End(other)
	d.nothingElse(d.s, 1)
}

// An owner that waits for one of two keys is in a ring only if it cannot get either.
func TestAnAcquireAnyIsInARingIfItHasNoWayOut(t *testing.T) {
	two := &anyAcquire{}
	two.keys = [][]byte{[]byte("a"), []byte("b")}
	o := func(n uint64) owner { return owner{1, n} }
	free := map[owner][]edge{
		o(1): {{to: o(2), any: two, key: "a"}, {to: o(3), any: two, key: "b"}},
		o(2): {{to: o(1), key: "c"}},
		o(3): {{to: o(4), key: "d"}}, // which continues
	}
	if found := rings(withoutFree(free)); len(found) != 0 {
		t.Error(found)
	}
	stuck := map[owner][]edge{
		o(1): {{to: o(2), any: two, key: "a"}, {to: o(3), any: two, key: "b"}},
		o(2): {{to: o(1), key: "c"}},
		o(3): {{to: o(2), key: "d"}},
	}
	if found := rings(withoutFree(stuck)); len(found) == 0 {
		t.Error("not found")
	}
	elsewhere := map[owner][]edge{ // nobody on this host holds b
		o(1): {{to: o(2), any: two, key: "a"}},
		o(2): {{to: o(1), key: "c"}},
	}
	if found := rings(withoutFree(elsewhere)); len(found) != 0 {
		t.Error(found)
	}
}
