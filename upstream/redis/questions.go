package redis

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/upstream"
)

// A daemon asks another daemon how long it has held a key, by a message on the other daemon's hint
// channel. The reply comes on its own hint channel. Older daemons ignore such
// messages.
const (
	questionMark = "A" // INSTANCE, a space, a number, a space, upstream.Question
	answerMark   = "a" // that number, a space, upstream.EncodeAnswer

	// maxAnswers is how many answers, and how many questions, may wait to be sent. Further ones are
	// dropped.
	maxAnswers = 2 * upstream.MaxQuestions
)

// questions are the questions of this Store that wait for answers.
type questions struct {
	mu sync.Mutex
	// last is the number of the newest question; guarded by mu, as are the fields below.
	last    uint64
	waiting map[uint64]chan<- string // by number; each has room for the answer
	mutes   upstream.Mutes
}

// Answer makes f answer other daemons.
func (s *Store) Answer(f upstream.HeldFor) { s.heldFor.Store(&f) }

// Ask sends the questions as messages, and receives the answers on the channel for hints.
func (s *Store) Ask(ctx context.Context, qs []*upstream.Question) {
	if !s.listening.Load() {
		return // the answers would be lost, and the daemons would count as silent
	}
	qs, first, answers := s.questions.begin(qs[:min(len(qs), upstream.MaxQuestions)])
	if len(qs) == 0 {
		return
	}
	for i, q := range qs {
		s.sendMessage(q.Daemon + " " + questionMark + s.instance + " " +
			strconv.FormatUint(first+uint64(i), 10) + " " + q.Encode(s.cfg.Prefix))
	}
	limit, cancel := context.WithTimeout(ctx, upstream.AnswerTime)
	defer cancel()
	for i, q := range qs {
		select {
		case text := <-answers[i]:
			q.Learn(text)
			continue
		case <-limit.Done():
		}
		select {
		case text := <-answers[i]:
			q.Learn(text)
		default:
		}
	}
	// If ctx has ended, the daemons had less time to answer than they are allowed.
	s.questions.forget(first, qs, ctx.Err() == nil)
}

// begin numbers the questions from first on. It leaves out questions to muted daemons.
func (a *questions) begin(
	all []*upstream.Question,
) (qs []*upstream.Question, first uint64, answers []chan string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting, a.last = map[uint64]chan<- string{}, upstream.FirstQuestion()
	}
	qs, first = a.mutes.Without(all, time.Now()), a.last+1
	for range qs {
		c := make(chan string, 1)
		a.last++
		a.waiting[a.last] = c
		answers = append(answers, c)
	}
	return qs, first, answers
}

// forget removes the questions. If judge is true, it remembers the daemons that have not answered.
func (a *questions) forget(first uint64, qs []*upstream.Question, judge bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range qs {
		delete(a.waiting, first+uint64(i))
	}
	if judge {
		a.mutes.Add(qs, time.Now())
	}
}

// deliver passes an answer to its question. It drops a late one, because its question is gone.
func (a *questions) deliver(text string) {
	number, text, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case a.waiting[n] <- text: // a nil channel is never ready
	default:
	}
}

// answerQuestion answers a question of another daemon.
func (s *Store) answerQuestion(text string) {
	instance, text, _ := strings.Cut(text, " ")
	number, text, _ := strings.Cut(text, " ")
	_, err := strconv.ParseUint(number, 10, 64)
	q, ok := upstream.ParseQuestion(text)
	f := s.heldFor.Load()
	if err != nil || !ok || f == nil || !upstream.ValidInstance(instance) ||
		len(s.messageQueue) >= maxAnswers {
		return
	}
	if q.Key, ok = strings.CutPrefix(q.Key, s.cfg.Prefix); ok {
		s.sendMessage(instance + " " + answerMark + number + " " + upstream.EncodeAnswer((*f)(q.Key,
			q.Mode, q.Tokens)))
	}
}
