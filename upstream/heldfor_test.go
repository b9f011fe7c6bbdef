package upstream

import (
	"context"
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
		qs := Questions(nil, "k ü,", mode, locks)
		if len(qs) != 2 || qs[0].Daemon != "a" || qs[1].Daemon != "b" {
			t.Fatalf("%+v", qs)
		}
		q, ok := ParseQuestion(qs[0].Encode("lock:"))
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

// Any client that can write to the store can send any text.
func TestHostileQuestionsAndAnswers(t *testing.T) {
	for _, text := range []string{"", " ", "l", "l k", "l, k", "x,1 k", "l,1", "l,1 ", "l,-1 k",
		"l,ÿ k", "l,1,,2 k",
		"l,10000000000000000 k", "l" + strings.Repeat(",1", maxTokens+1) + " k"} {
		if q, ok := ParseQuestion(text); ok {
			t.Errorf("%q is %+v", text, q)
		}
	}
	for _, text := range []string{"", ",", "-1,5", "5", "5,6,7", "99999999999999999999,5",
		"9223372036854775807,5", "a,5", "1e3,5"} {
		locks := []Lock{{Daemon: "a", Token: 1}, {Daemon: "a", Token: 2}}
		Questions(nil, "k", cache.Exclusive, locks)[0].Learn(text)
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
	some := append(qs(), &Question{Daemon: "b"})
	some[2].Learn("5") // a busy daemon may answer one of two questions in time
	m.Add(some, now)
	all := qs()
	if got := m.Without(all, now.Add(muteTime-1)); len(got) != 1 || got[0].Daemon != "b" ||
		all[0] == nil || all[1] == nil {
		t.Errorf("%+v", got)
	}
	if got := m.Without(qs(), now.Add(muteTime)); len(got) != 2 {
		t.Errorf("%d", len(got))
	}
}

// lateAsker gets the answer long before Ask returns.
type lateAsker struct{ took time.Duration }

func (a *lateAsker) Ask(_ context.Context, qs []*Question) {
	qs[0].Learn("1000")
	begin := time.Now()
	for a.took < 20*time.Millisecond {
		a.took = time.Since(begin)
	}
}

func TestTheTimeHeldIsRightWhenAllAnswersAreThere(t *testing.T) {
	a := &lateAsker{}
	asked := []Asked{
		{Key: "k", Locks: []Lock{{Daemon: "a", Token: 1, Asker: a}, {Daemon: "b", Token: 2}}},
		{Key: "l", Locks: []Lock{{Daemon: "b", Token: 3, Asker: a}}},
	}
	begin := time.Now()
	Ask(t.Context(), asked)
	if held := time.Duration(asked[0].Locks[0].Held); held < time.Second+a.took ||
		held > time.Second+time.Since(begin) {
		t.Errorf("held for %v, of which the others' answers took %v", held, a.took)
	}
	if asked[0].Locks[1].Held != 0 || asked[1].Locks[0].Held != 0 {
		t.Errorf("a time that nobody has told: %+v", asked)
	}
}

func TestTheAnswerToACloneIsMerged(t *testing.T) {
	locks := []Lock{{Daemon: "a", Token: 1}, {Daemon: "a", Token: 2}}
	q := Questions(nil, "k", cache.Exclusive, locks)[0]
	silent, answered := q.Clone(), q.Clone()
	answered.Learn("1000,0")
	now := time.Now()
	q.Merge(silent, now)
	if q.Answered() {
		t.Error("a clone without an answer has answered")
	}
	q.Merge(answered, now)
	if held := time.Duration(locks[0].Held); !q.Answered() || held < time.Second ||
		locks[1].Held != 0 {
		t.Errorf("%+v", locks)
	}
}
