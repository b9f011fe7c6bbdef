package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 2 * time.Second
)

var (
	errNoConnection = errors.New("connecting")
	errOverdue      = errors.New("an answer is overdue")
	errLapsed       = errors.New("its deadline passed without an answer that went through the quorum")
	errAway         = errors.New("no server resumed it within its timeout")
)

// run makes one session after the other until ctx ends.
func (s *Store) run(ctx context.Context) {
	pause := retryMin
	for ctx.Err() == nil {
		se, err := s.begin(ctx)
		if err != nil {
			s.failed(err)
			select {
			case <-ctx.Done():
			case <-time.After(pause/2 + rand.N(pause)):
			}
			pause = min(2*pause, retryMax)
			continue
		}
		pause = retryMin
		s.log.Info("session at zookeeper", zap.String("server", se.conn.Server()), zap.String("session", sessionName(se.id)),
			zap.Duration("granted", se.ttl))
		s.install(se)
		err = se.keep(ctx)
		if ctx.Err() != nil {
			return // Close ends it
		}
		s.lost(se, err)
	}
}

// begin makes a session that can be used: there is a connection, the chroot and
// our own node. It fails after one round of the servers.
func (s *Store) begin(ctx context.Context) (*session, error) {
	s.mu.Lock()
	s.no++
	no := s.no
	s.mu.Unlock()
	se, err := s.newSession(no)
	if err != nil {
		return nil, err
	}
	if err := se.establish(ctx); err != nil {
		se.shut(true)
		return nil, err
	}
	return se, nil
}

