package both_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// Leases are released while they are renewed, as in a daemon with two lanes.
func TestReleasesBesideRenewalsDoNotMoveTheSessionsDeadline(t *testing.T) {
	t.Parallel()
	e := openEmbedded(t)
	s := pair(t, open(t, testserver.StartRedis(t), "lock:"), e)
	defer s.Close()
	h := &host{Store: s}
	wrong := 0
	for token := uint64(1); token <= 500; token++ {
		op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: token, TTL: time.Minute}
		if r := h.do(t, op); r.Status != cache.Granted {
			t.Fatalf("%+v", r)
		}
		renewal, release := op, op
		renewal.Kind, release.Kind = cache.OpRenew, cache.OpRelease
		var both sync.WaitGroup
		both.Go(func() {
			if r := h.do(t, renewal); r.Session > clock()+int64(11*time.Second) {
				wrong++
			}
		})
		h.do(t, release)
		both.Wait()
	}
	if wrong > 0 {
		t.Errorf("%d of 500 renewals beside a release say that the session never ends", wrong)
	}
}

// unresponsive is a store whose releases are not answered.
type unresponsive struct{ upstream.Store }

func (unresponsive) Capabilities() (none upstream.Capabilities) { return none }

func (d unresponsive) Apply(ctx context.Context, ops []upstream.Op,
	results []upstream.Result) error {
	if ops[0].Kind.Ends() {
		return errors.New("no answer")
	}
	return d.Store.Apply(ctx, ops, results)
}

// One of two stores does not answer a release. The result states whether the remaining lease ends
// by itself.
func TestAReleaseSaysWhetherWhatIsLeftEndsWithItsTTL(t *testing.T) {
	srv := testserver.StartRedis(t)
	for _, dead := range []string{"redis", "embedded", "both"} {
		e := openEmbedded(t)
		old, new := open(t, srv, dead+":"), upstream.Store(e)
		if dead != "embedded" {
			old = unresponsive{old}
		}
		if dead != "redis" {
			new = unresponsive{new}
		}
		s := pair(t, old, new)
		h := &host{Store: s}
		op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: 1, TTL: time.Minute}
		if r := h.do(t, op); r.Status != cache.Granted {
			t.Fatalf("%+v", r)
		}
		op.Kind = cache.OpRelease
		for range 2 {
			r := h.do(t, op)
			if r.Status != cache.Unknown || r.Expires != (dead == "redis") {
				t.Errorf("without an answer of %s: %+v", dead, r)
			}
		}
		s.Close()
	}
}

// losing is an unresponsive store with session news of its own.
type losing struct {
	unresponsive
	sessions chan upstream.Session
}

func (l losing) Sessions() <-chan upstream.Session { return l.sessions }

// The new store has lost its session and is down for good. What it has of a lease ended with the
// session, so the lease can be released.
func TestALeaseEndsAtAStoreThatHasLostItsSession(t *testing.T) {
	t.Parallel()
	var stores [2]upstream.Store
	for i := range stores {
		stores[i] = openEmbedded(t)
	}
	news := make(chan upstream.Session)
	s := pair(t, stores[0], losing{unresponsive{stores[1]}, news})
	defer s.Close()
	h := &host{Store: s}
	op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: 1, TTL: time.Minute}
	if r := h.do(t, op); r.Status != cache.Granted {
		t.Fatalf("%+v", r)
	}
	op.Kind = cache.OpRelease
	if r := h.do(t, op); r.Status != cache.Unknown || !r.Partly {
		t.Errorf("while the session lasts: %+v", r)
	}
	news <- upstream.Session{No: 1, Lost: true}
	for n := range s.Sessions() {
		if n.Lost {
			break
		}
	}
	if r := h.do(t, op); r.Status != cache.NotHeld {
		t.Errorf("when the session is lost: %+v", r)
	}
}

// unreachable is a store that answers nothing once it is cut.
type unreachable struct {
	upstream.Store
	cut *bool
}

func (u unreachable) Apply(ctx context.Context, ops []upstream.Op,
	results []upstream.Result) error {
	if *u.cut {
		return errors.New("no answer")
	}
	return u.Store.Apply(ctx, ops, results)
}

// One of the two stores has lost the lease and the other one does not answer. Another host may get
// the lock from the first one alone, so the holder must not have to wait for the second one.
func TestALeaseIsLostThoughTheOtherStoreDoesNotAnswer(t *testing.T) {
	for _, kind := range []cache.OpKind{cache.OpRenew, cache.OpDowngrade} {
		for dead := range 2 {
			var stores [2]upstream.Store
			for i := range stores {
				stores[i] = openEmbedded(t)
			}
			cut, lost := false, stores[1-dead]
			stores[dead] = unreachable{stores[dead], &cut}
			s := pair(t, stores[0], stores[1])
			h := &host{Store: s}
			op := upstream.Op{Kind: cache.OpTry, Key: "k", Token: 1, TTL: time.Minute}
			if r := h.do(t, op); r.Status != cache.Granted {
				t.Fatalf("%+v", r)
			}
			cut = true
			(&host{Store: lost}).do(t, upstream.Op{Kind: cache.OpRelease, Key: "k", Token: 1})
			op.Kind, op.Until = kind, cache.Forever
			if r := h.do(t, op); r.Status != cache.NotHeld {
				t.Errorf("%v without an answer of store %d: %+v", kind, dead, r)
			}
			cut = false
			s.Close()
		}
	}
}
