package both_test

import (
	"context"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/both"
	"github.com/locksidecar/locksidecar/upstream/etcd"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The old store loses the lease of a host that waits in the new store. The host does not keep
// others from the lock.
func TestAWaiterThatHasLostTheOldLease(t *testing.T) {
	t.Parallel()
	for new := range ordered {
		t.Run(new, func(t *testing.T) {
			a, news := testserver.StartRedis(t), ordered[new](t)
			x := &host{Store: pair(t, open(t, a, "lock:"), news())}
			y := &host{Store: pair(t, open(t, a, "lock:"), news())}
			z := &host{Store: news()}
			do := func(h *host, kind cache.OpKind, token uint64) upstream.Result {
				return h.do(t, upstream.Op{Kind: kind, Key: "k", Token: token, TTL: time.Minute})
			}
			is := func(r upstream.Result, want cache.Status) {
				t.Helper()
				if r.Status != want {
					t.Fatalf("it is %v (%v), want %v", r.Status, r.Err, want)
				}
			}
			is(do(z, cache.OpTry, 1), cache.Granted)
			is(do(x, cache.OpJoin, 2), cache.Queued)
			if err := a.Admin().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			is(do(y, cache.OpJoin, 3), cache.Queued)
			is(do(z, cache.OpRelease, 1), cache.Done)
			tx, ty := uint64(2), uint64(3)
			for end := time.Now().Add(20 * time.Second); ; {
				rx, ry := do(x, cache.OpJoin, tx), do(y, cache.OpJoin, ty)
				if rx.Status == cache.Granted || ry.Status == cache.Granted {
					break
				}
				if rx.Status == cache.Busy { // the token has lost its place
					tx += 2
				}
				if ry.Status == cache.Busy {
					ty += 2
				}
				if time.Now().After(end) {
					t.Fatalf("%v (%v) and %v (%v)", rx.Status, rx.Err, ry.Status, ry.Err)
				}
			}
			for _, h := range []*host{x, y, z} {
				_ = h.Close()
			}
		})
	}
}

// A successor knows the places in the new store's queue.
func TestASuccessorLeavesTheNewQueue(t *testing.T) {
	a, srv := testserver.StartRedis(t), testserver.StartEtcd(t)
	cfg, err := etcd.Parse("etcd://" + srv.Addr() + "?timeout=10s&ttl=30s")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Clock = clock
	opened := func(s *etcd.Store, err error) upstream.Store {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	do := func(h *host, kind cache.OpKind, token uint64, want cache.Status) {
		t.Helper()
		if r := h.do(t, upstream.Op{Kind: kind, Key: "k", Token: token,
			TTL: time.Minute}); r.Status != want {
			t.Fatalf("it is %v (%v), want %v", r.Status, r.Err, want)
		}
	}
	y := &host{Store: open(t, a, "lock:")}
	z := &host{Store: opened(etcd.Open(t.Context(), cfg))}
	x := &host{Store: pair(t, open(t, a, "lock:"),
		opened(etcd.Open(t.Context(), cfg)))}
	do(z, cache.OpTry, 1, cache.Granted)
	do(x, cache.OpJoin, 2, cache.Queued)
	state, err := x.Capabilities().Mover.Leave()
	if err != nil {
		t.Fatal(err)
	}
	next := &host{Store: pair(t, open(t, a, "lock:"),
		opened(etcd.OpenSuccessor(t.Context(), cfg)))}
	begin, err := next.Capabilities().Mover.Arrive(state)
	if err != nil {
		t.Fatal(err)
	}
	begin()
	if err := a.Admin().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	do(y, cache.OpTry, 3, cache.Granted)
	do(next, cache.OpJoin, 2, cache.Busy)
	do(z, cache.OpRelease, 1, cache.Done)
	do(z, cache.OpTry, 4, cache.Granted)
	for _, h := range []*host{next, x, y, z} {
		_ = h.Close()
	}
}

// forgetful is a store that carries out no withdrawal while it fails.
type forgetful struct {
	upstream.Store
	fails bool
}

func (s *forgetful) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{Noter: s.Store.Capabilities().Noter}
}

func (s *forgetful) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	if s.fails && ops[0].Kind == cache.OpWithdraw {
		for i := range results {
			results[i] = upstream.Result{Status: cache.Unknown, Left: -1}
		}
		return nil
	}
	return s.Store.Apply(ctx, ops, results)
}

