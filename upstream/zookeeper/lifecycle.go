package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const (
	retryMin = 100 * time.Millisecond
	retryMax = 2 * time.Second
)

var (
	errNoConnection = errors.New("connecting")
	errOverdue      = errors.New("an answer is overdue")
	errLapsed       = errors.New("its deadline passed without an answer that went through the " +
		"quorum")
	errAway = errors.New("no server resumed it within its timeout")
)

// run makes sessions until ctx ends, each after the end of the last one.
func (s *Store) run(ctx context.Context) {
	pause := driverkit.Backoff{Min: retryMin, Max: retryMax}
	for ctx.Err() == nil {
		se, err := s.begin(ctx)
		if err != nil {
			s.failed(err)
			pause.Wait(ctx)
			continue
		}
		pause.Reset()
		s.log.Info("session at zookeeper", zap.String("server", se.conn.Server()),
			zap.String("session", sessionName(se.id)), zap.Duration("granted", se.ttl))
		s.install(se)
		err = se.maintain(ctx)
		if ctx.Err() != nil {
			return // Close ends the session
		}
		s.lost(se, err)
		// If the servers have lost data, the session is over before its deadline. Until then, programs
		// may rely on nodes that the servers may not have any more.
		if until, _ := se.deadline(); errors.Is(err, ErrServer) {
			driverkit.Sleep(ctx, time.Duration(until-s.clock()))
		}
	}
}

// begin makes a session that can be used: it has a connection, the chroot and its own node. It
// returns an error after all servers have been tried once.
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
		if lineErr := se.available(); lineErr != nil && outcome(err) == driverkit.Unknown {
			err = lineErr
		}
		return se.store.cfg.explain(err)
	}
	return nil
}

// prepare logs in, checks the server, and makes the nodes that must exist.
func (se *session) prepare(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		se.logIn, se.checkTick, se.makeChroot, se.makeSelf, se.confirm,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return se.store.checkHistory(se.high.Load(), se.floor)
}

func (se *session) logIn(ctx context.Context) error {
	login, err := se.store.cfg.login()
	if err != nil {
		return se.store.noSession(err)
	}
	if login != nil {
		_, err = call(ctx, se, false, func(c *zk.Conn) (any, error) {
			return nil, c.AddAuth("digest", login)
		})
	}
	return err
}

// makeChroot makes the missing nodes of the chroot path. They are permanent, because the path
// belongs to the operator.
func (se *session) makeChroot(ctx context.Context) error {
	chroot := se.store.cfg.Chroot
	if chroot == "" {
		return nil
	}
	if stat, err := se.exists(ctx, chroot, false); stat != nil || err != nil {
		return err
	}
	path := ""
	for e := range strings.SplitSeq(chroot[1:], "/") {
		path += "/" + e
		err := se.create(ctx, path, nil, zk.FlagPersistent, true)
		if err != nil && err != zk.ErrNodeExists && (err != zk.ErrNoAuth || path == chroot) {
			return fmt.Errorf("make %s: %w", path, err)
		}
	}
	se.store.log.Info("made the chroot path at zookeeper", zap.String("path", chroot))
	return nil
}

// makeSelf makes the session's own node. Each transaction writes it, and its answer then has the
// id of the transaction, which is the czxid of all nodes that the transaction made.
func (se *session) makeSelf(ctx context.Context) error {
	dir := se.store.cfg.Chroot + "/" + internalDir
	se.self = dir + "/" + sessionName(se.id)
	for range 3 {
		err := se.create(ctx, se.self, []byte(se.store.host), zk.FlagEphemeral, true)
		if err != errNoNode {
			if err == zk.ErrNodeExists {
				err = nil
			}
			return err
		}
		if err := se.makeContainer(ctx, dir); err != nil {
			return err
		}
	}
	return errNoNode
}

// makeContainer makes a node that the server deletes some time after its last child.
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

// maintain renews the session until it is over or ctx ends, and returns the reason.
func (se *session) maintain(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time // the last confirmation
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
			wait = se.confirmGap() + time.Millisecond
		}
		timer.Reset(max(wait, time.Millisecond))
	}
}

// step returns the connection on which the session has to be confirmed now, or the time until the
// next step. An error means that the session is over.
func (se *session) step(quiet time.Duration) (*wire, time.Duration, error) {
	const atOnce = 20 * time.Millisecond
	se.mu.Lock()
	defer se.mu.Unlock()
	left := time.Duration(se.until - se.store.clock())
	switch {
	case se.fault != nil:
		return nil, 0, se.fault
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
		left = se.confirmGap() // the session has no nodes
	}
	if !se.ready {
		return nil, left, nil
	}
	wait := se.confirmGap() + time.Millisecond - quiet
	if se.overdue.Load() || !se.wire.confirmed.Load() {
		wait = atOnce - quiet
	}
	if wait <= 0 {
		return se.wire, 0, nil
	}
	return nil, min(wait, left), nil
}

// ask confirms the session, and cuts the connection if no answer comes in time. While the session
// has no nodes, a read is enough: see doc.go.
func (se *session) ask(ctx context.Context, w *wire) {
	se.overdue.Store(false) // this request may be sent
	ctx, cancel := context.WithTimeout(ctx, se.store.cfg.Timeout)
	defer cancel()
	se.mu.Lock()
	idle := len(se.lockNodes) == 0 && w.confirmed.Load()
	for g := range se.deleted {
		se.store.hint(cache.HintGone, g)
	}
	se.mu.Unlock()
	var err error
	if idle {
		_, err = se.exists(ctx, se.store.root(), false)
	} else {
		err = se.confirm(ctx)
	}
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		se.failed(w, errOverdue)
		se.overdue.Store(true)
		se.cut(w)
	}
}

// lost ends a session that is over. The session is also closed at the server as soon as there is
// a connection. Without one, it expires there.
func (s *Store) lost(se *session, why error) {
	s.log.Warn("the session at zookeeper is lost",
		zap.String("session", sessionName(se.id)), zap.Error(why))
	s.mu.Lock()
	s.cur, s.why = nil, s.cfg.explain(fmt.Errorf("%w: %w", upstream.ErrDown, why))
	s.mu.Unlock()
	until, _ := se.deadline()
	s.publish(upstream.Session{No: se.no, Until: until, Lost: true})
	se.noteAll()
	s.wg.Go(func() { se.closeLater(s.ctx) })
}

// closeLater waits until the session can be closed at the server, or must have expired there.
func (se *session) closeLater(ctx context.Context) {
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

// isSessionName reports whether id has the form that sessionName makes, and so is safe in a path.
func isSessionName(id string) bool {
	hex, ok := strings.CutPrefix(id, "0x")
	_, err := strconv.ParseUint(hex, 16, 64)
	return ok && err == nil && len(hex) == 16
}
