package etcd

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// A daemon asks another daemon how long it has held a key. It writes a question below the other
// daemon's session, under its own lease. The other daemon watches for questions while it holds any
// key for long, and writes the answer in place of the question. The first daemon reads the answer
// and removes it. No version expects a lock there.
const (
	questionMark = "?" // the number of the question, a space, upstream.Question
	answerMark   = "=" // that number, a space, upstream.EncodeAnswer
	maxQuestions = 64  // incoming questions that wait for an answer; further ones get none
	firstPoll    = 2 * time.Millisecond
)

// outgoingQuestions are the questions of this Store. It asks one round of questions at a time, so
// that it has few names below each session: etcd's index keeps each name until it is compacted.
type outgoingQuestions struct {
	turn   chan struct{}       // has an element while a round is in progress
	remove chan *pb.TxnRequest // the request that removes the last round, which ends with it
	last   uint64              // the number of the last round; guarded by turn
	mu     sync.Mutex          // not held during I/O
	mutes  upstream.Mutes      // guarded by mu
}

func newOutgoing() outgoingQuestions {
	return outgoingQuestions{turn: make(chan struct{}, 1), remove: make(chan *pb.TxnRequest, 1),
		last: upstream.FirstQuestion()}
}

// Answer makes f answer other daemons.
func (s *Store) Answer(f upstream.HeldFor) { s.heldFor.Store(&f) }

// questionsDir returns the prefix of the keys of questions to the daemon with this lease.
func (n *names) questionsDir(lease int64) string { return n.session(lease) + "/ask/" }

// Ask asks in one round.
func (s *Store) Ask(ctx context.Context, qs []*upstream.Question) {
	n := s.cur.Load()
	s.outgoing.mu.Lock()
	qs = s.outgoing.mutes.Without(qs, time.Now())
	s.outgoing.mu.Unlock()
	if n == nil || n.lost.Load() || len(qs) == 0 {
		return
	}
	qs = qs[:min(len(qs), upstream.MaxQuestions, int(s.maxOps.Load()))]
	limit, cancel := context.WithTimeout(ctx, min(s.cfg.Timeout, 2*upstream.AnswerTime))
	defer cancel()
	select {
	case s.outgoing.turn <- struct{}{}: // until the questions are removed
	case <-limit.Done():
		return
	}
	s.outgoing.last++
	keys := s.questionKeys(n, qs)
	remove := &pb.TxnRequest{}
	for _, k := range keys {
		remove.Success = append(remove.Success, deleteOp(k))
	}
	asked := s.ask(limit, n, keys, qs, strconv.FormatUint(s.outgoing.last, 10)+" ")
	s.outgoing.remove <- remove // there is room, because it is our turn
	if asked && limit.Err() == nil {
		s.outgoing.mu.Lock()
		s.outgoing.mutes.Add(qs, time.Now())
		s.outgoing.mu.Unlock()
	}
}

// questionKeys returns a key for each question. It is below the session of the daemon that is
// asked, and has the name of our session. A number follows if the daemon is asked more than one
// question.
func (s *Store) questionKeys(n *session, qs []*upstream.Question) (keys []string) {
	used := map[string]int{}
	for _, q := range qs {
		lease, _ := strconv.ParseInt(q.Daemon, 16, 64)
		key := s.questionsDir(lease) + strconv.FormatInt(n.lease, 16)
		used[key]++
		if i := used[key]; i > 1 {
			key += "." + strconv.Itoa(i)
		}
		keys = append(keys, key)
	}
	return keys
}

