package zookeeper

import (
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"
	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// current returns the current session, or nil.
func (s *Store) current() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// session returns the session for requests, or an error if none can be sent now.
func (s *Store) session() (*session, error) {
	s.mu.Lock()
	se, why := s.cur, s.why
	s.mu.Unlock()
	if se == nil {
		return nil, driverkit.Down(why)
	}
	return se, se.available()
}

func (s *Store) install(se *session) {
	s.mu.Lock()
	s.cur, s.why, s.tries, s.logged = se, nil, 0, ""
	s.signalLocked()
	s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.wakeWatch()
	}
}

func (s *Store) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A server can first be unreachable and then be found unusable. The log must show the second,
	// too.
	if s.tries++; s.tries == 1 || errors.Is(err, ErrServer) && err.Error() != s.logged {
		s.logged = err.Error()
		s.log.Warn("no session at zookeeper", zap.Error(err))
	}
	s.why = err
	s.signalLocked()
}

func (s *Store) signalLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// noSession returns the error for requests that cannot be sent.
func (s *Store) noSession(why error) error {
	if why == zk.ErrSessionExpired {
		why = errors.New("the last one is over")
	}
	return fmt.Errorf("%w: %w, %s: %w", upstream.ErrDown, ErrNothingSent, s.cfg.where(), why)
}

// publish puts news of the session into the stream.
func (s *Store) publish(n upstream.Session) {
	s.newsMu.Lock()
	defer s.newsMu.Unlock()
	s.news.Send(n)
}

// root returns the path of a node that exists as long as the store works.
func (s *Store) root() string {
	if s.cfg.Chroot == "" {
		return "/"
	}
	return s.cfg.Chroot
}
