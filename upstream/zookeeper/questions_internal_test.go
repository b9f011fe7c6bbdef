package zookeeper

import (
	"context"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// asking opens n stores. The first one answers questions.
func asking(t *testing.T, srv *testserver.ZooKeeper, n int) (ss []*Store) {
	t.Helper()
	cfg, err := Parse(srv.URL() + "?session=30s&timeout=10s")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	cfg.Clock = func() int64 { return int64(time.Since(start)) }
	for range n {
		s, err := Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		ss = append(ss, s)
	}
	ss[0].Answer(func(_ string, _ cache.Mode, tokens []uint64) []int64 {
		held := make([]int64, len(tokens))
		for i := range held {
			held[i] = int64(time.Second)
		}
		return held
	})
	ss[0].current().watchQuestions()
	return ss
}

// askOf asks the daemon of s once, and reports whether it has answered.
func askOf(t *testing.T, by, s *Store) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), upstream.AnswerTime)
	defer cancel()
	locks := []upstream.Lock{{Daemon: sessionName(s.current().id), Token: 1}}
	return by.current().askOne(ctx, upstream.Questions(nil, "k", cache.Exclusive, locks)[0])
}

func soonAnswered(t *testing.T, by, s *Store) bool {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if askOf(t, by, s) {
			return true
		}
	}
	return false
}

// A server that is stopped for a moment creates the node of a question after its daemon has given
// up.
func TestAQuestionThatIsGivenUpStandsInNobodysWay(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	ss := asking(t, srv, 3)
	if !soonAnswered(t, ss[1], ss[0]) {
		t.Fatal("it does not answer at all")
	}
	srv.Pause()
	if askOf(t, ss[1], ss[0]) {
		t.Error("answered by a server that stands still")
	}
	srv.Resume()
	if !soonAnswered(t, ss[2], ss[0]) {
		data, stat, err := srv.Admin().Get(ss[0].askPath(sessionName(ss[0].current().id)))
		t.Errorf("another daemon gets no answer: %q, of session %x, which is the first asker's (%x), %v",
			data, stat.EphemeralOwner, ss[1].current().id, err)
	}
	if !soonAnswered(t, ss[1], ss[0]) {
		t.Error("the same daemon gets no answer")
	}
}

// A question arrives while the daemon asks nothing of its server because an answer is overdue.
func TestAnOverdueAnswerDoesNotEndTheWatchForQuestions(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	ss := asking(t, srv, 2)
	if !soonAnswered(t, ss[1], ss[0]) {
		t.Fatal("it does not answer at all")
	}
	se := ss[0].current()
	se.overdue.Store(true)
	_ = askOf(t, ss[1], ss[0])
	if _, err := call(t.Context(), se, false, func(c *zk.Conn) (any, error) { return nil, nil }); err != nil {
		t.Log("nothing is asked:", err)
	}
	se.overdue.Store(false) // as with any answer
	ss[0].wakeWatch()       // as with any change of a lock that it holds
	if !soonAnswered(t, ss[1], ss[0]) {
		t.Error("it never answers again")
	}
}

// The daemons of a semaphore's first permits are silent. The daemon of the last permit is still
// asked.
func TestSilentDaemonsDoNotTakeTheTimeOfOthers(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	ss := asking(t, srv, 2)
	if !soonAnswered(t, ss[1], ss[0]) {
		t.Fatal("it does not answer at all")
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); { // a busy machine is late
		var locks []upstream.Lock
		for i := range 33 {
			locks = append(locks, upstream.Lock{Daemon: sessionName(int64(i + 1)), Token: 1})
		}
		locks = append(locks, upstream.Lock{Daemon: sessionName(ss[0].current().id), Token: 1})
		ss[1].asks.mutes = nil // as after 5 s
		ss[1].Ask(t.Context(), upstream.Questions(nil, "k", cache.Permit, locks))
		if locks[33].Held != 0 {
			return
		}
	}
	t.Error("it is never asked")
}
