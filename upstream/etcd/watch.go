package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// runWatches keeps one stream with all watches until ctx ends. Each watch has its own number and
// begins with the present. Once it exists, a check finds earlier changes. So no watch needs history
// that may have been compacted.
func (s *Store) runWatches(ctx context.Context) {
	pause := driverkit.Backoff{Min: pauseMin, Max: 2 * pauseMax}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.lockKeys.sending:
		}
		begun := s.clock()
		err := s.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("watches at etcd broken: polling alone", zap.Error(plain(err)))
		if s.clock()-begun > int64(10*time.Second) {
			pause.Reset()
		}
		if !pause.Wait(ctx) {
			return
		}
		nudge(s.lockKeys.sending)
	}
}

// errDenied means that etcd has refused a watch.
var errDenied = errors.New("watch denied")

// watchOnce opens a stream and serves it until it fails.
func (s *Store) watchOnce(ctx context.Context) error {
	login, done := context.WithTimeout(ctx, s.cfg.Timeout)
	err := s.client.ensureToken(login)
	done()
	if err != nil {
		return err
	}
	used, _ := s.client.current()
	err = s.serveWatches(ctx)
	if s.client.tokenIsOld(err) { // a stream keeps the token that it was opened with
		login, done := context.WithTimeout(ctx, s.cfg.Timeout)
		defer done()
		err = errors.Join(err, s.client.relogin(login, used))
	}
	return err
}

func (s *Store) serveWatches(ctx context.Context) error {
	// A member without a leader ends the stream instead of staying silent.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := s.client.watch.Watch(ctx)
	if err != nil {
		return err
	}
	s.lockKeys.recreateWatches()
	failed := make(chan error, 1)
	go func() { failed <- s.receiveWatches(stream) }()
	err = s.sendWatches(stream, failed)
	cancel()
	if e := <-failed; err == nil {
		err = e
	}
	return err
}

// recreateWatches requests all watches again, for a new stream.
func (t *lockKeys) recreateWatches() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.create, t.cancel = t.create[:0], t.cancel[:0]
	t.question, t.questionOf = 0, 0
	for _, g := range t.byWatch {
		g.watched = false
		t.create = append(t.create, g)
	}
	nudge(t.sending)
}

// sendWatches sends the requests for watches until the stream has failed. It returns an error of
// receiveWatches to the channel that it came from.
func (s *Store) sendWatches(stream pb.Watch_WatchClient, failed chan error) error {
	t := &s.lockKeys
	for {
		select {
		case err := <-failed:
			failed <- err
			return err
		case <-t.sending:
		}
		t.mu.Lock()
		reqs := s.questionWatchLocked()
		for _, id := range t.cancel {
			reqs = append(reqs, cancelWatch(id))
		}
		for _, g := range t.create {
			if g.watch != 0 {
				reqs = append(reqs, g.watchRequest())
			}
		}
		clear(t.create)
		t.create, t.cancel = t.create[:0], t.cancel[:0]
		t.mu.Unlock()
		for _, r := range reqs {
			if err := stream.Send(r); err != nil {
				return nil // receiveWatches has the reason
			}
		}
	}
}

// watchRequest returns the request of a watch: of the key before ours, or of the whole lock if we
// hold it.
func (g *lockKey) watchRequest() *pb.WatchRequest {
	r := &pb.WatchCreateRequest{WatchId: g.watch, Key: []byte(g.pred)}
	if g.permit != nil {
		g.permitWatch(r)
	} else if g.held {
		r.Key, r.RangeEnd = []byte(g.dir), rangeEnd(g.dir)
	}
	return createWatch(r)
}

func createWatch(r *pb.WatchCreateRequest) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: r}}
}

func cancelWatch(id int64) *pb.WatchRequest {
	return &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CancelRequest{
		CancelRequest: &pb.WatchCancelRequest{WatchId: id}}}
}

// receiveWatches receives answers until the stream fails.
func (s *Store) receiveWatches(stream pb.Watch_WatchClient) error {
	t := &s.lockKeys
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		if r.Canceled && r.WatchId == clientv3.InvalidWatchID {
			return denied(r.CancelReason)
		}
		t.mu.Lock()
		g := t.byWatch[r.WatchId]
		switch {
		case r.WatchId == t.question:
			s.questionsLocked(r)
		case g == nil: // it has been cancelled
		case r.Canceled:
			s.log.Debug("etcd has ended a watch",
				zap.String("lock", g.lock), zap.String("reason", r.CancelReason))
			delete(t.byWatch, g.watch)
			g.watch, g.watched = 0, false
		case r.Created:
			g.watched = true
			t.check = append(t.check, g)
			nudge(t.checking)
		default:
			for _, e := range r.Events {
				s.eventLocked(g, e)
			}
		}
		t.mu.Unlock()
	}
}

// denied makes an error of the reason why a watch could not be created. etcd sends the text of a
// status.
func denied(reason string) error {
	for _, e := range []error{
		rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision, rpctypes.ErrGRPCUserEmpty,
	} {
		if strings.Contains(reason, rpctypes.ErrorDesc(e)) {
			return fmt.Errorf("%w: %w", errDenied, plain(e))
		}
	}
	return fmt.Errorf("%w: %s", errDenied, reason)
}

// eventLocked turns an event into a hint. It is called with lockKeys.mu held.
func (s *Store) eventLocked(g *lockKey, e *mvccpb.Event) {
	if g.permit != nil {
		s.permitEventLocked(g, e)
		return
	}
	removed, own := e.Type == mvccpb.Event_DELETE, string(e.Kv.Key) == g.key
	switch {
	case !g.held:
		// A downgrade before us lets readers in.
		if removed || g.mode == cache.Shared && sharedKV(e.Kv) {
			s.hint(cache.HintAvailable, g)
		}
	case removed && own:
		if !g.leaving {
			s.hint(cache.HintGone, g)
		}
	case removed || own:
	case e.Kv.CreateRevision != e.Kv.ModRevision:
	case shortLivedKV(e.Kv):
		s.hint(cache.HintTried, g)
	case g.mode == cache.Exclusive || !sharedKV(e.Kv):
		s.hint(cache.HintContended, g)
	}
}
