package both_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/both"
	"github.com/locksidecar/locksidecar/upstream/embedded"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, srv *testserver.Redis, prefix string) upstream.Store {
	t.Helper()
	return openURL(t, srv.URL()+"?waiter_lease=2500ms&timeout=10s&prefix="+prefix)
}

func openURL(t testing.TB, url string) upstream.Store {
	t.Helper()
	cfg, err := redis.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	s, err := redis.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pair(t testing.TB, old, new upstream.Store) upstream.Store {
	t.Helper()
	s, err := both.New(old, new, 0)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	storetest.Run(t, func(t testing.TB, prefix string) upstream.Store {
		return pair(t, open(t, a, prefix), open(t, b, prefix))
	}, storetest.Options{KeepsPlaces: true, OneByOne: true,
		Residue: func(t testing.TB, prefix string) (left []string) {
			for _, srv := range []*testserver.Redis{a, b} {
				for _, k := range srv.Admin().Keys(t.Context(), "*").Val() {
					if strings.Contains(k, prefix) {
						left = append(left, k)
					}
				}
			}
			return left
		}})
}

// start is the beginning of the embedded stores' clock.
var start = time.Now().Add(-time.Hour)

func clock() int64 { return int64(time.Since(start)) }

// openEmbedded returns an embedded store without a file.
func openEmbedded(t testing.TB) *embedded.Store {
	t.Helper()
	e, err := embedded.Open(embedded.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// One store has sessions and the other has TTLs. Leases depend on both.
func TestConformanceWithSessions(t *testing.T) {
	t.Parallel()
	a := testserver.StartRedis(t)
	storetest.Run(t, func(t testing.TB, prefix string) upstream.Store {
		e := openEmbedded(t)
		return pair(t, open(t, a, prefix), e)
	}, storetest.Options{OneHost: true, KeepsPlaces: true, OneByOne: true})
}

// host is a daemon at one stage of the move.
type host struct {
	upstream.Store
	stage int // 0 old, 1 both, 2 new
	last  uint64
}

func (h *host) do(t testing.TB, op upstream.Op) upstream.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r := make([]upstream.Result, 1)
	_ = h.Apply(ctx, []upstream.Op{op}, r)
	return r[0]
}

// A move has three rollouts, host by host, while hosts acquire and release locks. No two hosts hold
// a lock at once, and fences rise throughout.
func TestAMoveInThreeRollouts(t *testing.T) {
	t.Parallel()
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	const hosts, keys = 4, 3
	stage := func(n int) *host {
		h := &host{stage: n}
		switch n {
		case 0:
			h.Store = open(t, a, "lock:")
		case 1:
			h.Store = pair(t, open(t, a, "lock:"), open(t, b, "lock:"))
		case 2:
			h.Store = open(t, b, "lock:")
		}
		return h
	}
	rnd := rand.New(rand.NewPCG(3, 5))
	type heldLock struct {
		h     *host
		token uint64
	}
	var all []*host
	for range hosts {
		all = append(all, stage(0))
	}
	holder, fence := [keys]*heldLock{}, [keys]uint64{}
	grants := [3]int{}
	for step := range 3 * hosts * 120 {
		if step%120 == 60 { // the next host of this rollout restarts with the next stage
			n := step / 120
			i, next := n%hosts, n/hosts+1
			if next <= 2 {
				for k, g := range holder { // an orderly restart releases
					if g != nil && g.h == all[i] {
						if r := g.h.do(t, upstream.Op{Kind: cache.OpRelease, Key: fmt.Sprint(k),
							Token: g.token}); r.Status != cache.Done {
							t.Fatalf("release is %v (%v)", r.Status, r.Err)
						}
						holder[k] = nil
					}
				}
				if err := all[i].Close(); err != nil {
					t.Fatal(err)
				}
				all[i] = stage(next)
			}
		}
		h, k := all[rnd.IntN(hosts)], rnd.IntN(keys)
		if g := holder[k]; g != nil && rnd.IntN(2) == 0 {
			if r := g.h.do(t, upstream.Op{Kind: cache.OpRelease, Key: fmt.Sprint(k),
				Token: g.token}); r.Status != cache.Done {
				t.Fatalf("step %d: release by a host of stage %d is %v (%v)", step, g.h.stage, r.Status, r.Err)
			}
			holder[k] = nil
			continue
		}
		h.last++
		r := h.do(t, upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint(k), Token: h.last, TTL: time.Minute})
		switch {
		case holder[k] != nil && holder[k].h != h && r.Status != cache.Busy:
			t.Fatalf("step %d: a host of stage %d gets %v although one of stage %d holds it", step, h.stage,
				r.Status, holder[k].h.stage)
		case r.Status == cache.Granted:
			if r.Base <= fence[k] {
				t.Fatalf("step %d: base %d of a host of stage %d after %d", step, r.Base, h.stage, fence[k])
			}
			fence[k], holder[k] = r.Base, &heldLock{h, h.last}
			grants[h.stage]++
		case r.Status != cache.Busy || holder[k] == nil:
			t.Fatalf("step %d: a try by a host of stage %d is %v (%v)", step, h.stage, r.Status, r.Err)
		}
	}
	if min(grants[0], grants[1], grants[2]) < 20 {
		t.Errorf("grants by stage: %v", grants)
	}
	for _, h := range all {
		_ = h.Close()
	}
}

// An acquire that one of the two stores does not grant is not granted, and leaves nothing in the
// other.
func TestOneOfTheTwoIsDown(t *testing.T) {
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	s := pair(t, open(t, a, "lock:"), open(t, b, "lock:"))
	defer s.Close()
	h := &host{Store: s}
	b.Kill()
	r := h.do(t, upstream.Op{Kind: cache.OpTry, Key: "k", Token: 1, TTL: time.Minute})
	if r.Status != cache.Refused && r.Status != cache.Unknown || r.Err == nil {
		t.Errorf("it is %v (%v)", r.Status, r.Err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, upstream.ErrDown) {
		t.Errorf("the ping says %v", err)
	}
	b.Start()
	end := time.Now().Add(20 * time.Second)
	for r.Status != cache.Done && r.Status != cache.NotHeld && time.Now().Before(end) {
		r = h.do(t, upstream.Op{Kind: cache.OpWithdraw, Key: "k", Token: 1})
	}
	if n := a.Admin().Exists(t.Context(), "lock:k").Val(); n != 0 {
		t.Error("it stays in the store that had granted it")
	}
}

func TestConnectionsAreThoseOfTheTwo(t *testing.T) {
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	s := pair(t, open(t, a, "lock:"), open(t, b, "lock:"))
	h := &host{Store: s}
	if r := h.do(t, upstream.Op{Kind: cache.OpTry, Mode: cache.Exclusive, Key: "k", Token: 1,
		TTL: time.Minute}); r.Status != cache.Granted {
		t.Fatal(r)
	}
	connections := s.Capabilities().Connections
	at := func(srv *testserver.Redis) int { return testserver.Connections(t, srv.Addr()) }
	for end := time.Now().Add(20 * time.Second); at(a) == 0 || at(b) == 0 ||
		connections() != at(a)+at(b); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d are counted; there are %d and %d", connections(), at(a), at(b))
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := connections(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}