func (se *session) establish(ctx context.Context) error {
	for {
		se.mu.Lock()
		ready, why, over := se.ready, se.why, se.over
		se.mu.Unlock()
		if ready {
			break
		}
		if over || se.rounds.Load() > 0 {
			if why == nil {
				why = errNoConnection
			}
			return se.store.noSession(why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-se.wake:
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*se.store.cfg.Timeout)
	defer cancel()
	if err := se.prepare(ctx); errors.Is(err, ErrServer) {
		return err
	} else if err != nil {
		if lineErr := se.line(); lineErr != nil && judge(err) == unknown {
			err = lineErr
		}
		return se.store.cfg.explain(err)
	}
	return nil
}

// prepare logs in and makes the nodes that have to be there.
func (se *session) prepare(ctx context.Context) error {
	s := se.store
	login, err := s.cfg.login()
	if err != nil {
		return s.noSession(err)
	}
	if login != nil {
		if _, err := call(ctx, se, false, func(c *zk.Conn) (any, error) { return nil, c.AddAuth("digest", login) }); err != nil {
			return err
		}
	}
	if err := se.checkTick(ctx); err != nil {
		return err
	}
	if err := se.makeChroot(ctx); err != nil {
		return err
	}
	if err := se.makeSelf(ctx); err != nil {
		return err
	}
	if err := se.confirm(ctx); err != nil {
		return err
	}
	return se.checkHistory()
}

// makeChroot makes what is missing of the chroot path, for ever: it is the
// operator's.
func (se *session) makeChroot(ctx context.Context) error {
	chroot := se.store.cfg.Chroot
	if chroot == "" {
		return nil
	}
	there, err := call(ctx, se, false, func(c *zk.Conn) (bool, error) {
		ok, _, err := c.Exists(chroot)
		return ok, err
	})
	if there || err != nil {
		return err
	}
	path := ""
	for e := range strings.SplitSeq(chroot[1:], "/") {
		path += "/" + e
		_, err := call(ctx, se, true, func(c *zk.Conn) (string, error) { return c.Create(path, nil, zk.FlagPersistent, se.store.acl) })
		if err != nil && err != zk.ErrNodeExists && (err != zk.ErrNoAuth || path == chroot) {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	se.store.log.Info("made the chroot path at zookeeper", zap.String("path", chroot))
	return nil
}

// makeSelf makes the session's own node. Written in each transaction, it says what
// the transaction's id was, which is the czxid of all that it made.
func (se *session) makeSelf(ctx context.Context) error {
	dir := se.store.cfg.Chroot + "/" + own
	se.self = dir + "/" + sessionName(se.id)
	for range 3 {
		_, err := call(ctx, se, true, func(c *zk.Conn) (string, error) {
			return c.Create(se.self, []byte(se.store.host), zk.FlagEphemeral, se.store.acl)
		})
		if err != errGone {
			if err == zk.ErrNodeExists {
				err = nil
			}
			return err
		}
		if err := se.makeContainer(ctx, dir); err != nil {
			return err
		}
	}
	return errGone
}

// makeContainer makes a node that the server deletes some time after its last
// child has gone.
func (se *session) makeContainer(ctx context.Context, path string) error {
	_, err := call(ctx, se, true, func(c *zk.Conn) (string, error) {
		return c.CreateContainer(path, []byte(parentData), zk.FlagContainer, se.store.acl)
	})
	if err == zk.ErrNodeExists {
		return nil
	}
	return err
}

func sessionName(id int64) string { return fmt.Sprintf("0x%016x", uint64(id)) }

// keep keeps the session and its deadline going until it is over, or ctx is. It
// returns why.
func (se *session) keep(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time // when something was asked
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-se.wake:
		case <-timer.C:
		}
		w, wait, err := se.step(time.Since(last))
		if err != nil {
			return err
		}
		if w != nil {
			se.ask(ctx, w)
			last = time.Now()
			wait = se.apart() + time.Millisecond
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

// step says on which connection something has to be asked now, or when to look
// again. The error says that the session is over.
func (se *session) step(quiet time.Duration) (*wire, time.Duration, error) {
	const atOnce = 20 * time.Millisecond
	se.mu.Lock()
	defer se.mu.Unlock()
	left := time.Duration(se.until - se.store.clock())
	switch {
	case se.over:
		return nil, 0, zk.ErrSessionExpired
	case left <= 0 && len(se.lockNodes) > 0:
		se.over = true
		return nil, 0, errLapsed
	case len(se.lockNodes) == 0 && !se.ready && se.store.clock()-se.since > int64(se.ttl):
		// The session has no nodes to lose. If the server refuses to resume it because the server
		// has lost data, only a new session finds that out and can report it.
		se.over = true
		return nil, 0, errAway
	case left <= 0:
		left = se.apart() // nothing hangs on it
	}
	if !se.ready {
		return nil, left, nil
	}
	wait := se.apart() + time.Millisecond - quiet
	if se.suspect.Load() || !se.wire.confirmed.Load() {
		wait = atOnce - quiet
	}
	if wait <= 0 {
		return se.wire, 0, nil
	}
	return nil, min(wait, left), nil
}

// ask asks for a sign of life, and goes to another server when none comes in time.
// While nothing hangs on the session a read will do: see doc.go.
func (se *session) ask(ctx context.Context, w *wire) {
	se.suspect.Store(false) // this one may go out
	ctx, cancel := context.WithTimeout(ctx, se.store.cfg.Timeout)
	defer cancel()
	se.mu.Lock()
	idle := len(se.lockNodes) == 0 && w.confirmed.Load()
	for g := range se.missed {
		se.store.hintAbout(cache.HintGone, g)
	}
	se.mu.Unlock()
	var err error
	if idle {
		_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) { _, _, err := c.Exists(se.store.root()); return nil, err })
	} else {
		err = se.confirm(ctx)
	}
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		se.blame(w, errOverdue)
		se.suspect.Store(true)
		se.cut(w)
	}
}

// lost ends a session that is over. What may still stand at the server is ended
// there too, as soon as there is a connection; it expires by itself otherwise.
func (s *Store) lost(se *session, why error) {
	s.log.Warn("the session at zookeeper is lost", zap.String("session", sessionName(se.id)), zap.Error(why))
	s.mu.Lock()
	s.cur, s.why = nil, s.cfg.explain(fmt.Errorf("%w: %w", upstream.ErrDown, why))
	s.mu.Unlock()
	s.publish(upstream.Session{No: se.no, Until: se.untilNow(), Lost: true})
	se.noteAll()
	s.wg.Go(func() { se.bury(s.ctx) })
}

func (se *session) untilNow() int64 {
	se.mu.Lock()
	defer se.mu.Unlock()
	return se.until
}

// bury waits until the session can be closed at the server, or is sure to have
// expired there.
func (se *session) bury(ctx context.Context) {
	end := time.NewTimer(3 * se.ttl)
	defer end.Stop()
	for {
		se.mu.Lock()
		ready, retired := se.ready, se.retired
		se.mu.Unlock()
		if ready || retired {
			se.shut(ready)
			return
		}
		select {
		case <-ctx.Done():
			se.shut(false)
			return
		case <-end.C:
			se.shut(false)
			return
		case <-se.wake:
		}
	}
}

func hostName() string {
	h, err := os.Hostname()
	if err != nil || strings.ContainsAny(h, " \t\n") {
		return "?"
	}
	return h
}
