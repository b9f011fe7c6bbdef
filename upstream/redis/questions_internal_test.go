package redis

import (
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// A host gets far more questions than it can answer, while the server does not accept messages.
// Hints, on which waiters depend, are not lost because of that, and are sent first.
func TestQuestionsDoNotCrowdOutHints(t *testing.T) {
	s := &Store{cfg: Config{Prefix: "lock:"}, hintQueue: make(chan string, hintBuffer),
		messageQueue: make(chan string, 2*maxAnswers)}
	s.Answer(func(_ string, _ cache.Mode, tokens []uint64) []int64 {
		return make([]int64, len(tokens))
	})
	asker := upstream.NewInstance()
	for i := range 10 * hintBuffer {
		s.receiveMessage(questionMark + asker + " " + fmt.Sprint(i) + " l,1 lock:k")
	}
	if len(s.messageQueue) == 0 || len(s.messageQueue) == cap(s.messageQueue) {
		t.Errorf("%d answers wait, which leaves no room for questions, or is none", len(s.messageQueue))
	}
	for range hintBuffer {
		s.sendHints(asker + " fk")
	}
	if n := len(s.hintQueue); n != hintBuffer {
		t.Errorf("%d hints of %d wait to be sent", n, hintBuffer)
	}
	for n := 1; n <= hintBuffer; n++ {
		if m, ok := s.nextMessage(n); !ok || m != asker+" fk" {
			t.Fatalf("message %d is %q", n, m)
		}
	}
	if m, ok := s.nextMessage(hintBuffer + 1); ok {
		t.Errorf("one more in the same batch: %q", m)
	}
	answers := 1
	for ; ; answers++ {
		if _, ok := s.nextMessage(answers); !ok {
			break
		}
	}
	if answers != maxMessages {
		t.Errorf("%d answers in one batch", answers)
	}
}

// The successor of a daemon has the same instance id, and receives the answers to questions of its
// predecessor.
func TestAnAnswerToThePredecessorIsNotTakenForOneToTheSuccessor(t *testing.T) {
	question := func() []*upstream.Question { return []*upstream.Question{{Daemon: upstream.NewInstance()}} }
	var predecessor, successor questions
	_, number, _ := predecessor.begin(question())
	_, _, answers := successor.begin(question())
	successor.deliver(fmt.Sprint(number, " 5000"))
	if len(answers[0]) != 0 {
		t.Error("the answer is taken")
	}
}
