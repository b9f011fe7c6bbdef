package redis

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/upstream"
)

// A daemon asks another one for how long it has held a key by a message on the other one's channel for
// hints, and the other one answers on the first one's. Older daemons ignore such messages.
const (
	questionMark = "A" // INSTANCE, a space, a number, a space, upstream.Question
	answerMark   = "a" // that number, a space, upstream.EncodeAnswer

	// answersMost is how many answers, and questions, wait for their turn before a question stays unanswered.
	answersMost = 2 * upstream.QuestionsMost
)

var (
	_ upstream.Asker    = (*Store)(nil)
	_ upstream.Answerer = (*Store)(nil)
)

// asks are the questions of this Store that wait for their answers.
type asks struct {
	mu    sync.Mutex
	last  uint64                   // the number of the newest question; guarded by mu, as is all below
	open  map[uint64]chan<- string // by number; each has room for the answer
	mutes upstream.Mutes
}

// Answer makes f answer other daemons.
func (s *Store) Answer(f upstream.HeldFor) { s.heldFor.Store(&f) }

// Ask asks by messages, and hears the answers on the channel for hints.
func (s *Store) Ask(ctx context.Context, qs []*upstream.Question) {
	if !s.hearing.Load() {
		return // the answers would be lost, and the daemons that give them would be taken as silent
	}
	qs, first, answers := s.asks.begin(qs[:min(len(qs), upstream.QuestionsMost)])
	if len(qs) == 0 {
		return
	}
	for i, q := range qs {
		s.say(q.Daemon + " " + questionMark + s.instance + " " + strconv.FormatUint(first+uint64(i), 10) + " " + q.Encode(s.cfg.Prefix))
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
	s.asks.end(first, qs, ctx.Err() == nil) // otherwise they had less time than they may take
}

// begin gives the questions numbers from first on, without those to daemons that have not answered lately.
func (a *asks) begin(all []*upstream.Question) (qs []*upstream.Question, first uint64, answers []chan string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open == nil {
		a.open, a.last = map[uint64]chan<- string{}, upstream.FirstQuestion()
	}
	qs, first = a.mutes.Without(all, time.Now()), a.last+1
	for range qs {
		c := make(chan string, 1)
		a.last++
		a.open[a.last] = c
		answers = append(answers, c)
	}
	return qs, first, answers
}

// end forgets the questions. If judge is true, it remembers the daemons that have not answered.
func (a *asks) end(first uint64, qs []*upstream.Question, judge bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range qs {
		delete(a.open, first+uint64(i))
	}
	if judge {
		a.mutes.Add(qs, time.Now())
	}
}

// answered passes an answer on. A late one has no question any more.
func (a *asks) answered(text string) {
	number, text, _ := strings.Cut(text, " ")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case a.open[n] <- text: // a nil channel is never ready
	default:
	}
}

// asked answers a question of another daemon.
func (s *Store) asked(text string) {
	instance, text, _ := strings.Cut(text, " ")
	number, text, _ := strings.Cut(text, " ")
	_, err := strconv.ParseUint(number, 10, 64)
	q, ok := upstream.ParseQuestion(text)
	f := s.heldFor.Load()
	if err != nil || !ok || f == nil || !upstream.ValidInstance(instance) || len(s.talk) >= answersMost {
		return
	}
	if q.Key, ok = strings.CutPrefix(q.Key, s.cfg.Prefix); ok {
		s.say(instance + " " + answerMark + number + " " + upstream.EncodeAnswer((*f)(q.Key, q.Mode, q.Tokens)))
	}
}
