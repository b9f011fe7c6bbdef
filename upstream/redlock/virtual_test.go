package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
)

// These tests are about time. They use virtual time and servers in memory.

// virtual runs a test with n servers, and a store on them that waits 100 ms for a node.
func virtual(t *testing.T, n int, run func(t *testing.T, s *redlock.Store, srvs []*server)) {
	synctest.Test(t, func(t *testing.T) {
		var srvs []*server
		for i := range n {
			srvs = append(srvs, &server{name: fmt.Sprint("n", i), start: time.Now(),
				began: time.Now().Add(-time.Hour), locks: map[string]*simLock{}})
		}
		var wg sync.WaitGroup
		s := virtualStore(t, "i", srvs, &wg)
		run(t, s, srvs)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

func virtualStore(t *testing.T, instance string, srvs []*server, wg *sync.WaitGroup,
	f ...faults) *redlock.Store {
	cfg, err := redlock.Parse("redlock://a,b,c,d,e?timeout=100ms&max_ttl=1h")
	if err != nil {
		t.Fatal(err)
	}
	cfg.URL.Hosts = cfg.URL.Hosts[:len(srvs)]
	i, mu := 0, new(sync.Mutex)
	f = append(f, faults{})
	s, err := redlock.OpenLazy(cfg, func(redlock.Member) (upstream.Store, error) {
		i++
		return &link{srv: srvs[i-1], instance: instance, rnd: rand.New(rand.NewPCG(1, uint64(i))), mu: mu,
			wg: wg, faults: f[0]}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ask carries out one op, and returns the result and the time that it took.
func ask(t *testing.T, s *redlock.Store, op upstream.Op) (upstream.Result, time.Duration) {
	t.Helper()
	op.Key = "k"
	start, res := time.Now(), make([]upstream.Result, 1)
	ctx, cancel := context.WithTimeout(context.Background(), s.Info().Timeout)
	defer cancel()
	_ = s.Apply(ctx, []upstream.Op{op}, res)
	return res[0], time.Since(start)
}

func wantStatus(t *testing.T, r upstream.Result, st cache.Status) {
	t.Helper()
	if r.Status != st {
		t.Fatalf("it is %v (%v), not %v", r.Status, r.Err, st)
	}
}

func TestARenewalAfterTheEndIsNotConfirmed(t *testing.T) {
	virtual(t, 5, func(t *testing.T, s *redlock.Store, _ []*server) {
		for _, kind := range []cache.OpKind{cache.OpRenew, cache.OpDowngrade} {
			op := upstream.Op{Kind: cache.OpTry, Token: uint64(kind), TTL: 100 * time.Second}
			r, _ := ask(t, s, op)
			wantStatus(t, r, cache.Granted)
			time.Sleep(98 * time.Second)
			op.Kind = kind
			r, _ = ask(t, s, op)
			wantStatus(t, r, cache.Done)
			// The nodes still have the lease, but our deadline is 1 % and 2 ms earlier.
			time.Sleep(99*time.Second + 100*time.Millisecond)
			r, _ = ask(t, s, op)
			wantStatus(t, r, cache.Unknown)
			if !errors.Is(r.Err, redlock.ErrLate) {
				t.Errorf("the reason is %v", r.Err)
			}
			op.Kind = cache.OpRelease
			r, _ = ask(t, s, op)
			wantStatus(t, r, cache.Done)
		}
	})
}

func TestAQuorumThatIsSlowerThanTheTTLGrantsNothing(t *testing.T) {
	virtual(t, 3, func(t *testing.T, s *redlock.Store, srvs []*server) {
		for _, srv := range srvs {
			srv.pause(60 * time.Millisecond)
		}
		r, _ := ask(t, s, upstream.Op{Kind: cache.OpTry, Token: 1, TTL: 50 * time.Millisecond})
		if r.Status == cache.Granted || !errors.Is(r.Err, redlock.ErrLate) {
			t.Errorf("it is %v (%v)", r.Status, r.Err)
		}
		time.Sleep(time.Second)
		r, _ = ask(t, s, upstream.Op{Kind: cache.OpPeek})
		wantStatus(t, r, cache.Done)
	})
}

func TestAMinorityThatStandsStillDelaysNobody(t *testing.T) {
	virtual(t, 5, func(t *testing.T, s *redlock.Store, srvs []*server) {
		srvs[1].pause(time.Minute)
		srvs[2].pause(time.Minute)
		goroutines := 0
		for i := range uint64(200) {
			op := upstream.Op{Kind: cache.OpTry, Mode: cache.Mode(i % 2), Token: i + 1,
				TTL: 10 * time.Second, Rebase: true}
			for _, step := range []struct {
				kind cache.OpKind
				want cache.Status
			}{{cache.OpTry, cache.Granted}, {cache.OpRenew, cache.Done}, {cache.OpDowngrade, cache.Done},
				{cache.OpPeek, cache.Busy}, {cache.OpRelease, cache.Done}} {
				op.Kind = step.kind
				r, took := ask(t, s, op)
				wantStatus(t, r, step.want)
				// Each direction takes up to 2 ms. An acquire and a new base take two round trips, and
				// sometimes the call waits as long again for a node.
				if took > 20*time.Millisecond {
					t.Errorf("%v took %v", step.kind, took)
				}
			}
			if n := runtime.NumGoroutine(); i == 50 {
				goroutines = n
			} else if i > 50 && n > goroutines+50 {
				t.Fatalf("there are %d goroutines, and there were %d", n, goroutines)
			}
		}
		time.Sleep(2 * time.Minute)
		if leases, pending := s.Left(); leases+pending != 0 {
			t.Errorf("%d leases and %d pending releases are left", leases, pending)
		}
		for _, srv := range srvs {
			srv.mu.Lock()
			l := srv.locks["k"]
			if l.expire(time.Now()); l.writer != "" || len(l.reads) > 0 {
				t.Errorf("%s has %+v", srv.name, l)
			}
			srv.mu.Unlock()
		}
	})
}

func TestAReleaseOfWhatIsHeldIsDoneHoweverSlowTheNodesAre(t *testing.T) {
	virtual(t, 5, func(t *testing.T, _ *redlock.Store, srvs []*server) {
		var wg sync.WaitGroup
		s := virtualStore(t, "j", srvs, &wg, faults{slow: 30})
		for i := range uint64(1000) {
			op := upstream.Op{Kind: cache.OpTry, Token: i + 1, TTL: 10 * time.Second}
			r, _ := ask(t, s, op)
			op.Kind = cache.OpRelease
			if r.Status != cache.Granted { // three nodes were slower than the timeout
				time.Sleep(time.Second)
				r, _ = ask(t, s, op)
				continue
			}
			if r, _ = ask(t, s, op); r.Status != cache.Done && r.Status != cache.Unknown {
				t.Fatalf("%d: it is %v (%v)", i, r.Status, r.Err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}

func TestALeaseSurvivesTheRestartOfEveryNodeOneByOne(t *testing.T) {
	virtual(t, 3, func(t *testing.T, s *redlock.Store, srvs []*server) {
		op := upstream.Op{Kind: cache.OpTry, Token: 1, TTL: 10 * time.Second}
		r, _ := ask(t, s, op)
		wantStatus(t, r, cache.Granted)
		base := r.Base
		op.Kind, op.Floor = cache.OpRenew, base
		for _, srv := range srvs {
			srv.restart(20 * time.Second)
			for range 10 {
				time.Sleep(3 * time.Second)
				r, _ = ask(t, s, op)
				wantStatus(t, r, cache.Done)
			}
		}
		var wg sync.WaitGroup
		other := virtualStore(t, "j", srvs, &wg)
		r, _ = ask(t, other, upstream.Op{Kind: cache.OpTry, Token: 1, TTL: time.Second})
		wantStatus(t, r, cache.Busy)
		op.Kind = cache.OpRelease
		r, _ = ask(t, s, op)
		wantStatus(t, r, cache.Done)
		time.Sleep(time.Second)
		r, _ = ask(t, other, upstream.Op{Kind: cache.OpTry, Token: 2, TTL: time.Second})
		wantStatus(t, r, cache.Granted)
		if r.Base <= base {
			t.Errorf("base %d after %d", r.Base, base)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}
