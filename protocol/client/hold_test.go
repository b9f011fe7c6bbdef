package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// locked returns a hold with the grant g.
func locked(t *testing.T, c *Client, p *peer, key string, g *protocol.Grant) *Hold {
	t.Helper()
	holds := make(chan *Hold, 1)
	go func() {
		h, err := c.Lock(t.Context(), AcquireArgs{Key: key, Owner: 1, Wait: Forever})
		if err != nil {
			t.Error(err)
		}
		holds <- h
	}()
	p.send(protocol.AppendGrant(nil, p.next().ID, g))
	return result(t, holds)
}

// sync returns when c has handled everything that the peer has sent.
func (p *peer) sync(c *Client) {
	p.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := c.Ping(context.Background())
		done <- err
	}()
	p.send(protocol.AppendPong(nil, p.next().ID, 1))
	if err := result(p.t, done); err != nil {
		p.t.Fatal(err)
	}
}

// keepalive sends a keepalive that states a validity of d, and reads the client's answer.
func (p *peer) keepalive(d time.Duration) {
	p.t.Helper()
	p.send(protocol.AppendKeepalive(nil, uint64((now()+int64(d))/1e6), uint64(d.Milliseconds())))
	if q := p.next(); q.Op != protocol.OpPing {
		p.t.Errorf("the answer to a keepalive: %+v", q)
	}
}

// about reports whether got is want, or shorter by less than a slow machine may take.
func about(got, want time.Duration) bool { return got <= want && got > want-time.Minute }

func TestHoldIsValidAsLongAsStated(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	p.keepalive(9 * time.Hour) // before the grant, which it does not cover
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	if r := h.Remaining(); !about(r, time.Hour) || !h.Valid() || h.Fence() != 5 {
		t.Fatalf("granted for an hour: %v", r)
	}
	p.keepalive(2 * time.Hour)
	p.sync(c)
	if r := h.Remaining(); !about(r, 2*time.Hour) {
		t.Errorf("a keepalive until two hours from now: %v", r)
	}
	p.keepalive(time.Minute) // shorter than the stated validity, which it does not reduce
	p.sync(c)
	if r := h.Remaining(); !about(r, 2*time.Hour) {
		t.Errorf("a shorter keepalive: %v", r)
	}
	j := locked(t, c, p, "j", grantUntil(time.Second, 6))
	p.keepalive(30 * time.Minute)
	p.sync(c)
	if r := j.Remaining(); !about(r, 30*time.Minute) {
		t.Errorf("granted after the longer keepalive: %v", r)
	}
	if r := h.Remaining(); !about(r, 2*time.Hour) {
		t.Errorf("and the one before it: %v", r)
	}
}

func TestHoldEndsAtItsOwnEnd(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	g := grantUntil(time.Hour, 5)
	g.End = uint64((now() + int64(90*time.Minute)) / 1e6)
	h := locked(t, c, p, "k", g)
	p.keepalive(5 * time.Hour)
	p.sync(c)
	if r := h.Remaining(); !about(r, 90*time.Minute) {
		t.Errorf("a fixed hold of 90 minutes: %v", r)
	}
}

func TestSilenceIsNotValidity(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Second, 5))
	if err := h.Watch(t.Context()); !errors.Is(err, ErrExpired) {
		t.Fatalf("nothing said: %v", err)
	}
	if h.Valid() {
		t.Error("valid after its end")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h = locked(t, c, p, "j", grantUntil(time.Hour, 6))
	if err := h.Watch(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLostEndsTheHoldItMeans(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	again := locked(t, c, p, "k", grantUntil(time.Hour, 5)) // re-entry: the same fence
	later := locked(t, c, p, "k", grantUntil(time.Hour, 6))
	other := locked(t, c, p, "j", grantUntil(time.Hour, 5))
	p.send(protocol.AppendLost(nil, "k", 1, 4, protocol.LostGone)) // an older one
	p.send(protocol.AppendLost(nil, "k", 2, 5, protocol.LostGone)) // another owner's
	p.send(protocol.AppendLost(nil, "k", 1, 5, protocol.LostForced))
	for _, h := range []*Hold{h, again} {
		err := h.Watch(t.Context())
		if e, ok := errors.AsType[*LostError](err); !ok || e.Reason != protocol.LostForced ||
			!errors.Is(err, ErrNotHeld) {
			t.Errorf("lost: %v", err)
		}
		if h.Valid() {
			t.Error("valid after lost")
		}
		if err := h.Release(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("release of a lost hold: %v", err)
		}
	}
	if !later.Valid() || !other.Valid() {
		t.Error("another hold went with it")
	}
}

func TestLostRightBehindTheGrantIsNotMissed(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	holds := make(chan *Hold, 1)
	go func() {
		h, err := c.Lock(t.Context(), AcquireArgs{Key: "k", Owner: 1})
		if err != nil {
			t.Error(err)
		}
		holds <- h
	}()
	b := protocol.AppendGrant(nil, p.next().ID, grantUntil(time.Hour, 5))
	p.send(protocol.AppendLost(b, "k", 1, 5, protocol.LostExpired))
	result(t, result(t, holds).Gone())
}

func TestHoldEndsWithTheConnection(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	j := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	p.conn.Close()
	for _, h := range []*Hold{h, j} {
		result(t, h.Gone())
		if err := h.Err(); !errors.Is(err, ErrClosed) || h.Valid() {
			t.Error(err)
		}
	}
}

func TestReleasedHoldIsOverAtOnce(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Hour, 5))
	errs := make(chan error, 1)
	go func() { errs <- h.Release(t.Context()) }()
	q := p.next()
	if q.Op != protocol.OpRelease || string(q.Key) != "k" || q.Owner != 1 || q.Fence != 5 {
		t.Fatalf("%+v", q)
	}
	if h.Valid() {
		t.Error("valid while it is being released")
	}
	p.send(protocol.AppendReleased(nil, q.ID, 0))
	if err := result(t, errs); err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context()); !errors.Is(err, ErrReleased) {
		t.Errorf("twice: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.holds) != 0 {
		t.Error("still tracked")
	}
}

