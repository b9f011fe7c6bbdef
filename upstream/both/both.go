package both

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// ErrFences means that a pair of stores cannot keep fences rising.
var ErrFences = errors.New("fences would not rise")

// Store is a pair of stores.
type Store struct {
	old, new  upstream.Store
	info      upstream.Info
	sessional [2]bool // whether leases of old and new depend on a store session
	order     *order  // decides fences; nil if the new store's bases can be raised
	hints     driverkit.Hints
	sessions  chan upstream.Session
	wall      func() int64 // wall clock in µs
	stop      context.CancelFunc
	wg        sync.WaitGroup

	mu     sync.Mutex
	known  [2]upstream.Session  // of old and new; guarded by mu
	tokens map[token]tokenState // of acquires that are not granted, unless absent; guarded by mu
}

// token is the token of an acquire of a key.
type token struct {
	key    string
	number uint64
}

// tokenState is the state of a token that is not granted.
type tokenState uint8

const (
	absent    tokenState = iota // it is not in the new store
	queued                      // it is in the new store, or may be
	withdrawn                   // its withdrawal has no answer yet, and may be carried out late
)

func (s *Store) tokenState(op *upstream.Op) tokenState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[token{op.Key, op.Token}]
}

func (s *Store) setTokenState(op *upstream.Op, state tokenState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := (token{op.Key, op.Token}); state != absent {
		s.tokens[t] = state
	} else {
		delete(s.tokens, t)
	}
}

var _ upstream.Store = (*Store)(nil)

