package embedded_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

func TestGrantsWaitForTheStatedValidityOfBefore(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		r := m.killed()
		m.pass(3 * time.Second)
		s := m.start()
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpPeek} {
			r := s.do(kind, "other", 1)
			s.want(r, cache.Refused)
			if !strings.Contains(r.Err.Error(), "7.0 s left") {
				t.Errorf("%v: the reason is %v", kind, r.Err)
			}
		}
		if _, ok := s.inline(cache.OpTry, "k", 1); !ok {
			t.Error("a refusal takes I/O")
		}
		q := s.do(cache.OpJoin, "k", 2)
		s.want(q, cache.Queued)
		if q.Left != int64(7*time.Second) {
			t.Errorf("there are %d ns left", q.Left)
		}
		s.want(s.do(cache.OpRenew, "k", 1), cache.NotHeld)
		s.want(s.do(cache.OpRelease, "k", 1), cache.NotHeld)
		// A restart before the end of the wait does not change the end.
		m.pass(time.Second)
		s.close()
		s = m.start()
		m.boot.Store(r.Session - 1)
		s.want(s.do(cache.OpTry, "k", 2), cache.Refused)
		m.boot.Store(r.Session)
		s.want(s.do(cache.OpTry, "k", 2), cache.Granted)
	})
}

func TestAShorterSessionDoesNotShortenTheWait(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		r := m.killed() // with a session of ten seconds
		opts := m.options()
		opts.Session = time.Second
		for range 3 {
			s, err := embedded.Open(opts)
			if err != nil {
				t.Fatal(err)
			}
			st := &store{T: t, Store: s}
			m.boot.Store(r.Session - 1)
			st.want(st.do(cache.OpTry, "k", 1), cache.Refused)
			st.close()
			m.boot.Store(r.Session - int64(8*time.Second))
		}
	})
}

func TestNothingIsWaitedForWhenNothingWasHeld(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		tok, _ := s.take("k")
		s.want(s.do(cache.OpRelease, "k", tok), cache.Done)
		s.close()
		if st := readState(t, m.path); st.Until != 0 {
			t.Errorf("the file says %+v", st)
		}
		m.start().take("k")
	})
}

func TestCloseWhileHeldKeepsTheDeadline(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		_, r := s.take("k")
		s.close()
		if st := readState(t, m.path); st.Until != r.Session {
			t.Errorf("the file says %+v, the lease %d", st, r.Session)
		}
		s = m.start()
		s.want(s.do(cache.OpTry, "k", 1), cache.Refused)
	})
}

func TestAnotherBootOwesNothing(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		r := m.killed()
		m.id = "boot two"
		m.boot.Store(int64(time.Minute)) // its clock begins anew
		s := m.start()
		_, next := s.take("k")
		if next.Base <= r.Base {
			t.Errorf("base %d after %d", next.Base, r.Base)
		}
		if st := readState(t, m.path); st.Boot != "boot two" || st.Until != next.Session {
			t.Errorf("the file says %+v", st)
		}
	})
}

func TestADeadlineOfAnotherClockIsWaitedForOneTTLAtMost(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		m.killed()
		m.boot.Store(1) // the same boot, but a clock that begins anew: another time namespace
		s := m.start()
		m.boot.Store(int64(10 * time.Second))
		s.want(s.do(cache.OpTry, "k", 1), cache.Refused)
		m.boot.Add(2)
		s.want(s.do(cache.OpTry, "k", 1), cache.Granted)
	})
}

func TestBasesRiseAcrossRestartsAndSteppingClocks(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		var last uint64
		for round := range 6 {
			s := m.start()
			m.pass(time.Minute)
			for i := range 100 {
				tok, r := s.take("k")
				if r.Base <= last || r.Base >= readState(t, m.path).Limit {
					t.Fatalf("round %d: base %d after %d with limit %d", round, r.Base, last,
						readState(t, m.path).Limit)
				}
				last = r.Base
				s.want(s.do(cache.OpRelease, "k", tok), cache.Done)
				if i == 50 {
					m.wall.Add(-int64(24 * time.Hour)) // set back
				}
			}
			m.wall.Add(-int64(time.Hour))
			if round%2 == 0 {
				s.close()
			}
		}
	})
}

func TestBasesAreNotAheadOfTheClockAfterACrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state")
		begin := time.Now()
		start := func() *store {
			s, err := embedded.Open(embedded.Options{Path: path, Session: 9 * time.Second,
				Clock: func() int64 { return int64(time.Since(begin)) + 1 }})
			if err != nil {
				t.Fatal(err)
			}
			return &store{T: t, Store: s}
		}
		// restart returns another store on the file as it is now.
		restart := func(s *store) *store {
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			s.close()
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			return start()
		}
		s, last := start(), uint64(0)
		for _, held := range []bool{true, false, true, true, false, false} {
			tok, r := s.take("k")
			if ahead := int64(r.Base) - time.Now().UnixMicro(); ahead > 1 || r.Base <= last {
				t.Errorf("base %d after %d is %d µs ahead of the clock", r.Base, last, ahead)
			}
			last = r.Base
			if !held {
				s.want(s.do(cache.OpRelease, "k", tok), cache.Done)
				time.Sleep(4 * time.Second) // the session ends
			}
			until := readState(t, path).Until
			s = restart(s)
			time.Sleep(max(0, time.Duration(until)-time.Since(begin)))
		}
		s.close()
	})
}

