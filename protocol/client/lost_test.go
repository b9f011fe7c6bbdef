package client

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A grant that arrives after the loss of the owner's hold is given back, because it is a new hold
// and not a re-entry.
func TestAGrantThatCrossesALossIsGivenBack(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	got := make(chan error, 2)
	go func() {
		_, err := c.Lock(t.Context(), AcquireArgs{Key: "k", Owner: 1})
		got <- err
	}()
	one := p.next().ID
	go func() {
		_, err := c.LockMany(t.Context(), []string{"j", "k"}, AcquireArgs{Owner: 1})
		got <- err
	}()
	many := p.next().ID
	b := protocol.AppendLost(nil, "k", 1, 5, protocol.LostSession)
	b = protocol.AppendGrant(b, one, grantUntil(time.Hour, 6))
	p.send(protocol.AppendGrants(b, many, []protocol.Grant{*grantUntil(time.Hour, 7),
		*grantUntil(time.Hour, 6)}))
	var back []uint64
	for range 3 {
		q := p.next()
		if q.Op != protocol.OpRelease {
			t.Fatalf("sent %+v", q)
		}
		back = append(back, q.Fence)
	}
	slices.Sort(back)
	if !slices.Equal(back, []uint64{6, 6, 7}) {
		t.Errorf("gave back %v", back)
	}
	for range 2 {
		if _, ok := errors.AsType[*LostError](result(t, got)); !ok {
			t.Error("granted inside a lost hold")
		}
	}
	if err := h.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
		t.Error(err)
	}
}

// A release ends the hold first, and removes it from the table afterwards under another lock. An
// acquire of the same owner in between must not treat the hold as lost.
func TestAReleaseIsNoLoss(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	h.finish(ErrReleased) // the first half of a release
	if err := c.mayAcquire(t.Context(), 1, "k"); err != nil {
		t.Errorf("an acquire beside a release: %v", err)
	}
}

// runOut ends the stated validity of holds that no keepalive has extended.
func runOut(hs ...*Hold) {
	for _, h := range hs {
		h.mu.Lock()
		h.deadline = now() - 1
		h.mu.Unlock()
	}
}

// ended moves holds past the ends that their grants stated.
func ended(hs ...*Hold) {
	for _, h := range hs {
		h.mu.Lock()
		h.end = now() - 1
		h.mu.Unlock()
	}
}

// gaveBack checks that the client releases a hold.
func (p *peer) gaveBack(key string, fence uint64) {
	p.t.Helper()
	if q := p.next(); q.Op != protocol.OpRelease || string(q.Key) != key || q.Owner != 1 ||
		q.Fence != fence {
		p.t.Errorf("sent %+v; want the release of %q with the fence %d", q, key, fence)
	}
}

// A hold whose validity ran out is lost for good once a caller has asked about it. Its release
// reports that, and tells the daemon, which may still have the hold.
func TestAHoldThatRanOutIsLostForGood(t *testing.T) {
	for name, ask := range map[string]func(t *testing.T, c *Client, h *Hold) error{
		"Valid": func(_ *testing.T, _ *Client, h *Hold) error {
			if h.Valid() {
				return nil
			}
			return h.Err()
		},
		"Lock": func(t *testing.T, c *Client, _ *Hold) error {
			_, err := c.Lock(t.Context(), AcquireArgs{Key: "k", Owner: 1})
			return err
		},
		"LockMany": func(t *testing.T, c *Client, _ *Hold) error {
			_, err := c.LockMany(t.Context(), []string{"j", "k"}, AcquireArgs{Owner: 1})
			return err
		},
		"Watch":     func(t *testing.T, _ *Client, h *Hold) error { return h.Watch(t.Context()) },
		"Renew":     func(t *testing.T, _ *Client, h *Hold) error { return h.Renew(t.Context(), 0) },
		"Downgrade": func(t *testing.T, _ *Client, h *Hold) error { return h.Downgrade(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			c, p := connect(t, Options{}, 0)
			h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
			runOut(h)
			if err := ask(t, c, h); !errors.Is(err, ErrExpired) || !errors.Is(err, ErrNotHeld) {
				t.Fatalf("asked when its validity had run out: %v", err)
			}
			p.keepalive(time.Hour)
			p.sync(c)
			if h.Valid() {
				t.Error("a keepalive has revived it")
			}
			result(t, h.Gone())
			if err := h.Release(t.Context()); !errors.Is(err, ErrExpired) {
				t.Errorf("its release: %v", err)
			}
			p.gaveBack("k", 5)
			if err := h.Release(t.Context()); !errors.Is(err, ErrExpired) {
				t.Errorf("released twice: %v", err)
			}
			p.sync(c) // the second release sends nothing
			if h := locked(t, c, p, "k", grantUntil(time.Hour, 6)); !h.Valid() {
				t.Error("acquired again after the release, and not valid")
			}
		})
	}
}