// The fence of a lock is refused, and the new store does not answer the withdrawal. The host gives
// up its place there as soon as it can, and does not keep others from the lock.
func TestARefusedLockThatCouldNotBeWithdrawn(t *testing.T) {
	t.Parallel()
	for name := range ordered {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "embedded", name)
			second := f.new()
			bad := &forgetful{second, true}
			// The pair refuses, because no host has used both stores without epoch.
			s, err := both.New(f.old(), bad, epoch)
			if err != nil {
				t.Fatal(err)
			}
			x, y := &host{Store: s}, f.at(2)
			do := func(h *host, token uint64, want cache.Status) {
				t.Helper()
				if r := h.do(t, upstream.Op{Kind: cache.OpJoin, Key: "k", Token: token,
					TTL: time.Minute}); r.Status != want {
					t.Fatalf("it is %v (%v), want %v", r.Status, r.Err, want)
				}
			}
			do(x, 1, cache.Unknown)
			do(y, 2, cache.Queued)
			bad.fails = false
			do(x, 1, cache.Busy)
			do(y, 2, cache.Granted)
			for _, h := range []*host{x, y} {
				_ = h.Close()
			}
		})
	}
}

// late is a store that does not answer withdrawals while it is slow, and carries them out when
// carryOut is called.
type late struct {
	upstream.Store
	slow bool
	held []upstream.Op
}

func (*late) Capabilities() (none upstream.Capabilities) { return none }

func (s *late) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	if !s.slow || ops[0].Kind != cache.OpWithdraw {
		return s.Store.Apply(ctx, ops, results)
	}
	s.held = append(s.held, ops...)
	for i := range results {
		results[i] = upstream.Result{Status: cache.Unknown, Left: -1}
	}
	return nil
}

func (s *late) carryOut(t *testing.T) {
	t.Helper()
	if len(s.held) == 0 {
		t.Fatal("nothing was withdrawn")
	}
	for _, op := range s.held {
		if r := (&host{Store: s.Store}).do(t, op); r.Status != cache.Done {
			t.Fatalf("the withdrawal of token %d is %v (%v)", op.Token, r.Status, r.Err)
		}
	}
}

// A host has lost the old store's lease while it waits in the new store. The new store carries out
// its withdrawal late, after the host has got the lock. That must not end the new lease.
func TestAWithdrawalThatIsCarriedOutLateEndsNoLaterLease(t *testing.T) {
	a, b := testserver.StartRedis(t), testserver.StartRedis(t)
	slow := &late{Store: open(t, b, "lock:"), slow: true}
	x := &host{Store: pair(t, open(t, a, "lock:"), slow)}
	old, new := &host{Store: open(t, a, "lock:")}, &host{Store: open(t, b, "lock:")}
	do := func(h *host, kind cache.OpKind, token uint64) cache.Status {
		t.Helper()
		return h.do(t, upstream.Op{Kind: kind, Key: "k", Token: token, TTL: time.Minute}).Status
	}
	is := func(h *host, kind cache.OpKind, token uint64, want cache.Status) {
		t.Helper()
		if got := do(h, kind, token); got != want {
			t.Fatalf("%v of token %d is %v, want %v", kind, token, got, want)
		}
	}
	is(new, cache.OpTry, 1, cache.Granted)
	is(x, cache.OpJoin, 2, cache.Queued)
	if err := a.Admin().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	is(old, cache.OpTry, 3, cache.Granted)
	is(x, cache.OpJoin, 2, cache.Unknown)
	is(old, cache.OpRelease, 3, cache.Done)
	is(new, cache.OpRelease, 1, cache.Done)
	for token, n := uint64(2), 0; ; n++ {
		got := do(x, cache.OpJoin, token)
		if got == cache.Granted {
			break
		}
		if got == cache.Busy { // the token has lost its place
			token += 10
		}
		if n == 5 {
			t.Fatalf("token %d is %v", token, got)
		}
		slow.slow = false
	}
	slow.carryOut(t)
	is(new, cache.OpTry, 4, cache.Busy)
	for _, h := range []*host{x, old, new} {
		_ = h.Close()
	}
}
