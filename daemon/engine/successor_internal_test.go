package engine

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream"
)

// takenOver has next continue with d's state, at the same time. It returns the session, which is
// d's.
func (d *beating) takenOver(next *beating) *Session {
	d.Helper()
	snapshot, _, err := d.e.Snapshot()
	if err != nil {
		d.Fatal(err)
	}
	next.now.Store(d.now.Load())
	next.e.End(next.s)
	sessions, err := next.e.Take(snapshot, nil)
	if err != nil {
		d.Fatal(err)
	}
	sessions[0].SetTransport(&sink{s: sessions[0]})
	next.e.Abandon(nil)
	return sessions[0]
}

// The configuration of the successor introduces a heartbeat. No hold is lost before the validity
// ends that the earlier process stated.
func TestASuccessorWithAHeartbeatSparesHoldsUntilTheirStatedValidityEnds(t *testing.T) {
	d, next := newBeating(t), newBeating(t)
	g := d.acquire("k", 30*time.Second)
	d.now.Add(int64(10 * time.Second))
	d.e.Tick() // sends a keepalive, which the client does not answer
	if err := next.e.Route([]Namespace{{TTL: 30 * time.Second, Heartbeat: 5 * time.Second}},
		nil); err != nil {
		t.Fatal(err)
	}
	s := d.takenOver(next)
	for range 600 {
		next.now.Add(int64(20 * time.Millisecond))
		next.e.Tick()
	}
	now := next.now.Load() / int64(time.Millisecond)
	if left := int64(g.Deadline) - now; left > 0 && s.core.Holds.Load() == 0 {
		t.Errorf("the hold is lost %v before the end of its stated validity",
			time.Duration(left)*time.Millisecond)
	}
}

// A lease lingers when the successor takes over, whose configuration disables linger. The lease is
// used again, and no longer wakes the table for the end of its linger.
func TestASuccessorWithoutLingerForgetsWhenALeaseStopsLingering(t *testing.T) {
	d, next := newTwoStores(t), newTwoStores(t)
	route := func(d *twoStores, linger time.Duration) {
		d.route(Namespace{}, Namespace{Prefix: "o:", Store: "other", Linger: linger})
	}
	acquire := func(d *twoStores, s *Session) protocol.Grant {
		send(s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), TTL: 30000})
		d.otherAnswers(cache.Result{Status: cache.Granted, Base: uint64(d.now.Load())})
		m := s.transport.(*sink).last(t)
		g, err := m.Grant()
		if m.ID != 7 || err != nil {
			t.Fatal(m.ID, m.Code, err)
		}
		return g
	}
	route(d, 2*time.Second)
	route(next, 0)
	for range 3 {
		g := acquire(d, d.s)
		send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 6, Key: []byte("o:k"), Fence: g.Fence})
		d.otherAnswers(cache.Result{Status: cache.Done})
		d.now.Add(int64(100 * time.Millisecond))
	}
	s := d.takenOver(next.beating)
	acquire(next, s)
	next.now.Add(int64(3 * time.Second))
	n := 0
	for ; n < 1000 && next.e.Tick() <= next.now.Load()+1; n++ {
		next.now.Add(1)
	}
	if n == 1000 {
		t.Error("each of 1000 calls of Tick asks for the next one at once")
	}
}

// A key waits at a store that the successor does not use for it. The successor leaves the queue
// there at once.
func TestASuccessorLeavesTheQueueOfAStoreThatItsKeysHaveLeft(t *testing.T) {
	for _, mode := range []protocol.Mode{protocol.Exclusive, protocol.Permit} {
		d, next := newTwoStores(t), newTwoStores(t)
		third := next.add("third")
		next.route(Namespace{}, Namespace{Prefix: "o:", Store: "third"})
		send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), Mode: mode,
			Permits: uint64(mode) / 2, Wait: protocol.WaitAlways})
		if d.otherAnswers(cache.Result{Status: cache.Queued}) == 0 {
			t.Fatal("the store was not asked")
		}
		d.passTo(next)
		if next.otherAnswers(cache.Result{Status: cache.Done}) == 0 {
			t.Fatalf("%v: the successor stays in the queue of the earlier store", mode)
		}
		if n, _ := third.main.Depth(); n != 1 {
			t.Errorf("%v: %d requests to the present store", mode, n)
		}
	}
}

// A reader waits because the lease has been on this host for as long as the namespace allows. The
// successor allows it for longer, and lets the reader in at once.
func TestASuccessorLetsInWaitersThatItsPolicyAdmits(t *testing.T) {
	d, next := newTwoStores(t), newTwoStores(t)
	d.route(Namespace{Tenure: time.Second})
	next.route(Namespace{Tenure: time.Hour})
	ask := func(owner uint64) {
		send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: owner, Owner: owner, Key: []byte("k"),
			Mode: protocol.Shared,
			TTL:  60_000, Wait: protocol.WaitAlways})
		d.answer()
	}
	ask(7)
	d.granted(7)
	d.now.Add(int64(2 * time.Second))
	d.k.buf = nil
	ask(8)
	if len(d.k.buf) > 0 {
		t.Fatal("the second reader does not wait")
	}
	d.passTo(next)
	next.answer()
	next.granted(8)
}