// Nothing has asked about the hold before its release.
func TestTheReleaseOfAHoldThatRanOutReportsTheLoss(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	runOut(h)
	if err := h.Release(t.Context()); !errors.Is(err, ErrExpired) {
		t.Errorf("a watched hold: %v", err)
	}
	p.gaveBack("k", 5)

	g := grantUntil(time.Hour, 6)
	g.End = g.Deadline
	h = locked(t, c, p, "k", g)
	ended(h)
	if err := h.Release(t.Context()); !errors.Is(err, &LostError{protocol.LostTooLong}) {
		t.Errorf("the longest hold: %v", err)
	}
	p.gaveBack("k", 6)

	holds := make(chan *Hold, 1)
	go func() {
		h, err := c.Lock(t.Context(), AcquireArgs{Key: "k", Owner: 1, Permits: 3})
		if err != nil {
			t.Error(err)
		}
		holds <- h
	}()
	p.send(protocol.AppendGrant(nil, p.next().ID, grantUntil(time.Hour, 7)))
	h = result(t, holds)
	runOut(h)
	if err := h.Release(t.Context()); !errors.Is(err, ErrExpired) {
		t.Errorf("a permit: %v", err)
	}
	p.gaveBack("k", 7)

	i, j := locked(t, c, p, "i", grantUntil(time.Hour, 8)),
		locked(t, c, p, "j", grantUntil(time.Hour, 9))
	runOut(i)
	errs := make(chan error, 1)
	go func() { errs <- Holds{i, j}.Release(t.Context()) }()
	p.gaveBack("i", 8)
	q := p.next()
	if q.Op != protocol.OpReleaseMany || len(q.Keys) != 1 || q.Fences[0] != 9 {
		t.Errorf("sent %+v", q)
	}
	p.send(protocol.AppendCodes(nil, q.ID, []protocol.Code{protocol.OK}))
	if err := result(t, errs); !errors.Is(err, ErrExpired) {
		t.Errorf("one of two holds: %v", err)
	}
}

// The kind of a hold, fixed or not, decides the reason that its end is given. A re-entry does not
// change the kind.
func TestTheEndOfAHold(t *testing.T) {
	for fixed, want := range map[bool]protocol.Reason{true: protocol.LostFixed,
		false: protocol.LostTooLong} {
		c, p := connect(t, Options{}, 0)
		got := make(chan Holds, 1)
		g := grantUntil(time.Hour, 5)
		g.End = g.Deadline
		var hs Holds
		for _, fixed := range []bool{fixed, !fixed} {
			go func() {
				h, err := c.Lock(t.Context(), AcquireArgs{Key: "k", Owner: 1, Fixed: fixed})
				if err != nil {
					t.Error(err)
				}
				got <- Holds{h}
			}()
			p.send(protocol.AppendGrant(nil, p.next().ID, g))
			hs = append(hs, result(t, got)...)
		}
		go func() {
			many, err := c.LockMany(t.Context(), []string{"k", "j"}, AcquireArgs{Owner: 1, Fixed: !fixed})
			if err != nil {
				t.Error(err)
			}
			got <- many
		}()
		p.send(protocol.AppendGrants(nil, p.next().ID, []protocol.Grant{*g, *g}))
		many := result(t, got)
		hs, many = append(hs, many[0]), many[1:]
		ended(append(hs, many...)...)
		for _, h := range hs {
			if err := h.Watch(t.Context()); !errors.Is(err, &LostError{want}) {
				t.Errorf("acquired as fixed: %v: %v", fixed, err)
			}
		}
		if err := many[0].Watch(t.Context()); errors.Is(err, &LostError{want}) {
			t.Errorf("acquired as fixed: %v: %v", !fixed, err)
		}
	}
}

// All acquires of a key by an owner are one hold. A statement about one of them applies to all, and
// a loss ends all.
func TestReentriesAreOneHold(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	outer := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	p.keepalive(2 * time.Hour)
	p.sync(c)
	inner := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	if r := inner.Remaining(); !about(r, 2*time.Hour) {
		t.Errorf("the keepalive came before the re-entry, but after the first grant: %v", r)
	}
	last := locked(t, c, p, "k", grantUntil(3*time.Hour, 5))
	for _, h := range []*Hold{outer, inner, last} {
		if r := h.Remaining(); !about(r, 3*time.Hour) {
			t.Errorf("the last grant stated three hours: %v", r)
		}
	}
	outer.mu.Lock()
	outer.end = now() - 1 // ends the hold whatever the keepalive has stated
	outer.mu.Unlock()
	if outer.Valid() || inner.Valid() || last.Valid() {
		t.Error("one of them is lost, but not all")
	}
	for _, h := range []*Hold{last, inner, outer} {
		if err := h.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Error(err)
		}
		p.gaveBack("k", 5)
	}
}

// A renewal in flight does not revive a hold that has run out meanwhile.
func TestARenewalDoesNotReviveAHold(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	errs := make(chan error, 1)
	go func() { errs <- h.Renew(t.Context(), 0) }()
	q := p.next()
	runOut(h)
	if h.Valid() {
		t.Error("valid when its validity has run out")
	}
	p.send(protocol.AppendGrant(nil, q.ID, grantUntil(time.Hour, 5)))
	if err := result(t, errs); !errors.Is(err, ErrExpired) {
		t.Errorf("the renewal: %v", err)
	}
	if h.Valid() {
		t.Error("revived")
	}
}
