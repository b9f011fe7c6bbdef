package etcd

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// A daemon asks another one for how long it has held a key by writing a question below the other one's
// session, under its own lease. The other one watches that, while it holds anything for long, and writes
// the answer in place of the question. The daemon that asked reads the answer and removes it. No version
// looks for a lock there.
const (
	questionMark  = "?" // the number of the question, a space, upstream.Question
	answerMark    = "=" // that number, a space, upstream.EncodeAnswer
	questionsMost = 64  // that wait for an answer here; more get none
	askedMost     = 32  // daemons of one query
	firstPoll     = 2 * time.Millisecond
)

var _ upstream.Answerer = (*Store)(nil)

// asks are the questions of this Store. It asks one round of questions at a time, so that it has one name
// below each session: etcd's index keeps each name until it is compacted.
type asks struct {
	turn  chan struct{}  // has an element while a round is in progress
	last  uint64         // the number of the last round; guarded by turn
	mu    sync.Mutex     // not held during I/O
	mutes upstream.Mutes // guarded by mu
}

// Answer makes f answer other daemons.
func (s *Store) Answer(f upstream.HeldFor) { s.heldFor.Store(&f) }

// questionsDir is what the keys of questions to the daemon with this lease begin with.
func (n *names) questionsDir(lease int64) string { return n.session(lease) + "/ask/" }

// askHolders sets Held of the locks of one key, as far as their holders' daemons answer.
func (s *Store) askHolders(ctx context.Context, key string, mode cache.Mode, locks []upstream.Lock) {
	n := s.cur.Load()
	qs := upstream.Questions(key, mode, locks)
	s.asks.mu.Lock()
	qs = s.asks.mutes.Without(qs, time.Now())
	s.asks.mu.Unlock()
	if n == nil || n.lost.Load() || len(qs) == 0 {
		return
	}
	qs = qs[:min(len(qs), askedMost, int(s.most.Load()))]
	limit, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	select {
	case s.asks.turn <- struct{}{}:
		defer func() { <-s.asks.turn }()
	case <-limit.Done():
		return
	}
	s.asks.last++
	silent := s.ask(limit, n, qs, strconv.FormatUint(s.asks.last, 10)+" ")
	if limit.Err() == nil && len(silent) > 0 {
		s.asks.mu.Lock()
		s.asks.mutes.Add(silent, time.Now())
		s.asks.mu.Unlock()
	}
}

// ask writes questions, reads their answers and removes them. It returns the questions that were not
// answered. All texts begin with number.
func (s *Store) ask(ctx context.Context, n *session, qs []*upstream.Question, number string) (silent []*upstream.Question) {
	keys := make([]string, len(qs))
	put, remove := &pb.TxnRequest{}, &pb.TxnRequest{}
	for i, q := range qs {
		lease, _ := strconv.ParseInt(q.Daemon, 16, 64)
		keys[i] = s.questionsDir(lease) + strconv.FormatInt(n.lease, 16)
		put.Success = append(put.Success, putOp(keys[i], questionMark+number+q.Encode(), n.lease))
		remove.Success = append(remove.Success, deleteOp(keys[i]))
	}
	defer func() { // after an error they end with the lease, or with the next round
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Timeout)
		defer cancel()
		_, _ = s.txn(ctx, remove)
	}()
	if _, err := s.txn(ctx, put); err != nil {
		return nil
	}
	end := time.Now().Add(upstream.AnswerTime)
	for pause := firstPoll; len(qs) > 0; pause *= 2 {
		left := time.Until(end)
		if left <= 0 || !pauseFor(ctx, min(pause, left)) {
			break
		}
		get := &pb.TxnRequest{}
		for _, k := range keys {
			get.Success = append(get.Success, rangeOp(&pb.RangeRequest{Key: []byte(k)}))
		}
		r, err := s.txn(ctx, get)
		if err != nil {
			break
		}
		still := 0
		for i, q := range qs {
			if kv := kvs(r.Responses[i]); len(kv) == 1 {
				if text, ok := strings.CutPrefix(string(kv[0].Value), answerMark+number); ok {
					q.Learn(text)
					continue
				}
			}
			qs[still], keys[still] = q, keys[i]
			still++
		}
		qs, keys = qs[:still], keys[:still]
	}
	return qs
}

// pauseFor waits for d. It returns false when ctx ends first.
func pauseFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// questionWatchLocked returns the requests that create the watch for questions to the present session. It
// returns none if the watch exists. grips.mu is held.
func (s *Store) questionWatchLocked() (reqs []*pb.WatchRequest) {
	t, n := &s.grips, s.cur.Load()
	if n == nil || n.lease == t.questionOf {
		return nil
	}
	if t.question != 0 {
		reqs = append(reqs, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
			CancelRequest: &pb.WatchCancelRequest{WatchId: t.question}}})
	}
	t.lastWatch++
	t.question, t.questionOf = t.lastWatch, n.lease
	dir := s.questionsDir(n.lease)
	return append(reqs, &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		WatchId: t.question, Key: []byte(dir), RangeEnd: rangeEnd(dir),
		Filters: []pb.WatchCreateRequest_FilterType{pb.WatchCreateRequest_NODELETE}}}})
}

// questionsLocked passes on what the watch for questions says. It is called with grips.mu held.
func (s *Store) questionsLocked(r *pb.WatchResponse) {
	var kvs []*mvccpb.KeyValue
	switch {
	case r.Canceled:
		s.grips.question, s.grips.questionOf = 0, 0
	case r.Created:
		kvs = []*mvccpb.KeyValue{nil} // the questions that were there before it
	}
	for _, e := range r.Events {
		if e.Type == mvccpb.Event_PUT {
			kvs = append(kvs, e.Kv)
		}
	}
	for _, kv := range kvs {
		select {
		case s.questions <- kv:
		default:
		}
	}
}

// answer answers the questions of other daemons until ctx ends.
func (s *Store) answer(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case kv := <-s.questions:
			if kv != nil {
				s.answerOne(ctx, kv)
			} else if n := s.cur.Load(); n != nil {
				dir := s.questionsDir(n.lease)
				all, _ := s.read(ctx, dir, dirEnd(dir), questionsMost)
				for _, kv := range all {
					s.answerOne(ctx, kv)
				}
			}
		}
	}
}

// answerOne writes the answer in place of a question. After an error the question stays unanswered.
func (s *Store) answerOne(ctx context.Context, kv *mvccpb.KeyValue) {
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
	put := putOp(string(kv.Key), answerMark+number+" "+upstream.EncodeAnswer((*f)(q.Key, q.Mode, q.Tokens)), 0)
	put.GetRequestPut().IgnoreLease = true
	_, _ = s.txn(ctx, &pb.TxnRequest{Compare: one(ifWritten(string(kv.Key), kv.ModRevision)), Success: ops(put)})
}