func TestRenewalOfAHold(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	g := grantUntil(time.Hour, 5)
	g.End = g.Deadline
	h := locked(t, c, p, "k", g)
	errs := make(chan error, 1)
	renew := func() *protocol.Request {
		go func() { errs <- h.Renew(t.Context(), 3*time.Minute) }()
		q := p.next()
		if q.Op != protocol.OpRenew || q.Fence != 5 || q.TTL != 180_000 {
			t.Errorf("%+v", q)
		}
		return q
	}
	g = grantUntil(2*time.Hour, 5)
	g.End = g.Deadline
	p.send(protocol.AppendGrant(nil, renew().ID, g))
	if err := result(t, errs); err != nil {
		t.Fatal(err)
	}
	if r := h.Remaining(); !about(r, 2*time.Hour) {
		t.Errorf("renewed for two hours: %v", r)
	}
	p.send(protocol.AppendError(nil, renew().ID, protocol.Unavailable, "", 0))
	if err := result(t, errs); !errors.Is(err, ErrUnavailable) {
		t.Fatal(err)
	}
	if r := h.Remaining(); !about(r, 2*time.Hour) {
		t.Errorf("not confirmed: %v", r)
	}
	p.send(protocol.AppendError(nil, renew().ID, protocol.NotHeld, "", 0))
	if err := result(t, errs); !errors.Is(err, ErrNotHeld) || h.Valid() ||
		!errors.Is(h.Err(), ErrNotHeld) {
		t.Errorf("not held: %v", err)
	}
}

func TestDowngradeOfAHold(t *testing.T) {
	c, p := connect(t, Options{}, 0)
	h := locked(t, c, p, "k", grantUntil(time.Minute, 5))
	errs := make(chan error, 1)
	go func() { errs <- h.Downgrade(t.Context()) }()
	q := p.next()
	if q.Op != protocol.OpDowngrade || q.Fence != 5 || q.Owner != 1 {
		t.Errorf("%+v", q)
	}
	p.send(protocol.AppendGrant(nil, q.ID, grantUntil(2*time.Hour, 5)))
	if err := result(t, errs); err != nil {
		t.Fatal(err)
	}
	if r := h.Remaining(); !about(r, 2*time.Hour) {
		t.Errorf("%v", r)
	}
}

func TestNothingIsValidWhenTheDaemonMayGiveItAway(t *testing.T) {
	var c *Client
	var h *Hold
	ended := make(chan bool, 1)
	// The daemon keeps the key until the client closes its end of the socket. A process that sees that
	// end must not see a valid hold.
	c, p := connect(t, Options{OnEnd: func(error) { ended <- h.Valid() || c.conn.SetReadDeadline(time.Time{}) != nil }}, 0)
	h = locked(t, c, p, "k", grantUntil(time.Hour, 5))
	p.send(protocol.AppendFatal(nil, protocol.TooSlow, ""))
	if result(t, ended) {
		t.Error("the hold is valid, or the connection closed already")
	}
}

func TestHoldWithAnotherClock(t *testing.T) {
	for _, skew := range []int64{-now() / 2e6, 100_000_000} {
		c, p := connect(t, Options{}, skew)
		g := grantUntil(time.Hour, 5)
		g.Deadline = uint64(int64(g.Deadline) + skew)
		h := locked(t, c, p, "k", g)
		if r := h.Remaining(); !about(r, time.Hour) {
			t.Errorf("a daemon %d ms off: %v", skew, r)
		}
	}
}

func TestClockMap(t *testing.T) {
	const ms = int64(time.Millisecond)
	for _, tc := range []struct {
		name   string
		t0     int64
		now    uint64
		t1     int64
		shared bool
	}{
		{"the same clock", 1000*ms + 7, 1000, 1000*ms + 9, true},
		{"read at the end", 1000*ms + 7, 1003, 1003 * ms, true},
		{"ahead", 1000*ms + 7, 1004, 1003 * ms, false},
		{"behind", 1000*ms + 7, 998, 1003 * ms, false},
		{"just short enough an exchange", 1000 * ms, 1100, 1100 * ms, true},
		{"too long an exchange to tell", 1000 * ms, 1100, 1101 * ms, false},
	} {
		m := mapClock(tc.t0, tc.now, tc.t1)
		if shared := m == (clockMap{}); shared != (tc.shared && sharedClock) {
			t.Errorf("%s: shared %v", tc.name, shared)
		}
		// Whenever the daemon read its clock, the mapping never makes a deadline later.
		if !tc.shared && m.local(tc.now) > tc.t0 {
			t.Errorf("%s: %d is later than %d", tc.name, m.local(tc.now), tc.t0)
		}
	}
	if m := (clockMap{5}); m.local(1<<63-1) < 0 {
		t.Error("a time far away wraps")
	}
}