// New returns a pair of stores and owns both from then on. If the new store's bases are its own
// order, epoch is added to them and the new store decides fences. If epoch is 0, the old store
// decides.
func New(old, new upstream.Store, epoch uint64) (*Store, error) {
	a, b := old.Info(), new.Info()
	if !a.Rebase {
		return nil, fmt.Errorf("%w: the bases of %s are its own order and cannot be raised to "+
			"the bases that other hosts get from %s meanwhile; stop all holders, then change the "+
			"store with a fence_epoch above the last fence base", ErrFences, a.Name, b.Name)
	}
	s := &Store{
		old:       old,
		new:       new,
		info:      pairInfo(a, b),
		sessional: [2]bool{a.Session > 0, b.Session > 0},
		hints:     driverkit.NewHints(1024),
		wall:      func() int64 { return time.Now().UnixMicro() },
		tokens:    make(map[token]tokenState),
	}
	if !b.Rebase {
		note := new.Capabilities().Noter
		if note == nil {
			return nil, fmt.Errorf("%w: the bases of %s are its own order, and it has no note by "+
				"which hosts with both stores could agree", ErrFences, b.Name)
		}
		s.order = &order{note: note, epoch: epoch}
	}
	if s.info.Session > 0 {
		s.sessions = make(chan upstream.Session, 1)
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	for i, st := range []upstream.Store{old, new} {
		if st.Hints() != nil {
			s.wg.Go(func() { s.passHints(ctx, st) })
		}
		if st.Sessions() != nil {
			s.wg.Go(func() { s.passSessions(ctx, i, st) })
		}
	}
	return s, nil
}

// SetWall replaces the wall clock, in µs, by which the pair chooses bases of permits. That is for
// simulations. It must be called before s is used.
func (s *Store) SetWall(wall func() int64) { s.wall = wall }

// pairInfo returns the properties of a pair of an old store a and a new store b.
func pairInfo(a, b upstream.Info) upstream.Info {
	p := upstream.Info{
		Name:    a.Name + "+" + b.Name,
		Safety:  a.Safety,
		MinTTL:  max(a.MinTTL, b.MinTTL),
		Session: a.Session,
		Floors:  b.Rebase,
		Pair:    true,
		Permits: a.Permits && b.Permits,
		Queue:   a.Queue && b.Queue,
		Notice:  max(a.Notice, b.Notice),
		Keeps:   min(a.Keeps, b.Keeps),
		Timeout: 3*a.Timeout + 2*b.Timeout,
	}
	if !b.Rebase {
		p.Timeout += 2 * b.Timeout // for the note
	}
	if b.Safety != "linearizable" {
		p.Safety = b.Safety
	}
	if b.Session > 0 && (a.Session == 0 || b.Session < a.Session) {
		p.Session = b.Session
	}
	p.TTLs = p.Session > 0 && (ttls(a) || ttls(b))
	return p
}

// ttls reports whether leases of a store end with their own TTLs.
func ttls(i upstream.Info) bool { return i.Session == 0 || i.TTLs }

// Cover sets the keys that this host has in both stores. Cover or CoverLater must be called before
// a daemon uses s. An error means that nothing has changed.
func (s *Store) Cover(ctx context.Context, keys []Keys) error {
	if s.order == nil {
		return nil
	}
	return s.order.cover(ctx, keys)
}

// CoverLater is like Cover but sends no request. The rules for keys are written into the note
// before the first grant of any key, and before Ping succeeds.
func (s *Store) CoverLater(keys []Keys) {
	if s.order != nil {
		s.order.coverLater(keys)
	}
}

// CheckNote returns an error if Cover would have to change the note and the note cannot be read.
func (s *Store) CheckNote(ctx context.Context, keys []Keys) error {
	if s.order == nil {
		return nil
	}
	return s.order.checkNote(ctx, keys)
}

// Info returns the properties of the pair.
func (s *Store) Info() upstream.Info { return s.info }

// Capabilities returns the optional parts of the contract that the pair implements by means of its
// two stores. The pair always has a Sweeper, because it must remove the states of tokens.
func (s *Store) Capabilities() upstream.Capabilities {
	c := upstream.Capabilities{
		Sweeper:     s,
		Pair:        &[2]upstream.Store{s.old, s.new},
		Connections: func() int { return upstream.Connections(s.old, s.new) },
	}
	old, new := s.old.Capabilities(), s.new.Capabilities()
	if old.Lister != nil || new.Lister != nil {
		c.Lister = s
	}
	if old.Registrar != nil || new.Registrar != nil {
		c.Registrar = s
	}
	if old.Answerer != nil || new.Answerer != nil {
		c.Answerer = s
	}
	if old.Mover != nil && new.Mover != nil {
		c.Mover = s
	}
	return c
}

// Hints returns the hints of both stores.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions returns the stream of the pair's deadlines. It is nil if neither store has a session.
func (s *Store) Sessions() <-chan upstream.Session { return s.sessions }

// Ping pings both stores. It also writes the rules that CoverLater has left to write, and returns
// an error until it can.
func (s *Store) Ping(ctx context.Context) error {
	old, err := s.old.Ping(ctx), s.new.Ping(ctx)
	if err == nil && s.order != nil {
		err = s.order.settle(ctx) // also while the old store is down
	}
	return errors.Join(old, err)
}

// Close closes both stores.
func (s *Store) Close() error {
	s.stop()
	s.wg.Wait()
	close(s.hints)
	if s.sessions != nil {
		close(s.sessions)
	}
	return errors.Join(s.new.Close(), s.old.Close())
}

func (s *Store) passHints(ctx context.Context, from upstream.Store) {
	for {
		select {
		case h, ok := <-from.Hints():
			if !ok {
				return
			}
			s.hints.Send(h)
		case <-ctx.Done():
			return
		}
	}
}

func (s *Store) passSessions(ctx context.Context, i int, from upstream.Store) {
	for {
		select {
		case n, ok := <-from.Sessions():
			if !ok {
				return
			}
			select {
			case s.sessions <- s.learn(i, n):
			case <-ctx.Done():
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// learn records the state of one store's session and returns the state of the pair's session.
func (s *Store) learn(i int, n upstream.Session) upstream.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.known[i]
	if n.No > k.No {
		*k = upstream.Session{No: n.No}
	}
	if n.Lost {
		if i == 1 && s.order != nil {
			s.order.sessionLost()
		}
		lost := upstream.Session{No: n.No + s.known[1-i].No, Lost: true}
		if n.No == k.No {
			*k = upstream.Session{No: n.No + 1}
		}
		return lost
	}
	if n.No == k.No {
		k.Until, k.TTL = max(k.Until, n.Until), cmp.Or(n.TTL, k.TTL)
	}
	return s.pairLocked()
}

// pairLocked returns the pair's session as far as it is known.
func (s *Store) pairLocked() upstream.Session {
	p := upstream.Session{No: s.known[0].No + s.known[1].No, Until: cache.Forever}
	if s.known[0].TTL > 0 || s.known[1].TTL > 0 {
		p.TTL = s.info.Session
	}
	for i, ends := range s.sessional {
		if ends {
			p.Until = min(p.Until, s.known[i].Until)
		}
		if ttl := s.known[i].TTL; ttl > 0 {
			p.TTL = min(p.TTL, ttl)
		}
	}
	return p
}

// session sets the session of a result r from the results of the two stores.
func (s *Store) session(r *upstream.Result, a, b *upstream.Result) {
	if s.sessions == nil {
		return
	}
	whole := true
	for i, x := range []*upstream.Result{a, b} {
		if x.Session > 0 {
			s.learn(i, upstream.Session{No: x.SessionNo, Until: x.Session})
		} else if s.sessional[i] {
			whole = false // the session of this store is unknown, and so is the pair's
		}
	}
	if !whole {
		r.Session, r.SessionNo = 0, 0
		return
	}
	r.Session, r.SessionNo = cache.Forever, a.SessionNo+b.SessionNo
	for _, x := range []*upstream.Result{a, b} {
		if x.Session > 0 {
			r.Session = min(r.Session, x.Session)
		}
	}
}

// List lists the locks of the old store and then the locks of the new store.
func (s *Store) List(
	ctx context.Context, prefix, cursor string, limit int,
) ([]upstream.Lock, string, error) {
	which, position, _ := strings.Cut(cursor, ":")
	if cursor == "" {
		which = "old"
	}
	st, next := s.old, "new:"
	if which == "new" {
		st, next = s.new, ""
	}
	l := st.Capabilities().Lister
	if l == nil {
		return nil, next, nil
	}
	locks, more, err := l.List(ctx, prefix, position, limit)
	if more != "" {
		next = which + ":" + more
	}
	return locks, next, err
}

// forget removes the states of tokens that the daemon does not know.
func (s *Store) forget(known func(key string, token uint64) bool) {
	s.mu.Lock()
	tokens := slices.Collect(maps.Keys(s.tokens))
	s.mu.Unlock()
	for _, t := range tokens {
		if !known(t.key, t.number) { // a token stays unknown, because tokens are not reused
			s.setTokenState(&upstream.Op{Key: t.key, Token: t.number}, absent)
		}
	}
}

// Sweep sweeps both stores if they can, and removes the states of tokens that the daemon does not
// know.
func (s *Store) Sweep(
	ctx context.Context, known func(key string, token uint64) bool,
) (removed int, err error) {
	s.forget(known)
	for _, st := range []upstream.Store{s.new, s.old} {
		if sw := st.Capabilities().Sweeper; sw != nil {
			n, e := sw.Sweep(ctx, known)
			removed, err = removed+n, errors.Join(err, e)
		}
	}
	return removed, err
}
