package upstream

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

func TestAQuestionAndItsAnswerSurviveTheirTexts(t *testing.T) {
	for _, mode := range []cache.Mode{cache.Exclusive, cache.Permit} {
		locks := []Lock{
			{Daemon: "a", Token: 36}, {Daemon: "b", Token: 1<<64 - 1}, {Daemon: "a", Token: 2},
			{Daemon: "c"}, {Daemon: "d", Token: 1, Mine: true}, {Holder: "someone", Foreign: true, Token: 1},
		}
		qs := Questions("lock:k ü,", mode, locks)
		if len(qs) != 2 || qs[0].Daemon != "a" || qs[1].Daemon != "b" {
			t.Fatalf("%+v", qs)
		}
		q, ok := ParseQuestion(qs[0].Encode())
		if !ok || q.Key != "lock:k ü," || q.Mode != mode || !slices.Equal(q.Tokens, []uint64{36, 2}) {
			t.Errorf("%+v, %v", q, ok)
		}
		qs[0].Learn(EncodeAnswer([]int64{int64(12 * time.Second), 0}))
		qs[1].Learn(EncodeAnswer([]int64{-7}))
		for i, l := range locks {
			if want := []int64{int64(12 * time.Second), 0, 0, 0, 0, 0}[i]; l.Held != want {
				t.Errorf("lock %d has been held for %d, want %d", i, l.Held, want)
			}
		}
	}
}

// Anybody who can write to the store can send any text.
func TestHostileQuestionsAndAnswers(t *testing.T) {
	for _, text := range []string{"", " ", "l", "l k", "l, k", "x,1 k", "l,1", "l,1 ", "l,-1 k", "l,ÿ k", "l,1,,2 k",
		"l,10000000000000000 k", "l" + strings.Repeat(",1", tokensMost+1) + " k"} {
		if q, ok := ParseQuestion(text); ok {
			t.Errorf("%q is %+v", text, q)
		}
	}
	for _, text := range []string{"", ",", "-1,5", "5", "5,6,7", "99999999999999999999,5", "9223372036854775807,5", "a,5", "1e3,5"} {
		locks := []Lock{{Daemon: "a", Token: 1}, {Daemon: "a", Token: 2}}
		Questions("k", cache.Exclusive, locks)[0].Learn(text)
		if l := locks[0]; l.Held != 0 {
			t.Errorf("%q: held for %d", text, l.Held)
		}
	}
}

func TestADaemonThatDoesNotAnswerIsNotAskedForAWhile(t *testing.T) {
	var m Mutes
	now := time.Now()
	qs := func() []*Question { return []*Question{{Daemon: "a"}, {Daemon: "b"}} }
	if got := m.Without(qs(), now); len(got) != 2 {
		t.Errorf("%d", len(got))
	}
	m.Add(qs()[:1], now)
	if got := m.Without(qs(), now.Add(muteTime-1)); len(got) != 1 || got[0].Daemon != "b" {
		t.Errorf("%+v", got)
	}
	if got := m.Without(qs(), now.Add(muteTime)); len(got) != 2 {
		t.Errorf("%d", len(got))
	}
}
