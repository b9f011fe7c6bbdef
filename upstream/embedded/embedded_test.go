package embedded_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// machine has the clocks of a machine, which a test moves.
type machine struct {
	*testing.T
	path       string
	boot, wall atomic.Int64 // ns
	id         string
}

// onMachine runs a test in a bubble, so that the store's goroutine has done its work whenever the
// test continues. The machine's clocks stop unless the test moves them.
func onMachine(t *testing.T, run func(*testing.T, *machine)) {
	synctest.Test(t, func(t *testing.T) { run(t, newMachine(t)) })
}

func newMachine(t *testing.T) *machine {
	m := &machine{T: t, path: filepath.Join(t.TempDir(), "state"), id: "boot one"}
	m.boot.Store(int64(time.Hour))
	m.wall.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano())
	return m
}

func (m *machine) pass(d time.Duration) {
	m.boot.Add(int64(d))
	m.wall.Add(int64(d))
}

func (m *machine) options() embedded.Options {
	return embedded.Options{Path: m.path, Session: 10 * time.Second, Boot: m.id, Clock: m.boot.Load,
		Wall: func() time.Time { return time.Unix(0, m.wall.Load()) }}
}

// start opens the store.
func (m *machine) start() *store {
	m.Helper()
	s, err := embedded.Open(m.options())
	if err != nil {
		m.Fatal(err)
	}
	st := &store{T: m.T, Store: s}
	m.Cleanup(st.close)
	return st
}

// killed starts a store and ends it while "k" is held. The file is the same after a kill and after
// a close, as TestCloseWhileHeldKeepsTheDeadline shows.
func (m *machine) killed() cache.Result {
	m.Helper()
	s := m.start()
	_, r := s.take("k")
	s.close()
	return r
}

type state struct {
	Format int    `json:"format"`
	Boot   string `json:"boot"`
	Until  int64  `json:"until"`
	TTL    int64  `json:"ttl"`
	Limit  uint64 `json:"limit"`
}

func readState(t testing.TB, path string) (st state) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

type store struct {
	*testing.T
	*embedded.Store
	last   uint64
	closed bool
}

func (s *store) close() {
	if !s.closed {
		s.closed = true
		if err := s.Close(); err != nil {
			s.Error(err)
		}
	}
}

func (s *store) do(kind cache.OpKind, key string, token uint64) cache.Result {
	res := make([]cache.Result, 1)
	_ = s.Apply(s.Context(), []upstream.Op{{Kind: kind, Key: key, Token: token, TTL: time.Minute}},
		res)
	synctest.Wait()
	return res[0]
}

func (s *store) inline(kind cache.OpKind, key string, token uint64) (cache.Result, bool) {
	var res cache.Result
	ok := s.ApplyInline(&upstream.Op{Kind: kind, Key: key, Token: token, TTL: time.Minute}, &res)
	return res, ok
}

func (s *store) want(r cache.Result, st cache.Status) {
	s.Helper()
	if r.Status != st {
		s.Fatalf("it is %v (error %v), not %v", r.Status, r.Err, st)
	}
}

func (s *store) take(key string) (token uint64, r cache.Result) {
	s.Helper()
	s.last++
	r = s.do(cache.OpTry, key, s.last)
	s.want(r, cache.Granted)
	return s.last, r
}

func TestBasesFollowTheClockPastTheirLimit(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		s.take("k")
		for range 5 {
			m.wall.Add(int64(time.Minute))
			tok, r := s.take("l")
			if st := readState(t, m.path); r.Base >= st.Limit || r.Base < uint64(m.wall.Load()/1000) {
				t.Errorf("base %d, limit %d, clock %d µs", r.Base, st.Limit, m.wall.Load()/1000)
			}
			s.want(s.do(cache.OpRelease, "l", tok), cache.Done)
		}
	})
}

func TestTheFileHasADeadlineBeforeAnybodyHearsOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state")
		begin := time.Now()
		s, err := embedded.Open(embedded.Options{Path: path, Session: 9 * time.Second,
			Clock: func() int64 { return int64(time.Since(begin)) + 1 }})
		if err != nil {
			t.Fatal(err)
		}
		st := &store{T: t, Store: s}
		st.take("k")
		var last int64
		for range 20 {
			news := <-s.Sessions()
			if at := readState(t, path); at.Until < news.Until || news.Until <= last || news.Lost {
				t.Fatalf("heard of %+v after %d, the file says %+v", news, last, at)
			}
			last = news.Until
		}
		if passed := time.Since(begin); passed != 19*3*time.Second {
			t.Errorf("20 deadlines took %v, not a third of the TTL each", passed)
		}
		st.close()
	})
}

func TestIdleStoreTakesItsDeadlineBackAndSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state")
		begin := time.Now()
		s, err := embedded.Open(embedded.Options{Path: path, Session: 9 * time.Second,
			Clock: func() int64 { return int64(time.Since(begin)) + 1 }})
		if err != nil {
			t.Fatal(err)
		}
		st := &store{T: t, Store: s}
		for range 3 {
			tok, _ := st.take("k")
			time.Sleep(20 * time.Second)
			if at := readState(t, path); at.Until <= int64(time.Since(begin)) {
				t.Errorf("held, the file says %+v", at)
			}
			st.want(st.do(cache.OpRelease, "k", tok), cache.Done)
			time.Sleep(4 * time.Second)
			if at := readState(t, path); at.Until != 0 {
				t.Errorf("idle, the file says %+v", at)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Error("idle, it writes")
			}
		}
		st.close()
	})
}

