package zookeeper

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// A daemon asks another daemon how long it has held a key. It creates the ephemeral node
// <chroot>/.locksidecar/ask-<session of the other daemon>. The other daemon watches that path once
// it holds a lease, and replaces the question with the answer. The first daemon reads the answer
// and deletes the node. If a third daemon's node is there, it tries again.
const (
	askPrefix    = "ask-"
	questionMark = "?" // followed by session, a space, number, a space, upstream.Question
	// answerMark is followed by that session and number, each with a space, and upstream.EncodeAnswer.
	answerMark = "="
	firstPoll  = 2 * time.Millisecond
	// abandonedAfter is the age at which a question or its answer is deleted: its daemon has given
	// up.
	abandonedAfter = 2 * time.Second
)

// asks has the state of the questions that this Store asks.
type asks struct {
	dir   string         // the beginning of the paths of all questions
	last  atomic.Uint64  // the number of the last question
	mu    sync.Mutex     // not held during I/O
	mutes upstream.Mutes // guarded by mu
}

// Answer sets the function that answers the questions of other daemons.
func (s *Store) Answer(f upstream.HeldFor) { s.heldFor.Store(&f) }

// askPath returns the path of questions to the daemon that has session id.
func (s *Store) askPath(id string) string { return s.asks.dir + id }

// Ask questions the daemons concurrently, so that a silent one does not use up the others' time.
func (s *Store) Ask(ctx context.Context, qs []*upstream.Question) {
	s.asks.mu.Lock()
	qs = s.asks.mutes.Without(qs[:min(len(qs), upstream.MaxQuestions)], time.Now())
	s.asks.mu.Unlock()
	se := s.current()
	if se == nil || len(qs) == 0 {
		return
	}
	limit, cancel := context.WithTimeout(ctx, upstream.AnswerTime)
	defer cancel()
	each := slices.Collect(maps.Values(byDaemon(qs)))
	together(len(each), func(i int) {
		for _, q := range each[i] { // sequentially, because they use the same node
			if !se.askOne(limit, q) {
				return
			}
		}
	})
	if ctx.Err() != nil {
		return
	}
	s.asks.mu.Lock()
	s.asks.mutes.Add(qs, time.Now())
	s.asks.mu.Unlock()
}

func byDaemon(qs []*upstream.Question) map[string][]*upstream.Question {
	by := map[string][]*upstream.Question{}
	for _, q := range qs {
		by[q.Daemon] = append(by[q.Daemon], q)
	}
	return by
}

// askOne asks one daemon, and reports whether it answered.
func (se *session) askOne(ctx context.Context, q *upstream.Question) (answered bool) {
	s := se.store
	if !isSessionName(q.Daemon) {
		return false
	}
	path := s.askPath(q.Daemon)
	number := sessionName(se.id) + " " + strconv.FormatUint(s.asks.last.Add(1), 10) + " "
	created := false
	defer func() {
		// The node may exist. If its deletion fails, the daemon that was asked deletes it.
		if created {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx),
				min(s.cfg.Timeout, upstream.AnswerTime))
			defer cancel()
			_ = se.delete(ctx, path, -1, false)
		}
	}()
	for pause := firstPoll; ctx.Err() == nil; pause = min(2*pause, upstream.AnswerTime/8) {
		if !created {
			question := []byte(questionMark + number + q.Encode(""))
			err := se.create(ctx, path, question, zk.FlagEphemeral, false)
			created = err == nil || outcome(err) == driverkit.Unknown
			if err != nil && err != zk.ErrNodeExists {
				return false
			}
		} else {
			n, err := se.get(ctx, path, false)
			if err != nil {
				return false
			}
			if text, ok := strings.CutPrefix(string(n.data), answerMark+number); ok {
				q.Learn(text)
				return true
			}
		}
		driverkit.Sleep(ctx, pause)
	}
	return false
}

// watchQuestions makes the session watch for questions from now on.
func (se *session) watchQuestions() {
	if !se.answers.Swap(true) {
		se.store.wakeAnswerer()
	}
}

// wakeAnswerer wakes answer to read a question. It does not block.
func (s *Store) wakeAnswerer() { signal(s.questions) }

// answer answers the questions of other daemons until ctx ends.
func (s *Store) answer(ctx context.Context) {
	repeat(ctx, s.questions, abandonedAfter, func() time.Duration {
		se := s.current()
		if se == nil || !se.answers.Load() {
			return 0
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		if se.answerOne(ctx) { // after an error the question stays unanswered
			return abandonedAfter
		}
		return 0
	})
}

// answerOne watches for questions, and answers the present question if there is one. It deletes a
// question that its daemon has given up, because it would keep other daemons from asking. again
// means that answerOne has to be called again without an event of the watch.
func (se *session) answerOne(ctx context.Context) (again bool) {
	path := se.store.askPath(sessionName(se.id))
	stat, err := se.exists(ctx, path, true)
	if err != nil || stat == nil {
		return err != nil // after an error there may be no watch
	}
	n, err := se.get(ctx, path, false)
	if err != nil {
		return true
	}
	if stat = n.stat; stat.Czxid != se.asked {
		se.asked, se.askedAt = stat.Czxid, time.Now()
	} else if time.Since(se.askedAt) >= abandonedAfter {
		_ = se.delete(ctx, path, stat.Version, false)
		return true
	}
	text, ok := strings.CutPrefix(string(n.data), questionMark)
	if !ok {
		return true
	}
	asker, text, _ := strings.Cut(text, " ")
	number, text, _ := strings.Cut(text, " ")
	q, ok := upstream.ParseQuestion(text)
	f := se.store.heldFor.Load()
	if !ok || f == nil {
		return true
	}
	held := upstream.EncodeAnswer((*f)(q.Key, q.Mode, q.Tokens))
	_ = se.set(ctx, path, []byte(answerMark+asker+" "+number+" "+held), stat.Version, false)
	return true
}
