package embedded_test

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// keep renews a lease with a TTL that is longer than what counts for its deadline.
func (s *store) keep(op upstream.Op, ttl time.Duration) {
	s.Helper()
	op.Kind, op.TTL, op.Stated = cache.OpRenew, ttl, 10*time.Second
	var res cache.Result
	if s.ApplyInline(&op, &res) {
		s.Fatal("it is kept without I/O")
	}
	results := make([]cache.Result, 1)
	if err := s.Apply(s.Context(), []upstream.Op{op}, results); err != nil {
		s.Fatal(err)
	}
	s.want(results[0], cache.Done)
	if !s.ApplyInline(&op, &res) {
		s.Error("it is written twice")
	}
}

func (s *store) apply(op upstream.Op) cache.Result {
	s.Helper()
	res := make([]cache.Result, 1)
	_ = s.Apply(s.Context(), []upstream.Op{op}, res)
	synctest.Wait()
	return res[0]
}

// A kept lease closes its key after a restart, until its end and no longer. Other keys are free at
// once after a close, because nothing but kept leases was held.
func TestAKeptLeaseOutlastsTheStore(t *testing.T) {
	for name, tc := range map[string]struct {
		between func(m *machine)
		left    time.Duration // of a minute, after a restart a second later
	}{
		"the same boot": {func(*machine) {}, 59 * time.Second},
		"another boot":  {func(m *machine) { m.id = "boot two"; m.boot.Store(1) }, 59 * time.Second},
		"another boot, and the wall clock is set back": {func(m *machine) {
			m.id = "boot two"
			m.boot.Store(1)
			m.wall.Add(-int64(24 * time.Hour))
		}, time.Minute},
		"another boot, and the wall clock is set forward": {func(m *machine) {
			m.id = "boot two"
			m.wall.Add(int64(24 * time.Hour))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			onMachine(t, func(t *testing.T, m *machine) {
				s := m.start()
				token, _ := s.take("k")
				s.keep(upstream.Op{Key: "k", Token: token}, 61*time.Second) // less 1 % and 2 ms
				s.close()
				m.pass(time.Second)
				tc.between(m)
				for range 2 { // a second restart changes nothing
					s = m.start()
					s.take("other")
					r := s.do(cache.OpTry, "k", 77)
					if tc.left == 0 {
						s.want(r, cache.Granted)
						return
					}
					s.want(r, cache.Busy)
					if got := time.Duration(r.Left); got < tc.left || got > tc.left+time.Second {
						t.Errorf("%v are left, not %v", got, tc.left)
					}
					p := s.do(cache.OpPeek, "k", 0)
					s.want(p, cache.Busy)
					s.want(s.do(cache.OpJoin, "k", 78), cache.Queued)
					s.want(s.do(cache.OpRelease, "other", s.last), cache.Done)
					s.close()
				}
				s = m.start()
				m.pass(tc.left + time.Second)
				s.want(s.do(cache.OpTry, "k", 79), cache.Granted)
			})
		})
	}
}

// Nothing is left of a kept lease that is released.
func TestAKeptLeaseIsReleased(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		token, _ := s.take("k")
		s.keep(upstream.Op{Key: "k", Token: token}, time.Minute)
		s.want(s.do(cache.OpRelease, "k", token), cache.Done)
		synctest.Wait()
		s.close()
		m.start().take("k")
	})
}

// A shared lease and a permit exclude after a restart what they excluded before.
func TestKeptReadersAndPermits(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		share := upstream.Op{Kind: cache.OpTry, Key: "k", Token: 1, Mode: cache.Shared, TTL: time.Minute}
		permit := upstream.Op{Kind: cache.OpTry, Key: "s", Token: 2, Mode: cache.Permit, Limit: 2,
			TTL: time.Minute}
		for _, op := range []upstream.Op{share, permit} {
			s.want(s.apply(op), cache.Granted)
			s.keep(op, time.Minute)
		}
		s.close()
		s = m.start()
		share.Token, permit.Token = 11, 12
		s.want(s.do(cache.OpTry, "k", 10), cache.Busy)
		s.want(s.apply(share), cache.Granted)
		s.want(s.apply(permit), cache.Granted)
		permit.Token = 13
		s.want(s.apply(permit), cache.Busy)
		m.pass(time.Minute)
		s.close()
		s = m.start()
		m.pass(10 * time.Second) // the leases of this time were not kept
		s.want(s.do(cache.OpTry, "k", 14), cache.Granted)
	})
}

// A client may rely on a lease until the deadline of the session, even if its keep ends earlier.
func TestAKeptLeaseLastsAsLongAsWasStated(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		token, r := s.take("k")
		s.keep(upstream.Op{Key: "k", Token: token}, 11*time.Second)
		m.pass(8 * time.Second)
		s.want(s.do(cache.OpRenew, "k", token), cache.Done) // the session is extended
		r = s.do(cache.OpPeek, "k", 0)
		until := m.boot.Load() + r.Left
		s.close()
		s = m.start()
		m.boot.Store(until - 1)
		s.want(s.do(cache.OpTry, "k", 9), cache.Busy)
		m.boot.Store(until)
		s.want(s.do(cache.OpTry, "k", 9), cache.Granted)
	})
}

// While the file is written, time passes.
func TestALeaseIsKeptWhileTimePasses(t *testing.T) {
	s, err := embedded.Open(embedded.Options{Path: filepath.Join(t.TempDir(), "state"), Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []upstream.Op{
		{Kind: cache.OpTry, Key: "k", Token: 1, TTL: time.Minute},
		{Kind: cache.OpRenew, Key: "k", Token: 1, TTL: time.Hour, Stated: time.Minute},
	} {
		res := make([]cache.Result, 1)
		if err := s.Apply(t.Context(), []upstream.Op{op}, res); err != nil {
			t.Errorf("%v: %v", op.Kind, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// A daemon that stood still for longer than its session lasts does not know its leases any more. A
// kept lease closes its key all the same, here and after a restart.
func TestAKeptLeaseOutlastsTheSession(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		token, _ := s.take("k")
		s.keep(upstream.Op{Key: "k", Token: token}, 10*time.Minute)
		permit := upstream.Op{Kind: cache.OpTry, Key: "s", Token: 2, Mode: cache.Permit, Limit: 1,
			TTL: time.Minute}
		s.want(s.apply(permit), cache.Granted)
		s.keep(permit, 10*time.Minute)
		m.boot.Add(int64(5 * time.Minute)) // no renewal of the session was possible meanwhile
		other, _ := s.take("other")        // makes a new session
		s.want(s.do(cache.OpRelease, "other", other), cache.Done)
		for range 2 {
			s.want(s.do(cache.OpTry, "k", 77), cache.Busy)
			permit.Token++
			s.want(s.apply(permit), cache.Busy)
			s.close()
			s = m.start()
		}
		m.boot.Add(int64(6 * time.Minute))
		s.want(s.do(cache.OpTry, "k", 78), cache.Granted)
		s.want(s.apply(permit), cache.Granted)
	})
}