func TestInlineDoesNoIO(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		if _, ok := s.inline(cache.OpTry, "k", 1); ok {
			t.Error("the first grant is given before the file says so")
		}
		s.take("k")
		if err := os.Remove(m.path); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			kind cache.OpKind
			key  string
			want cache.Status
		}{{cache.OpTry, "l", cache.Granted}, {cache.OpTry, "k", cache.Granted},
			{cache.OpRenew, "l", cache.Done}, {cache.OpDowngrade, "l", cache.Done},
			{cache.OpPeek, "l", cache.Busy}, {cache.OpRelease, "l", cache.Done},
			{cache.OpRelease, "l", cache.NotHeld},
			{cache.OpJoin, "m", cache.Granted}, {cache.OpWithdraw, "m", cache.Done}} {
			r, ok := s.inline(c.kind, c.key, 1)
			if !ok {
				t.Errorf("%v of %s takes I/O", c.kind, c.key)
			}
			s.want(r, c.want)
		}
		// With little of the session left, or beyond the limit of bases, it needs I/O.
		m.wall.Add(int64(2 * time.Minute))
		if _, ok := s.inline(cache.OpTry, "n", 1); ok {
			t.Error("a base above the limit is given")
		}
		m.wall.Add(-int64(2 * time.Minute))
		m.boot.Add(int64(7 * time.Second))
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpRenew, cache.OpDowngrade} {
			if _, ok := s.inline(kind, "k", 1); ok {
				t.Errorf("%v is answered with little time left", kind)
			}
		}
		if _, err := os.Stat(m.path); !errors.Is(err, os.ErrNotExist) {
			t.Error("there was I/O")
		}
		s.want(s.do(cache.OpTry, "n", 1), cache.Granted)
	})
}

func TestASuspendedMachineHoldsNothingAfterwards(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		a, r := s.take("a")
		s.take("b")
		m.pass(time.Hour)
		s.want(s.do(cache.OpRelease, "b", 2), cache.NotHeld)
		s.want(s.do(cache.OpRenew, "a", a), cache.NotHeld)
		s.want(s.do(cache.OpPeek, "a", 0), cache.Done)
		_, next := s.take("a")
		if next.SessionNo <= r.SessionNo {
			t.Errorf("session %d follows session %d: an answer of the earlier one may still be on its way",
				next.SessionNo, r.SessionNo)
		}
		if next.Base <= r.Base || next.Session <= m.boot.Load() {
			t.Errorf("%+v after %+v", next, r)
		}
		s.want(s.do(cache.OpRelease, "a", a), cache.NotHeld)
	})
}

// When the session ends, semaphores without waiters are removed with their permits.
func TestExpiredSemaphoresAreForgotten(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		permit := func(kind cache.OpKind, key string, token uint64) cache.Status {
			res := make([]upstream.Result, 1)
			_ = s.Apply(t.Context(), []upstream.Op{{Kind: kind, Mode: cache.Permit, Key: key, Token: token,
				Limit: 1, TTL: time.Second}}, res)
			return res[0].Status
		}
		for i := range 100 {
			if st := permit(cache.OpTry, string(rune('A'+i)), 1); st != cache.Granted {
				t.Fatal(st)
			}
		}
		if st := permit(cache.OpJoin, "A", 2); st != cache.Queued {
			t.Fatal(st)
		}
		m.pass(time.Hour)
		s.take("k") // in a new session
		if n := s.Semaphores(); n != 1 {
			t.Errorf("%d semaphores are left; only one has a waiter", n)
		}
		if st := permit(cache.OpJoin, "A", 2); st != cache.Granted {
			t.Error(st)
		}
	})
}

func TestAReleaseHintsWhoQueues(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		tok, _ := s.take("k")
		s.want(s.do(cache.OpJoin, "k", 99), cache.Queued)
		s.want(s.do(cache.OpRelease, "k", tok), cache.Done)
		if h := <-s.Hints(); h != (upstream.Hint{Kind: cache.HintAvailable, Key: "k"}) {
			t.Errorf("the hint is %v", h)
		}
		s.want(s.do(cache.OpJoin, "k", 99), cache.Granted)
	})
}

// Sessions end and begin all the time here, so that a grant could pass its deadline.
func TestGrantsNeverOutliveWhatTheFileSays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	s, err := embedded.Open(embedded.Options{Path: path, Session: 10 * time.Millisecond, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	var inside [4]atomic.Int64 // the time until which a client may believe that it holds the key
	var tokens atomic.Uint64
	var granted atomic.Int64
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			for i := range 400 {
				k := (n + i) % len(inside)
				key := string(rune('a' + k))
				op := upstream.Op{Kind: cache.OpTry, Key: key, Token: tokens.Add(1), TTL: time.Second}
				res := make([]cache.Result, 1)
				if !s.ApplyInline(&op, &res[0]) {
					_ = s.Apply(t.Context(), []upstream.Op{op}, res)
				}
				if res[0].Status != cache.Granted || clock() >= res[0].Session {
					continue // busy, or granted too late to be used
				}
				granted.Add(1)
				if before := inside[k].Swap(res[0].Session); clock() < before {
					t.Errorf("%s is granted while it is held", key)
				}
				if i%5 == 0 {
					at := readState(t, path)
					if clock() < res[0].Session && at.Until < res[0].Session {
						t.Errorf("granted until %d, the file says %d", res[0].Session, at.Until)
					}
					if at.Limit <= res[0].Base {
						t.Errorf("granted base %d, the limit in the file is %d", res[0].Base, at.Limit)
					}
					time.Sleep(time.Millisecond)
				}
				inside[k].CompareAndSwap(res[0].Session, 0)
				op.Kind = cache.OpRelease
				if !s.ApplyInline(&op, &res[0]) {
					_ = s.Apply(t.Context(), []upstream.Op{op}, res)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() == 0 {
		t.Error("nothing was granted")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