// A store was down when a process left its state behind, and the next process starts much later. It
// asks the store for what waiters want, before it refuses any of them. The last request of the
// earlier process had been queued, or had failed.
func TestASuccessorDoesNotRefuseWaitersForAStoreThatWasDown(t *testing.T) {
	for _, mode := range []protocol.Mode{protocol.Exclusive, protocol.Permit} {
		for _, last := range []cache.Result{{Status: cache.Queued},
			{Status: cache.Unknown, Err: upstream.ErrDown}} {
			d, next := newTwoStores(t), newTwoStores(t)
			send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), Mode: mode,
				Permits: uint64(mode) / 2, Wait: protocol.WaitAlways})
			if d.otherAnswers(last) == 0 {
				t.Fatal("the store was not asked")
			}
			d.e.StoreDown(d.other, upstream.ErrDown)
			d.now.Add(int64(time.Minute))
			d.passTo(next)
			next.e.StoreUp(next.other)
			if next.otherAnswers(cache.Result{Status: cache.Granted, Base: 5}) == 0 {
				t.Fatalf("%v, %v: the store is not asked", mode, last.Status)
			}
			next.granted(7)
		}
	}
}

// A request has failed shortly before a process left its state behind, and the next process starts
// much later. The store counts as up all the time.
func TestASuccessorDoesNotRefuseWaitersForARequestThatHadFailed(t *testing.T) {
	d, next := newTwoStores(t), newTwoStores(t)
	send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"),
		Wait: protocol.WaitAlways})
	if d.otherAnswers(cache.Result{Status: cache.Unknown, Err: upstream.ErrDown}) == 0 {
		t.Fatal("the store was not asked")
	}
	d.now.Add(int64(time.Minute))
	d.passTo(next)
	next.e.Tick()
	if next.otherAnswers(cache.Result{Status: cache.Granted, Base: 5}) == 0 {
		t.Fatal("the store is not asked")
	}
	next.granted(7)
}

// A quiet release waits for its store. The failure is reported once, also by a successor, under the
// key, owner and fence of the hold.
func TestTheFailureOfAQuietReleaseIsReportedOnce(t *testing.T) {
	for _, c := range []struct {
		status   cache.Status
		code     protocol.Code
		takeover bool
	}{
		{cache.NotHeld, protocol.NotHeld, false},
		{cache.NotHeld, protocol.NotHeld, true},
		{cache.Unknown, protocol.Unknown, false},
		{cache.Unknown, protocol.Unknown, true},
		{cache.Done, protocol.OK, true},
	} {
		d := newTwoStores(t)
		send(d.s, &protocol.Request{Op: protocol.OpAcquire, ID: 7, Key: []byte("o:k"), Owner: 3})
		d.otherAnswers(cache.Result{Status: cache.Granted, Base: 9})
		fence := d.granted(7).Fence
		send(d.s, &protocol.Request{Op: protocol.OpRelease, ID: 1, Key: []byte("o:k"), Owner: 3,
			Fence: fence, Flags: protocol.FlagQuiet})
		s := d.s
		if c.takeover {
			next := newTwoStores(t)
			s = d.takenOver(next.beating)
			d = next
		}
		k := s.transport.(*sink)
		s.Swap(nil)
		k.buf = k.buf[:0]
		if d.otherAnswers(cache.Result{Status: c.status}) != 1 {
			t.Fatal("the store was not asked")
		}
		pushes, wanted := releaseFailures(t, k.buf), 1
		if c.code == protocol.OK {
			wanted = 0
		}
		if len(pushes) != wanted || wanted == 1 && pushes[0] != (failedRelease{"o:k", 3, fence, c.code}) {
			t.Errorf("%+v: %+v", c, pushes)
		}
	}
}

type failedRelease struct {
	key          string
	owner, fence uint64
	code         protocol.Code
}

// releaseFailures returns the release-failed pushes among the frames of b.
func releaseFailures(t *testing.T, b []byte) (all []failedRelease) {
	t.Helper()
	for _, m := range messages(t, b) {
		if m.ID == 0 && m.Event == protocol.EventReleaseFailed {
			var f failedRelease
			var err error
			if f.key, f.owner, f.fence, f.code, _, err = m.ReleaseFailed(); err != nil {
				t.Fatal(err)
			}
			all = append(all, f)
		}
	}
	return all
}