func TestAFileThatCannotBeWrittenRefusesGrantsAndNothingElse(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		s := m.start()
		tok, r := s.take("k")
		// A directory replaces the file, because not even root can rename a file over it.
		if err := errors.Join(os.Remove(m.path), os.MkdirAll(filepath.Join(m.path, "x"),
			0o700)); err != nil {
			t.Fatal(err)
		}
		s.want(s.do(cache.OpTry, "l", 1), cache.Granted) // the session still goes
		m.pass(8 * time.Second)
		got := s.do(cache.OpTry, "m", 1)
		s.want(got, cache.Refused)
		if !strings.Contains(got.Err.Error(), m.path) {
			t.Errorf("the reason is %v", got.Err)
		}
		s.want(s.do(cache.OpRenew, "k", tok), cache.Refused)
		m.boot.Store(r.Session)
		s.want(s.do(cache.OpTry, "k", 2), cache.Refused)
		s.want(s.do(cache.OpRelease, "k", tok), cache.NotHeld)
		s.want(s.do(cache.OpWithdraw, "l", 1), cache.Done)
		if err := os.RemoveAll(m.path); err != nil {
			t.Fatal(err)
		}
		s.take("k")
	})
}

func TestAFileThatMakesNoSenseIsNotIgnored(t *testing.T) {
	for name, text := range map[string]string{
		"empty":                  "",
		"cut":                    `{"format":1,"boot":"boot one","un`,
		"not JSON":               "until: 5\n",
		"of a later day":         `{"format":2,"boot":"boot one","until":0,"ttl":1,"limit":1,"program":"locksidecar"}`,
		"with more fields":       `{"format":1,"boot":"boot one","until":0,"ttl":1,"limit":1,"program":"locksidecar","x":1}`,
		"twice":                  `{"format":1,"boot":"b","until":0,"ttl":1,"limit":1}{"format":1}`,
		"negative":               `{"format":1,"boot":"b","until":-1,"ttl":1,"limit":1}`,
		"without a ttl":          `{"format":1,"boot":"b","until":7,"ttl":0,"limit":1}`,
		"with a limit too large": `{"format":1,"boot":"b","until":7,"ttl":1,"limit":9007199254740993}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			if err := os.WriteFile(m.path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := embedded.Open(m.options())
			if !errors.Is(err, embedded.ErrState) || !strings.Contains(err.Error(), m.path) {
				t.Errorf("opening it: %v", err)
			}
			if b, _ := os.ReadFile(m.path); string(b) != text {
				t.Error("it was written over")
			}
		})
	}
}

func TestAnUnusablePathFailsAtOnce(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		m.path = filepath.Join(t.TempDir(), "nowhere", "state")
		if _, err := embedded.Open(m.options()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("opening it: %v", err)
		}
		m.path = t.TempDir()
		if _, err := embedded.Open(m.options()); err == nil {
			t.Error("a directory is accepted")
		}
	})
}

func TestTheEndOfTheWaitHintsWhoQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state")
		begin := time.Now()
		opts := embedded.Options{Path: path, Session: 9 * time.Second, Clock: func() int64 {
			return int64(time.Since(begin)) + 1
		}}
		before, err := embedded.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		st := &store{T: t, Store: before}
		st.take("k")
		st.close() // while it is held
		s, err := embedded.Open(opts)
		if err != nil {
			t.Fatal(err)
		}
		st = &store{T: t, Store: s}
		st.want(st.do(cache.OpJoin, "k", 1), cache.Queued)
		if h := <-s.Hints(); h != (upstream.Hint{Kind: cache.HintAvailable, Key: "k"}) {
			t.Errorf("the hint is %v", h)
		}
		if d := time.Since(begin); d != 9*time.Second {
			t.Errorf("it comes after %v", d)
		}
		st.want(st.do(cache.OpJoin, "k", 1), cache.Granted)
		st.close()
	})
}

// A takeover may begin while the store's wait after a restart ends. The race detector checks it.
func TestLeavingBesideTheEndOfTheWait(t *testing.T) {
	onMachine(t, func(t *testing.T, m *machine) {
		m.killed()
		s := m.start()
		for i := range uint64(100) {
			s.want(s.do(cache.OpJoin, fmt.Sprint("k", i), 2+i), cache.Queued)
		}
		m.pass(time.Minute)
		for range 20 { // the wait ends meanwhile
			time.Sleep(time.Second)
			if _, err := s.Leave(); err != nil {
				t.Fatal(err)
			}
			s.Stay()
		}
	})
}
