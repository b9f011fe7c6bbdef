package redis

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// A daemon asks another one for how long it has held a key by a message on the other one's channel for
// hints, and the other one answers on the first one's. Older daemons ignore such messages.
const (
	questionMark = "A" // INSTANCE, a space, a number, a space, upstream.Question
	answerMark   = "a" // that number, a space, upstream.EncodeAnswer
)

var _ upstream.Answerer = (*Store)(nil)

// asks are the questions of this Store that wait for their answers.
type asks struct {
	mu    sync.Mutex
	last  uint64                   // the number of the newest question; guarded by mu, as is all below
	open  map[uint64]chan<- string // by number; each has room for the answer
	mutes upstream.Mutes
}

// Answer makes f answer other daemons.
func (s *Store) Answer(f upstream.HeldFor) { s.heldFor.Store(&f) }

// askHolders sets Held of the locks of one key, as far as their holders' daemons answer. name is
// <prefix><key>.
func (s *Store) askHolders(ctx context.Context, name string, mode cache.Mode, locks []upstream.Lock) {
	if !s.hearing.Load() {
		return // the answers would be lost, and who gives them be taken as silent
	}
	qs := upstream.Questions(name, mode, locks)
	qs, first, answers := s.asks.begin(qs)
	if len(qs) == 0 {
		return
	}
	for i, q := range qs {
		s.tell(q.Daemon + " " + questionMark + s.instance + " " + strconv.FormatUint(first+uint64(i), 10) + " " + q.Encode())
	}
	limit, cancel := context.WithTimeout(ctx, upstream.AnswerTime)
	defer cancel()
	var silent []*upstream.Question
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
			silent = append(silent, q)
		}
	}
	if ctx.Err() != nil {
		silent = nil // they had less time than they may take
	}
	s.asks.end(first, len(qs), silent)
}

// begin gives the questions numbers from first on, without those to daemons that have not answered lately.
func (a *asks) begin(all []*upstream.Question) (qs []*upstream.Question, first uint64, answers []chan string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	qs, first = a.mutes.Without(all, time.Now()), a.last+1
	if a.open == nil {
		a.open = map[uint64]chan<- string{}
	}
	for range qs {
		c := make(chan string, 1)
		a.last++
		a.open[a.last] = c
		answers = append(answers, c)
	}
	return qs, first, answers
}

func (a *asks) end(first uint64, n int, silent []*upstream.Question) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range n {
		delete(a.open, first+uint64(i))
	}
	if len(silent) > 0 {
		a.mutes.Add(silent, time.Now())
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
	if err != nil || !ok || f == nil || !upstream.ValidInstance(instance) {
		return
	}
	if q.Key, ok = strings.CutPrefix(q.Key, s.cfg.Prefix); ok {
		s.tell(instance + " " + answerMark + number + " " + upstream.EncodeAnswer((*f)(q.Key, q.Mode, q.Tokens)))
	}
}
