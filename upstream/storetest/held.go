package storetest

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// heldTests check that each host can see for how long another one has held a lock.
var heldTests = []test{
	{"every host can see for how long a lock is held", func(w *world) { w.heldFor(cache.Exclusive) }},
	{"every host can see for how long readers hold a lock", func(w *world) {
		w.heldFor(cache.Shared)
	}},
	{"every host can see for how long a permit is held", func(w *world) { w.heldFor(cache.Permit) }},
	{"a lock is held since it was granted, not since it was waited for", func(w *world) {
		hs := registered(w, "web-1", "web-2", "web-3")
		w.skipUnless(!w.env.opts.NoQueue, "the store has no queue")
		g := hs[1].answering()
		first, _ := hs[0].take("k", cache.Exclusive)
		t := hs[1].token()
		w.want(hs[1].join("k", t), cache.Queued)
		if hs[1].ttls() {
			w.past(hs[1], short)
		}
		w.want(hs[0].release("k", first), cache.Done)
		var begin time.Time
		w.eventually("the waiter has it", func() bool {
			begin = time.Now()
			return hs[1].join("k", t).Status == cache.Granted
		})
		g.grant("k", cache.Exclusive, t)
		asks := hs[1].store.Capabilities().Answerer != nil
		w.wantHeld(hs[2], "k", cache.Exclusive, begin, time.Now(), !asks)
	}},
	{"a daemon that does not answer leaves the time unknown", func(w *world) {
		hs := registered(w, "web-1", "web-2")
		w.skipUnless(hs[0].store.Capabilities().Answerer != nil, "daemons do not ask each other")
		hs[0].take("k", cache.Exclusive)
		for range 2 {
			w.wantHolders(hs[1], "k", cache.Exclusive, "web-1")
			if l := hs[1].holders("k", cache.Exclusive); len(l) == 0 || l[0].Held != 0 {
				w.Errorf("%+v", l)
			}
		}
	}},
	{"an answer that cannot be true leaves the time unknown", func(w *world) {
		hs := registered(w, "web-1", "web-2")
		a := hs[0].store.Capabilities().Answerer
		w.skipUnless(a != nil, "daemons do not ask each other")
		var mu sync.Mutex
		asked := 0
		a.Answer(func(key string, mode cache.Mode, tokens []uint64) []int64 {
			mu.Lock()
			defer mu.Unlock()
			asked++
			answers := [][]int64{{math.MinInt64}, {math.MaxInt64}, nil, {1, int64(time.Hour)}, {0}}
			return answers[asked%len(answers)]
		})
		hs[0].take("k", cache.Exclusive)
		w.eventually("all answers have been given", func() bool {
			if l := hs[1].holders("k", cache.Exclusive); len(l) == 0 || l[0].Held != 0 {
				w.Fatalf("%+v", l)
			}
			mu.Lock()
			defer mu.Unlock()
			return asked >= 5
		})
	}},
}

// heldFor makes one host hold a key in a mode and checks for how long another host sees it held.
func (w *world) heldFor(mode cache.Mode) {
	hs := registered(w, "web-1", "web-2")
	w.skipUnless(mode != cache.Permit || hs[0].store.Info().Permits, "the store has no semaphores")
	g := hs[0].answering()
	for _, key := range []string{"k", "k/ü {x}*?[a]\\%25, b"} {
		begin, t := time.Now(), hs[0].token()
		w.want(hs[0].apply(cache.Op{Kind: cache.OpTry, Mode: mode, Key: key, Token: t, TTL: long,
			Limit: 3})[0], cache.Granted)
		granted := time.Now()
		g.grant(key, mode, t)
		unknown := slices.Contains(w.env.opts.HeldUnknown, mode)
		w.wantHeld(hs[1], key, mode, begin, granted, unknown)
		w.want(hs[0].apply(cache.Op{Kind: cache.OpRenew, Mode: mode, Key: key, Token: t,
			TTL: 2 * long})[0], cache.Done)
		w.wantHeld(hs[1], key, mode, begin, granted, unknown)
		if mode == cache.Exclusive && hs[0].downgrade(key, t).Status == cache.Done {
			w.wantHeld(hs[1], key, mode, begin, granted, unknown ||
				slices.Contains(w.env.opts.HeldUnknown, cache.Shared))
		}
		w.want(hs[0].apply(cache.Op{Kind: cache.OpRelease, Mode: mode, Key: key, Token: t})[0],
			cache.Done)
	}
}

// clockSlack is the maximum difference of a server's clock, which counts milliseconds, and ours on
// the same machine.
const clockSlack = 20 * time.Millisecond

// wantHeld checks that h sees for how long a key has been held that was granted between begin and
// granted. If unknown is true, it may also see no time.
func (w *world) wantHeld(
	h *host, key string, mode cache.Mode, begin, granted time.Time, unknown bool,
) {
	w.Helper()
	if mode != cache.Permit {
		mode = cache.Exclusive
	}
	w.eventually("the time is known", func() bool {
		before := time.Now()
		locks := h.holders(key, mode)
		for i := range locks {
			held := time.Duration(locks[i].Held)
			if held < 0 || held != 0 && held < before.Sub(granted)-clockSlack ||
				held > time.Since(begin)+clockSlack {
				w.Fatalf("held for %v, but granted between %v and %v ago",
					held, before.Sub(granted), time.Since(begin))
			}
			if held > 0 {
				return true
			}
		}
		return unknown && len(locks) > 0
	})
}

// grants has the times from which a host answers the questions of other hosts.
type grants struct {
	mu    sync.Mutex
	since map[grantOf]time.Time // guarded by mu
}

type grantOf struct {
	key    string
	permit bool
	token  uint64
}

// answering makes a host answer the questions of other hosts, if the store's daemons ask each
// other.
func (h *host) answering() *grants {
	g := &grants{since: map[grantOf]time.Time{}}
	a := h.store.Capabilities().Answerer
	if a == nil {
		return g
	}
	a.Answer(func(key string, mode cache.Mode, tokens []uint64) []int64 {
		g.mu.Lock()
		defer g.mu.Unlock()
		held := make([]int64, len(tokens))
		for i, t := range tokens {
			if at, ok := g.since[grantOf{key, mode == cache.Permit, t}]; ok {
				held[i] = int64(time.Since(at))
			}
		}
		return held
	})
	return g
}

// grant records that a lease has just been granted.
func (g *grants) grant(key string, mode cache.Mode, token uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since[grantOf{key, mode == cache.Permit, token}] = time.Now()
}