// ask writes questions under keys and reads their answers, until all have arrived or AnswerTime is
// over. number is at the beginning of all texts. asked is false if the questions may not have been
// written.
func (s *Store) ask(
	ctx context.Context, n *session, keys []string, qs []*upstream.Question, number string,
) (asked bool) {
	put := &pb.TxnRequest{}
	for i, q := range qs {
		put.Success = append(put.Success, putOp(keys[i], questionMark+number+q.Encode(""), n.lease))
	}
	if _, err := s.txn(ctx, "ask", put); err != nil {
		return false
	}
	open := make([]int, len(qs)) // those without an answer
	for i := range open {
		open[i] = i
	}
	end := time.Now().Add(upstream.AnswerTime)
	for pause := firstPoll; len(open) > 0; pause *= 2 {
		left := time.Until(end)
		if left <= 0 || !driverkit.Sleep(ctx, min(pause, left)) {
			break
		}
		get := &pb.TxnRequest{}
		for _, i := range open {
			get.Success = append(get.Success, valueOp(keys[i]))
		}
		r, err := s.txn(ctx, "read answers", get)
		if err != nil {
			return false
		}
		still := open[:0]
		for at, i := range open {
			if kv := kvs(r.Responses[at]); len(kv) == 1 {
				if text, ok := strings.CutPrefix(string(kv[0].Value), answerMark+number); ok {
					qs[i].Learn(text)
					continue
				}
			}
			still = append(still, i)
		}
		open = still
	}
	return true
}

// removeQuestions removes the questions and answers of each round, until ctx ends. Only the next
// round waits for it. After an error the questions end with the session, or with the next round.
func (s *Store) removeQuestions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-s.outgoing.remove:
			short, cancel := context.WithTimeout(ctx, min(s.cfg.Timeout, upstream.AnswerTime))
			_, _ = s.txn(short, "remove questions", r)
			cancel()
			<-s.outgoing.turn
		}
	}
}

// questionWatchLocked returns the requests that create the watch for questions to the present
// session. It returns none if the watch exists. The caller holds lockKeys.mu.
func (s *Store) questionWatchLocked() (reqs []*pb.WatchRequest) {
	t, n := &s.lockKeys, s.cur.Load()
	if n == nil || n.lease == t.questionOf {
		return nil
	}
	if t.question != 0 {
		reqs = append(reqs, cancelWatch(t.question))
	}
	t.lastWatch++
	t.question, t.questionOf = t.lastWatch, n.lease
	dir := s.questionsDir(n.lease)
	return append(reqs, createWatch(&pb.WatchCreateRequest{
		WatchId: t.question, Key: []byte(dir), RangeEnd: rangeEnd(dir),
		Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE}}))
}

// questionsLocked passes on the events of the watch for questions. It is called with lockKeys.mu
// held.
func (s *Store) questionsLocked(r *pb.WatchResponse) {
	var kvs []*mvccpb.KeyValue
	switch {
	case r.Canceled:
		s.lockKeys.question, s.lockKeys.questionOf = 0, 0
	case r.Created:
		kvs = []*mvccpb.KeyValue{nil} // nil asks for the questions that existed before the watch
	}
	for _, e := range r.Events {
		if e.Type == mvccpb.Event_PUT {
			kvs = append(kvs, e.Kv)
		}
	}
	for _, kv := range kvs {
		select {
		case s.incoming <- kv:
		default:
		}
	}
}

// answerQuestions answers the questions of other daemons until ctx ends.
func (s *Store) answerQuestions(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case kv := <-s.incoming:
			if kv != nil {
				s.answerQuestion(ctx, kv)
			} else if n := s.cur.Load(); n != nil {
				dir := s.questionsDir(n.lease)
				all, _ := s.read(ctx, dir, dirEnd(dir), maxQuestions)
				for _, kv := range all {
					s.answerQuestion(ctx, kv)
				}
			}
		}
	}
}

// answerQuestion writes the answer in place of a question. After an error the question stays
// unanswered.
func (s *Store) answerQuestion(ctx context.Context, kv *mvccpb.KeyValue) {
	text, ok := strings.CutPrefix(string(kv.Value), questionMark)
	if !ok {
		return // an answer of our own
	}
	number, text, _ := strings.Cut(text, " ")
	q, ok := upstream.ParseQuestion(text)
	f := s.heldFor.Load()
	if !ok || f == nil {
		return
	}
	key, held := string(kv.Key), (*f)(q.Key, q.Mode, q.Tokens)
	put := putOp(key, answerMark+number+" "+upstream.EncodeAnswer(held), 0)
	put.GetRequestPut().IgnoreLease = true
	req := &pb.TxnRequest{Compare: one(ifWritten(key, kv.ModRevision)), Success: ops(put)}
	_, _ = s.txn(ctx, "answer", req)
}
