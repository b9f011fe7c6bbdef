package storetest

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// Clock runs the tests of a store whose server uses a wall clock that jumps. jump sets the clock
// ahead of the right time by d, or back if d is negative, and returns when the server has noticed.
func Clock(t *testing.T, newHost NewHost, opts Options, jump func(d time.Duration)) {
	e := &env{newHost: newHost, opts: opts}
	for _, c := range clockTests(jump) {
		t.Run(c.name, func(t *testing.T) {
			defer jump(0)
			c.run(e.world(t))
		})
	}
}

// clockTests jump by less than a day. Stores keep the last bases for a day, so that fences rise
// when the clock is set back.
func clockTests(jump func(time.Duration)) []test {
	jumps := []time.Duration{time.Hour, -time.Hour, 20 * time.Hour, 0, -2 * time.Hour, 0}
	return []test{
		{"over jumps nobody is let in beside a lease that stands, and fences rise", func(w *world) {
			hs := w.hosts(2)
			var last uint64
			grow := func(base uint64) {
				w.Helper()
				if base <= last {
					w.Errorf("base %d after %d", base, last)
				}
				last = base
			}
			now := time.Duration(0)
			for _, d := range jumps {
				for _, mode := range []cache.Mode{cache.Exclusive, cache.Shared} {
					token, base := hs[0].take("k", mode)
					grow(base)
					jump(d)
					renew := cache.Op{Kind: cache.OpRenew, Mode: mode, Key: "k", Token: token, TTL: long}
					release := cache.Op{Kind: cache.OpRelease, Mode: mode, Key: "k", Token: token}
					other := hs[1].token()
					switch r := hs[1].try("k", other); r.Status {
					case cache.Busy:
						w.want(hs[0].applySurely(renew), cache.Done)
						w.want(hs[0].applySurely(release), cache.Done)
					case cache.Granted: // the jump has ended it
						grow(r.Base)
						w.want(hs[0].applySurely(renew), cache.NotHeld)
						w.want(hs[0].applySurely(release), cache.NotHeld)
						w.want(hs[1].applySurely(cache.Op{Kind: cache.OpRelease, Key: "k", Token: other}), cache.Done)
					default:
						w.Fatalf("from %v to %v: another's try is %v (%v)", now, d, r.Status, r.Err)
					}
					jump(now)
				}
				jump(d)
				now = d
			}
		}},
		{"a new base over a jump back is larger", func(w *world) {
			h := w.host()
			token, base := h.take("k", cache.Exclusive)
			if !h.store.Info().Rebase {
				w.Skip("renewals give no new bases")
			}
			for _, d := range []time.Duration{-10 * time.Minute, -time.Hour, -20 * time.Hour} {
				jump(d)
				r := h.applySurely(cache.Op{Kind: cache.OpRenew, Key: "k", Token: token,
					TTL: long, Rebase: true})
				w.want(r, cache.Done)
				if r.Base <= base {
					w.Errorf("base %d after %d", r.Base, base)
				}
				base = r.Base
			}
		}},
	}
}
