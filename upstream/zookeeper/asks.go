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
)

// A daemon asks another one for how long it has held a key by creating the node <chroot>/.locksidecar/ask-
// and the other one's session, ephemeral. The other one watches that path once it holds anything, and writes
// the answer in place of the question. The daemon that asked reads the answer and removes the node. If
// another daemon's node is there, it tries again.
const (
	askPrefix    = "ask-"
	questionMark = "?" // session, a space, a number, a space, upstream.Question
	answerMark   = "=" // that session and number, each with a space, upstream.EncodeAnswer
	firstPoll    = 2 * time.Millisecond
	leftTime     = 2 * time.Second // after which a question, or its answer, is one that its daemon has left behind
)

var (
	_ upstream.Asker    = (*Store)(nil)
	_ upstream.Answerer = (*Store)(nil)
)

// asks are the questions of this Store.
type asks struct {
	dir   string         // what the paths of all questions begin with
	last  atomic.Uint64  // the number of the newest
	mu    sync.Mutex     // not held during I/O
	mutes upstream.Mutes // guarded by mu
}

// Answer makes f answer other daemons.
func (s *Store) Answer(f upstream.HeldFor) { s.heldFor.Store(&f) }

// askPath is the node of a question to the daemon that has session id.
func (s *Store) askPath(id string) string { return s.asks.dir + id }

// Ask questions the daemons concurrently, so that a silent one does not use up the others' time.
func (s *Store) Ask(ctx context.Context, qs []*upstream.Question) {
	s.asks.mu.Lock()
	qs = s.asks.mutes.Without(qs[:min(len(qs), upstream.QuestionsMost)], time.Now())
	s.asks.mu.Unlock()
	se := s.present()
	if se == nil || len(qs) == 0 {
		return
	}
	limit, cancel := context.WithTimeout(ctx, upstream.AnswerTime)
	defer cancel()
	each := slices.Collect(maps.Values(byDaemon(qs)))
	together(len(each), func(i int) {
		for _, q := range each[i] { // one after the other, because they use the same node
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

// askOne asks one daemon.
func (se *session) askOne(ctx context.Context, q *upstream.Question) (answered bool) {
	s := se.store
	if !isSessionName(q.Daemon) {
		return false
	}
	path := s.askPath(q.Daemon)
	number := sessionName(se.id) + " " + strconv.FormatUint(s.asks.last.Add(1), 10) + " "
	created := false
	defer func() {
		if created { // or may be created yet. If this fails, the daemon that was asked removes it.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(s.cfg.Timeout, upstream.AnswerTime))
			defer cancel()
			_, _ = call(ctx, se, false, func(c *zk.Conn) (any, error) { return nil, c.Delete(path, -1) })
		}
	}()
	for pause := firstPoll; ctx.Err() == nil; pause = min(2*pause, upstream.AnswerTime/8) {
		if !created {
			_, err := call(ctx, se, false, func(c *zk.Conn) (any, error) {
				return c.Create(path, []byte(questionMark+number+q.Encode("")), zk.FlagEphemeral, s.acl)
			})
			if created = err == nil || judge(err) == unknown; err != nil && err != zk.ErrNodeExists {
				return false
			}
		} else {
			data, err := call(ctx, se, false, func(c *zk.Conn) ([]byte, error) {
				data, _, err := c.Get(path)
				return data, err
			})
			if err != nil {
				return false
			}
			if text, ok := strings.CutPrefix(string(data), answerMark+number); ok {
				q.Learn(text)
				return true
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return false
}

// expectQuestions has the session watch for questions from now on.
func (se *session) expectQuestions() {
	if !se.answers.Swap(true) {
		se.store.questioned()
	}
}

// questioned has the questions to this daemon read. It does not block.
func (s *Store) questioned() {
	select {
	case s.questions <- struct{}{}:
	default:
	}
}

// answer answers the questions of other daemons until ctx ends.
func (s *Store) answer(ctx context.Context) {
	again := time.NewTimer(leftTime)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.questions:
		case <-again.C:
		}
		if se := s.present(); se != nil && se.answers.Load() {
			ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
			if se.answerOne(ctx) { // after an error the question stays unanswered
				again.Reset(leftTime)
			}
			cancel()
		}
	}
}

// answerOne watches for questions, and answers the present one if there is one. It removes one that its daemon
// has left behind, which would keep others from asking. again means that it has to be called again although no
// watch tells.
func (se *session) answerOne(ctx context.Context) (again bool) {
	path := se.store.askPath(sessionName(se.id))
	exists, err := call(ctx, se, false, func(c *zk.Conn) (bool, error) {
		se.watching.Store(true)
		exists, _, _, err := c.ExistsW(path)
		return exists, err
	})
	if err != nil || !exists {
		return err != nil // there may be no watch
	}
	var stat *zk.Stat
	data, err := call(ctx, se, false, func(c *zk.Conn) (data []byte, err error) {
		data, stat, err = c.Get(path)
		return data, err
	})
	if err != nil {
		return true
	}
	if stat.Czxid != se.asked {
		se.asked, se.askedAt = stat.Czxid, time.Now()
	} else if time.Since(se.askedAt) >= leftTime {
		_, _ = call(ctx, se, false, func(c *zk.Conn) (any, error) { return nil, c.Delete(path, stat.Version) })
		return true
	}
	text, ok := strings.CutPrefix(string(data), questionMark)
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
	reply := []byte(answerMark + asker + " " + number + " " + upstream.EncodeAnswer((*f)(q.Key, q.Mode, q.Tokens)))
	_, _ = call(ctx, se, false, func(c *zk.Conn) (any, error) { return c.Set(path, reply, stat.Version) })
	return true
}
