package client

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A grant that crosses the loss of the owner's hold is given back: it is a new hold, not a re-entry.
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
	p.send(protocol.AppendGrants(b, many, []protocol.Grant{*grantUntil(time.Hour, 7), *grantUntil(time.Hour, 6)}))
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

// A release ends the hold first, and removes it from the table afterwards under another lock. An acquire of
// the same owner in between must not treat the hold as lost.
func TestAReleaseIsNoLoss(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	h.finish(ErrReleased) // the first half of a release
	if err := c.mayAcquire(t.Context(), 1, "k"); err != nil {
		t.Errorf("an acquire beside a release: %v", err)
	}
}
