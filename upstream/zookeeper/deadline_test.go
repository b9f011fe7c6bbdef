package zookeeper

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// This test checks the rules of doc.go, "The session's deadline", with the test's own clock.
func TestTheDeadlineMovesOnlyWithWhatTheLeaderMustKnow(t *testing.T) {
	var now int64
	const ms = int64(time.Millisecond)
	s := bareStore(t)
	s.clock = func() int64 { return now }
	first := &wire{sent: 1000 * ms}
	se := &session{store: s, no: 1, ttl: 4 * time.Second, wire: first, ready: true}
	want := func(what string, base int64) {
		t.Helper()
		if until := cache.LeaseDeadline(base*ms, int64(4*time.Second)); base != 0 && se.until != until ||
			base == 0 && se.until != 0 {
			t.Errorf("%s: the deadline is %d ms, not that of %d ms", what, se.until/ms, base)
		}
	}
	ask := func(w *wire, sent, answered int64, quorum bool) {
		now = answered * ms
		se.answered(w, sent*ms, quorum)
	}
	ask(first, 1050, 1060, false)
	want("a read confirms nothing", 0)
	ask(first, 1100, 1150, true)
	want("the first transaction confirms the connecting", 1000)
	ask(first, 1200, 1250, true)
	want("one too soon after confirms no more", 1000)
	ask(first, 2100, 2110, false)
	want("a read confirms nothing", 1000)
	ask(first, 2249, 2260, true)
	want("a second after its answer, a transaction has reached the leader", 1100)
	ask(first, 3100, 3110, false)
	ask(first, 3300, 3310, true)
	want("so has a read", 2249)
	ask(first, 3200, 3320, true)
	want("it never goes back", 2249)

	second := &wire{sent: 4000 * ms}
	se.wire = second
	ask(first, 9000, 9010, true)
	want("an answer on an earlier connection counts for nothing", 2249)
	ask(second, 4100, 4110, false)
	want("connecting anew confirms nothing", 2249)
	ask(second, 4200, 4210, true)
	want("until a transaction has gone through", 4000)
	if !second.confirmed.Load() {
		t.Error("the connection is not confirmed")
	}
	se.over = true
	ask(second, 9000, 9010, true)
	want("what is over stays over", 4000)
	if n := <-s.news; n.No != 1 || n.Until != se.until || n.Lost {
		t.Errorf("the news is %+v", n)
	}
}

func TestTouchesStayFew(t *testing.T) {
	w := &wire{}
	for i := range int64(100_000) {
		w.addExchange(exchange{i, i}, 1000)
	}
	if len(w.exchanges) > 130 {
		t.Errorf("there are %d", len(w.exchanges))
	}
}

// bareStore returns a Store without goroutines and servers.
func bareStore(t *testing.T) *Store {
	t.Helper()
	var cfg Config
	if err := cfg.Complete(); err != nil {
		t.Fatal(err)
	}
	return newStore(cfg)
}
