package both_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/both"
	"github.com/locksidecar/locksidecar/upstream/embedded"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/mysql"
	"github.com/locksidecar/locksidecar/upstream/postgres"
	"github.com/locksidecar/locksidecar/upstream/testserver"
	"github.com/locksidecar/locksidecar/upstream/zookeeper"
)

// epoch is the value that docs/operate/stores.md recommends.
const epoch = 4_000_000_000_000_000

// shared is one embedded store for all hosts of a test.
type shared struct{ *embedded.Store }

func (shared) Close() error { return nil }

// oldStores has the stores from which keys can move. Each call of the returned function makes the
// store of another host.
var oldStores = map[string]func(t testing.TB) func() upstream.Store{
	"embedded": func(t testing.TB) func() upstream.Store {
		e := openEmbedded(t)
		t.Cleanup(func() { _ = e.Close() })
		return func() upstream.Store { return shared{e} }
	},
	"redis": func(t testing.TB) func() upstream.Store {
		srv := testserver.StartRedis(t)
		return func() upstream.Store { return open(t, srv, "lock:") }
	},
	"mysql": func(t testing.TB) func() upstream.Store {
		srv := testserver.StartMariaDB(t)
		return func() upstream.Store {
			cfg, err := mysql.Parse(srv.URL() + "?timeout=10s")
			if err != nil {
				t.Fatal(err)
			}
			cfg.Clock = clock
			s, err := mysql.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	},
	"postgres": func(t testing.TB) func() upstream.Store {
		srv := testserver.StartPostgres(t)
		return func() upstream.Store {
			cfg, err := postgres.Parse(srv.URL() + "?timeout=10s")
			if err != nil {
				t.Fatal(err)
			}
			cfg.Clock = clock
			s, err := postgres.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	},
}

// ordered has the stores whose bases are their own order.
var ordered = map[string]func(t testing.TB) func() upstream.Store{
	"etcd": func(t testing.TB) func() upstream.Store {
		srv := testserver.StartEtcd(t)
		return func() upstream.Store {
			cfg, err := etcd.Parse("etcd://" + srv.Addr() + "?timeout=10s&ttl=30s")
			if err != nil {
				t.Fatal(err)
			}
			cfg.Clock = clock
			s, err := etcd.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	},
	"zookeeper": func(t testing.TB) func() upstream.Store {
		srv := testserver.StartZooKeeper(t)
		return func() upstream.Store {
			cfg, err := zookeeper.Parse(srv.URL() + "?session=30s&timeout=10s")
			if err != nil {
				t.Fatal(err)
			}
			cfg.Clock = clock
			s, err := zookeeper.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	},
}

// fleet has the hosts of a move to a store with its own order, in four stages.
type fleet struct {
	t        testing.TB
	old, new func() upstream.Store
	token    uint64
	last     map[string]uint64 // the largest base, by key
}

func newFleet(t testing.TB, old, new string) *fleet {
	return &fleet{t: t, old: oldStores[old](t), new: ordered[new](t), last: map[string]uint64{}}
}

// pair makes a host that has both stores for keys.
func (f *fleet) pair(epoch uint64, keys ...both.Keys) *host {
	f.t.Helper()
	s, err := both.New(f.old(), f.new(), epoch)
	if err == nil && len(keys) > 0 {
		err = s.Cover(f.t.Context(), keys)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return &host{Store: s}
}

// at makes a host of a stage, from 1 to 4.
func (f *fleet) at(stage int) (h *host) {
	f.t.Helper()
	switch stage {
	case 1:
		h = &host{Store: f.old()}
	case 2:
		h = f.pair(0, both.Keys{})
	case 3:
		h = f.pair(epoch, both.Keys{})
	default:
		h = &host{Store: f.new()}
	}
	h.stage = stage
	return h
}

// op returns an op that acquires or releases a lock, or a permit of a semaphore with two permits.
func (f *fleet) op(kind cache.OpKind, key string, token uint64) upstream.Op {
	op := upstream.Op{Kind: kind, Key: key, Token: token, TTL: 10 * time.Minute}
	if strings.HasPrefix(key, "permit") {
		op.Mode, op.Limit = cache.Permit, 2
	}
	return op
}

// granted checks the base of a grant, with the epoch that a daemon adds at the last stage.
func (f *fleet) granted(h *host, key string, r upstream.Result) {
	f.t.Helper()
	if h.stage == 4 {
		r.Base += epoch
	}
	if r.Status != cache.Granted || r.Base <= f.last[key] {
		f.t.Fatalf("%s on a host of stage %d is %v (%v) with base %d after %d", key, h.stage, r.Status,
			r.Err, r.Base, f.last[key])
	}
	f.last[key] = r.Base
}

func (f *fleet) try(h *host, key string) (token uint64) {
	f.t.Helper()
	f.token++
	f.granted(h, key, h.do(f.t, f.op(cache.OpTry, key, f.token)))
	return f.token
}

func (f *fleet) release(h *host, key string, token uint64) {
	f.t.Helper()
	if r := h.do(f.t, f.op(cache.OpRelease, key, token)); r.Status != cache.Done {
		f.t.Fatalf("the release of %s by a host of stage %d is %v (%v)", key, h.stage, r.Status, r.Err)
	}
}

// busy makes a host acquire many locks of other keys in one batch.
func (f *fleet) busy(h *host) {
	f.t.Helper()
	for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRelease} {
		ops := make([]upstream.Op, 100)
		for i := range ops {
			ops[i] = f.op(kind, fmt.Sprint("other", i), f.token+1+uint64(i))
		}
		ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
		results := make([]upstream.Result, len(ops))
		_ = h.Apply(ctx, ops, results)
		cancel()
		for i, r := range results {
			if kind == cache.OpTry {
				f.granted(h, ops[i].Key, r)
			} else if r.Status != cache.Done {
				f.t.Fatalf("release on a host of stage %d is %v (%v)", h.stage, r.Status, r.Err)
			}
		}
	}
	f.token += 100
}

// A move has four rollouts, host by host, with steps back, while hosts acquire and release locks
// and permits. No two hosts hold a lock at once, and fences rise throughout.
func TestAMoveInFourRollouts(t *testing.T) {
	t.Parallel()
	for old := range oldStores {
		for new := range ordered {
			t.Run(old+" to "+new, func(t *testing.T) {
				f := newFleet(t, old, new)
				f.move(rand.New(rand.NewPCG(3, 5)))
			})
		}
	}
}

func (f *fleet) move(rnd *rand.Rand) {
	all := []*host{f.at(1), f.at(1), f.at(1)}
	// Each step moves a host to a stage.
	steps := []struct{ host, stage int }{{0, 2}, {0, 1}, {1, 2}, {0, 2}, {2, 2}, {1, 3}, {1, 2},
		{0, 3}, {1, 3}, {2, 3}, {2, 4}, {2, 3}, {0, 4}, {1, 4}, {2, 4}}
	type held struct {
		h     *host
		key   string
		token uint64
	}
	var holds []held
	drop := func(n int) {
		f.release(holds[n].h, holds[n].key, holds[n].token)
		holds = append(holds[:n], holds[n+1:]...)
	}
	keys := []string{"a", "b", "permit"}
	if !all[0].Info().Permits {
		keys = keys[:2]
	}
	for _, s := range steps {
		for range 12 {
			h, key := all[rnd.IntN(len(all))], keys[rnd.IntN(len(keys))]
			others, most := []int{}, 1
			if key == "permit" {
				most = 2
			}
			for n := range holds {
				if holds[n].key == key {
					others = append(others, n)
				}
			}
			if len(others) < most {
				holds = append(holds, held{h, key, f.try(h, key)})
				continue
			}
			// A daemon does not request a lock that it has.
			if f.token++; most == 2 || holds[others[0]].h != h {
				if r := h.do(f.t, f.op(cache.OpTry, key, f.token)); r.Status != cache.Busy {
					f.t.Fatalf("%s is %v (%v) on a host of stage %d while another one has it", key, r.Status,
						r.Err, h.stage)
				}
			}
			drop(others[rnd.IntN(len(others))])
		}
		f.busy(all[(s.host+1)%len(all)])
		for n := len(holds) - 1; n >= 0; n-- { // an orderly restart releases
			if holds[n].h == all[s.host] {
				drop(n)
			}
		}
		if err := all[s.host].Close(); err != nil {
			f.t.Fatal(err)
		}
		all[s.host] = f.at(s.stage)
	}
	for len(holds) > 0 {
		drop(0)
	}
	for _, h := range all {
		f.busy(h)
		_ = h.Close()
	}
}

// A host that lets the old store decide waits in the new store's queue while the first host of the
// next rollout gets the lock.
func TestARuleIsReadByAHostThatHasWaited(t *testing.T) {
	t.Parallel()
	for new := range ordered {
		t.Run(new, func(t *testing.T) {
			f := newFleet(t, "redis", new)
			a, b, c := f.at(2), f.at(3), f.at(2)
			first := f.try(a, "k")
			wait := func(h *host, token uint64) {
				t.Helper()
				if r := h.do(t, f.op(cache.OpJoin, "k", token)); r.Status != cache.Queued {
					t.Fatalf("a host of stage %d is %v (%v)", h.stage, r.Status, r.Err)
				}
			}
			get := func(h *host, token uint64) {
				t.Helper()
				end := time.Now().Add(20 * time.Second)
				r := h.do(t, f.op(cache.OpJoin, "k", token))
				for r.Status == cache.Queued && time.Now().Before(end) {
					r = h.do(t, f.op(cache.OpJoin, "k", token))
				}
				f.granted(h, "k", r)
			}
			f.token += 2
			second, third := f.token-1, f.token
			wait(b, second)
			wait(c, third)
			f.release(a, "k", first)
			get(b, second)
			f.release(b, "k", second)
			get(c, third)
			f.release(c, "k", third)
			if f.last["k"] <= epoch {
				t.Errorf("the last base is %d", f.last["k"])
			}
			for _, h := range []*host{a, b, c} {
				_ = h.Close()
			}
		})
	}
}

// refused fails unless a try is refused with such a reason and leaves nothing in either store.
func (f *fleet) refused(h *host, key, words string) {
	f.t.Helper()
	f.token++
	r := h.do(f.t, f.op(cache.OpTry, key, f.token))
	if r.Status != cache.Refused || !errors.Is(r.Err, both.ErrFences) ||
		!strings.Contains(r.Err.Error(), words) {
		f.t.Errorf("%s is %v (%v), want %q", key, r.Status, r.Err, words)
	}
	if r := h.do(f.t, upstream.Op{Kind: cache.OpPeek, Key: key}); r.Status != cache.Done {
		f.t.Errorf("something is left: %v", r.Status)
	}
}

func TestWhatWouldMakeFencesFallIsRefused(t *testing.T) {
	t.Parallel()
	for new := range ordered {
		t.Run(new, func(t *testing.T) {
			f := newFleet(t, "redis", new)
			old, some := both.Keys{Prefix: "some:", Except: []string{"some:not:"}},
				both.Keys{Prefix: "some:"}
			later := f.pair(epoch, some)
			f.refused(later, "some:k", "no host has used both stores without fence_epoch")

			before := f.pair(0, old)
			last := f.new()
			check := func(keys both.Keys, e uint64, want error) {
				t.Helper()
				rules, err := both.ReadRules(t.Context(), last)
				if err != nil {
					t.Fatal(err)
				}
				if err := rules.CheckEpoch(keys, e); !errors.Is(err, want) {
					t.Errorf("%+v in the new store alone, with epoch %d: %v", keys, e, err)
				}
			}
			for _, keys := range []both.Keys{{}, some, {Prefix: "some:more:"}} {
				check(keys, epoch, both.ErrFences) // the old store decides
			}
			for _, keys := range []both.Keys{{Except: []string{"some:"}}, {Prefix: "some:not:"},
				{Prefix: "x:"}} {
				check(keys, epoch, nil)
			}
			low := f.pair(1000, some)
			f.refused(low, "some:k", "raise fence_epoch to more than")
			f.release(before, "some:k", f.try(before, "some:k"))
			if f.last["some:k"] >= epoch {
				t.Errorf("a host of the third rollout decides although it was refused: base %d",
					f.last["some:k"])
			}
			f.refused(later, "some:not:k", "no host has used both stores without fence_epoch")
			f.release(later, "some:k", f.try(later, "some:k"))
			f.release(before, "some:k", f.try(before, "some:k"))

			other := f.pair(epoch+1e12, some)
			f.refused(other, "some:k", "must be the same on every host")
			lower := f.pair(epoch-1e12, some)
			f.refused(lower, "some:k", "must be the same on every host")
			for e, want := range map[uint64]error{0: both.ErrFences, epoch - 1: both.ErrFences, epoch: nil,
				epoch + 1: nil} {
				check(both.Keys{}, e, want)
			}
			check(both.Keys{Prefix: "x:"}, 0, nil)
			for _, h := range []*host{later, before, low, other, lower} {
				_ = h.Close()
			}
			_ = last.Close()
		})
	}
}

// Keys that came back to the old store move once more, with a larger epoch.
func TestAMoveAfterAMove(t *testing.T) {
	f := newFleet(t, "redis", "etcd")
	stage2, stage3 := f.at(2), f.at(3)
	f.release(stage2, "k", f.try(stage2, "k"))
	f.release(stage3, "k", f.try(stage3, "k"))
	back := &host{Store: f.old(), stage: 1}
	const lifted = epoch + 1e12 // all holders were stopped, and the old store got a fence_epoch
	f.token++
	op := f.op(cache.OpTry, "k", f.token)
	op.Floor = lifted
	f.granted(back, "k", back.do(t, op))
	f.release(back, "k", f.token)
	f.release(stage2, "k", f.try(stage2, "k"))
	f.release(back, "k", f.try(back, "k")) // the old store decides again
	again := f.pair(epoch+2e12, both.Keys{})
	f.release(again, "k", f.try(again, "k"))
	f.release(stage2, "k", f.try(stage2, "k"))
	f.release(again, "k", f.try(again, "k"))
	for _, h := range []*host{stage2, stage3, back, again} {
		_ = h.Close()
	}
}

// Two namespaces of one pair of stores move one after the other.
func TestNamespacesMoveOneByOne(t *testing.T) {
	f := newFleet(t, "redis", "etcd")
	one, rest := both.Keys{Prefix: "one:"}, both.Keys{Except: []string{"one:"}}
	before := f.pair(0, one)
	after := f.pair(epoch, one)
	f.release(after, "one:k", f.try(after, "one:k"))
	restBefore, restOld := f.pair(0, rest), f.at(1)
	for range 3 { // hosts on the old store alone and hosts with both, of the other namespace
		f.release(restBefore, "k", f.try(restBefore, "k"))
		f.release(restOld, "k", f.try(restOld, "k"))
		f.release(before, "one:k", f.try(before, "one:k"))
		f.release(after, "one:k", f.try(after, "one:k"))
	}
	restAfter := f.pair(epoch, rest)
	for range 3 {
		f.release(restAfter, "k", f.try(restAfter, "k"))
		f.release(restBefore, "k", f.try(restBefore, "k"))
	}
	for _, h := range []*host{before, after, restBefore, restOld, restAfter} {
		_ = h.Close()
	}
}

// A host of the third rollout decides only keys that hosts of the second rollout have, because the
// namespaces of the two may differ.
func TestARuleHasNoMoreKeysThanTheSecondRollout(t *testing.T) {
	f := newFleet(t, "redis", "etcd")
	before := f.pair(0, both.Keys{Prefix: "m:", Except: []string{"m:not:"}}, both.Keys{Prefix: "n:"})
	after := f.pair(epoch, both.Keys{Except: []string{"m:x"}}, both.Keys{Prefix: "m:x"})
	for _, key := range []string{"m:k", "m:xk", "n:k"} {
		f.release(after, key, f.try(after, key))
		f.release(before, key, f.try(before, key))
	}
	for _, key := range []string{"other", "m:not:k"} {
		f.refused(after, key, "no host has used both stores without fence_epoch")
	}
	for _, h := range []*host{before, after} {
		_ = h.Close()
	}
}

// Nothing was locked in the third rollout. The new store still decides after a return to the
// second.
func TestARolloutWithoutLocksDecides(t *testing.T) {
	f := newFleet(t, "redis", "etcd")
	for _, stage := range []int{2, 3} {
		_ = f.at(stage).Close()
	}
	last := f.at(4)
	f.release(last, "k", f.try(last, "k"))
	_ = last.Close()
	_ = f.at(3).Close()
	back := f.at(2)
	f.release(back, "k", f.try(back, "k"))
	_ = back.Close()
}

// New refuses an old store whose bases are its own order.
func TestFromAStoreWithAnOrderOfItsOwn(t *testing.T) {
	e, r := ordered["etcd"](t)(), oldStores["redis"](t)()
	if _, err := both.New(e, r, 0); !errors.Is(err, both.ErrFences) {
		t.Errorf("it is %v", err)
	}
	_, _ = e.Close(), r.Close()
}
