package client

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// A quiet release that fails is reported once, with the fence of the hold that was released. It
// does not end the owner's next hold.
func TestAQuietReleaseThatFailsIsALoss(t *testing.T) {
	lost := make(chan Lost, 8)
	c, p := connect(t, Options{OnLost: func(l Lost) { lost <- l }}, 0)
	for _, x := range []struct {
		code   protocol.Code
		reason protocol.Reason
	}{{protocol.NotHeld, protocol.LostGone}, {protocol.Unknown, protocol.LostUnconfirmed}} {
		h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
		if err := h.ReleaseQuiet(); err != nil {
			t.Fatal(err)
		}
		if q := p.next(); q.Op != protocol.OpRelease || q.Flags != protocol.FlagQuiet || q.Fence != 5 {
			t.Fatalf("sent %+v", q)
		}
		next := locked(t, c, p, "k", grantUntil(time.Hour, 6))
		b := protocol.AppendLost(nil, "k", 1, 5, protocol.LostForced) // it has crossed the release
		p.send(protocol.AppendReleaseFailed(b, "k", 1, 5, x.code, ""))
		if l := <-lost; l != (Lost{"k", 1, 5, x.reason}) {
			t.Errorf("%+v", l)
		}
		if err := next.Check(); err != nil {
			t.Errorf("the next hold: %v", err)
		}
		if err := next.ReleaseQuiet(); err != nil {
			t.Error(err)
		}
		p.next()
	}
	if len(lost) > 0 {
		t.Errorf("%+v", <-lost)
	}
}

// A release of one of several counts is not quiet: the push lost tells of the loss of the others.
func TestOnlyTheLastCountIsReleasedQuietly(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	first := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	second := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	for n, h := range []*Hold{second, first} {
		if err := h.ReleaseQuiet(); err != nil {
			t.Fatal(err)
		}
		if q, want := p.next(), uint64(n*protocol.FlagQuiet); q.Op != protocol.OpRelease || q.Flags != want {
			t.Errorf("sent %+v; want the flags %d", q, want)
		}
	}
}

// A quiet release of a hold that has run out fails at once. The daemon is told, but not quietly: it
// would report the loss once more.
func TestALostHoldIsNotReleasedQuietly(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	runOut(h)
	if err := h.ReleaseQuiet(); !errors.Is(err, ErrExpired) {
		t.Error(err)
	}
	if q := p.next(); q.Op != protocol.OpRelease || q.Flags != 0 {
		t.Errorf("sent %+v", q)
	}
	if err := h.Check(); !errors.Is(err, ErrNotHeld) {
		t.Error(err)
	}
}

// The argument Quiet makes Release quiet.
func TestAQuietLock(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := c.newHold("k", &AcquireArgs{Owner: 1, Quiet: true})
	c.granted(h, grantUntil(time.Hour, 5))
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if q := p.next(); q.Flags != protocol.FlagQuiet {
		t.Errorf("sent %+v", q)
	}
}
