package cache

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// abandon ends what is at the earlier store and moves all keys to the present one.
func (b *rerouted) abandon() []Message {
	b.ns = b.to
	// as if the table had been read from a snapshot
	b.tab.Follow(func(string) *Namespace { return b.to })
	b.tab.Abandon(b.from.Store, b.now, &b.out)
	b.tab.Reroute(func(string) *Namespace { return b.to }, anybody, b.now, &b.out)
	return b.take()
}

// A process does not have the store that the process before it used. Whatever was under way there
// ends, its store is left without users, and no store is asked about its tokens. While an earlier
// holder may believe in a hold, the key stays closed. Then the next one gets it at the present
// store.
func TestAnAbandonedStoreHasNoUsersAndItsKeysStayClosedWhileTheyAreBelievedHeld(t *testing.T) {
	const validity = 30*second - 30*second/100 - 2*int64(time.Millisecond) // of a TTL of 30 s
	hold := func(b *rerouted, s *Session, change func(*Acquire)) uint64 {
		b.acquire(s, "k", change)
		return b.granted(b.ops[0].Kind, 5)
	}
	for name, c := range map[string]struct {
		change func(*setup)
		before func(b *rerouted, s *Session)
		lost   int           // holds
		closed int64         // for how long
		code   protocol.Code // of the only answer beside; protocol.OK for none
		mode   func(*Acquire)
	}{
		"a held lock": {nil, func(b *rerouted, s *Session) { hold(b, s, nil) }, 1, validity,
			protocol.OK, nil},
		"readers": {nil, func(b *rerouted, s *Session) {
			hold(b, s,
				shared)
			b.acquire(b.session(), "k", shared)
		}, 2, validity, protocol.OK, nil},
		"a fixed hold": {nil, func(b *rerouted, s *Session) {
			hold(b, s, func(q *Acquire) {
				q.Fixed,
					q.TTL = true, 5*second
			})
		}, 1, 5*second - 52*int64(time.Millisecond), protocol.OK,
			nil},
		"an unlock by force": {nil, func(b *rerouted, s *Session) {
			hold(b, s, nil)
			b.tab.Force("k", false, 0, b.now, &b.out)
			b.take()
		}, 0, validity, protocol.OK, nil},
		"a release without an answer": {nil, func(b *rerouted, s *Session) {
			b.release(s, "k",
				hold(b, s, nil))
		}, 0, 0, protocol.Unknown, nil},
		"a renewal without an answer": {nil, func(b *rerouted, s *Session) {
			b.tab.Renew(&Renew{Re: Request{Session: s, ID: 90}, Key: []byte("k"),
				Fence: hold(b, s, nil)}, b.now, &b.out)
			b.take()
		}, 1, validity, protocol.NotHeld, nil},
		"a release to be repeated": {nil, func(b *rerouted, s *Session) {
			b.release(s, "k", hold(b, s, nil))
			b.answer(b.op(OpRelease), Result{Status: Unknown})
		}, 0, 0, protocol.OK, nil},
		"a downgrade": {nil, func(b *rerouted, s *Session) {
			b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 90}, Key: []byte("k"),
				Fence: hold(b, s, nil)}, b.now, &b.out)
			b.take()
		}, 1, validity, protocol.OK, nil},
		"a place in the queue": {nil, func(b *rerouted, s *Session) {
			b.acquire(s, "k", waits)
			b.answer(b.op(OpJoin), Result{Status: Queued})
			b.tab.EndWaits(s, b.now, &b.out)
			b.take()
			b.answer(b.op(OpWithdraw), Result{Status: Unknown})
		}, 0, 0, protocol.OK, nil},
		"a session": {func(x *setup) { x.Session, x.SessionTTL = true, 10*time.Second },
			func(b *rerouted, s *Session) {
				b.tab.SessionUntil(b.from.Store, 1, b.now+8*second, b.now, &b.out)
				hold(b, s, nil)
			}, 1, 8 * second, protocol.OK, nil},
		"two stores": {func(x *setup) { x.Pair = true },
			func(b *rerouted, s *Session) { hold(b, s, nil) }, 1, validity, protocol.OK, nil},
		"two stores, one of which has lost it": {func(x *setup) { x.Pair = true },
			func(b *rerouted, s *Session) {
				hold(b, s, nil)
				b.tab.Hint(b.from.Store, Hint{Kind: HintGone, Key: "k"}, b.now, &b.out)
				b.take()
				b.answer(b.op(OpRenew), Result{Status: NotHeld}) // closed from here on
			}, 0, validity, protocol.OK, nil},
		"an outage": {mayDegrade, func(b *rerouted, s *Session) { b.degraded(s, waits) }, 1,
			30 * second, protocol.OK, nil},
		"a store that is down": {nil, func(b *rerouted, s *Session) {
			hold(b, s, nil)
			b.tab.StoreDown(b.from.Store, errors.New("down"), b.now, &b.out)
			b.take()
		}, 1, validity, protocol.OK, nil},
		"a lingering lease": {lingering, func(b *rerouted, s *Session) { b.habitual(s, "k") }, 0, 0,
			protocol.OK, nil},
		"a permit": {nil, func(b *rerouted, s *Session) {
			b.acquire(s, "k", permitOf(1, Forever))
			b.grantPermit(b.takeOps(OpJoin)[0], 5)
		}, 1, validity, protocol.OK, permitOf(1, Forever)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRerouted(t, c.change)
			b.to.Local, b.to.Linger = false, 0
			c.before(b, b.session())
			b.ops = nil // nobody is there to answer
			began, next := b.now, b.session()
			mode := c.mode
			if mode == nil {
				mode = waits
			}
			if c.closed > 0 {
				b.acquire(next, "k", mode) // queues behind
				b.ops = nil
			}
			ms := b.abandon()
			lost := slices.DeleteFunc(slices.Clone(ms),
				func(m Message) bool {
					return m.Kind != MsgLost ||
						m.Reason != protocol.LostSession
				})
			rest := slices.DeleteFunc(ms, func(m Message) bool {
				return m.Kind == MsgLost &&
					m.Reason == protocol.LostSession
			})
			if len(lost) != c.lost {
				t.Errorf("%d holds are lost: %+v", len(lost), lost)
			}
			if c.code == protocol.OK && len(rest) > 0 || c.code != protocol.OK &&
				(len(rest) != 1 || rest[0].Code != c.code) {
				t.Errorf("answers: %+v", rest)
			}
			if n := b.tab.Users(b.from.Store); n > 0 {
				t.Fatalf("the store has %d users", n)
			}
			b.tab.Forget(b.from.Store)
			if c.closed == 0 {
				b.acquire(next, "k", mode)
			} else {
				if b.tick(time.Duration(c.closed - 1)); len(b.ops) > 0 ||
					b.now-began != c.closed-1 {
					t.Fatalf("while the key is closed: %v", kinds(b.ops))
				}
				b.tick(1)
			}
			op := b.at(b.ops[0].Kind, b.to)
			if op.Kind != OpJoin {
				t.Fatal(op.Kind)
			}
			m := b.only(b.answer(op, Result{Status: Granted, Base: 6}), MsgGranted, protocol.OK)
			if m.Re.Session != next {
				t.Errorf("session %d has it", m.Re.Session.ID)
			}
			b.release(next, "k", m.Fence)
			b.answer(b.at(OpRelease, b.to), Result{Status: Done})
			b.empty()
			if n := b.to.Use.Holds.Load() + b.to.Use.Waiters.Load(); n != 0 {
				t.Errorf("%d are counted", n)
			}
		})
	}
}

// A key that is only closed is not released when the validity has ended, not even where a lease
// stands in two stores.
func TestAKeyThatIsOnlyClosedIsNotReleasedInTwoStores(t *testing.T) {
	b := newRerouted(t, nil)
	b.to.Store.Pair, b.to.Store.Session = true, true
	b.acquire(b.session(), "k", nil)
	b.granted(OpTry, 5)
	b.abandon()
	b.tick(time.Minute)
	if len(b.ops) > 0 {
		t.Error(kinds(b.ops))
	}
	b.empty()
}
