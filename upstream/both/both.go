package both

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// ErrFences says that a pair of stores cannot keep fences rising.
var ErrFences = errors.New("fences would not rise")

// Store is two stores at once.
type Store struct {
	old, new  upstream.Store
	info      upstream.Info
	sessional [2]bool // whether leases of old, and of new, end with a session
	order     *order  // decides fences; nil if the new store's bases can be raised
	hints     chan upstream.Hint
	sessions  chan upstream.Session
	stop      context.CancelFunc
	wg        sync.WaitGroup

	mu     sync.Mutex
	known  [2]upstream.Session // of old and new; guarded by mu
	places map[place]standing  // of tokens that are not granted; guarded by mu
}

// place is what one token has for a key.
type place struct {
	key   string
	token uint64
}

// standing is what is known of a token that is not granted.
type standing uint8

const (
	absent standing = iota // it is not in the new store
	waits                  // it is, or may be, in the new store
	leaves                 // its withdrawal has not been answered, and may be carried out late
)

// standing returns what is known of op's token.
func (s *Store) standing(op *upstream.Op) standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places[place{op.Key, op.Token}]
}

func (s *Store) setStanding(op *upstream.Op, is standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := (place{op.Key, op.Token}); is != absent {
		s.places[p] = is
	} else {
		delete(s.places, p)
	}
}

var (
	_ upstream.Store     = (*Store)(nil)
	_ upstream.Connected = (*Store)(nil)
)

// New makes a store of two, which it owns from here on. Where the new store's bases are its own order,
// epoch lifts them, and with it the new store decides fences; with 0 the old one does.
func New(old, new upstream.Store, epoch uint64) (*Store, error) {
	a, b := old.Info(), new.Info()
	if !a.Rebase {
		return nil, fmt.Errorf("%w: the bases of %s are its own order and cannot be raised to those of %s, which the other hosts "+
			"would get meanwhile; stop all holders, then change the store with a fence_epoch above the last fence base", ErrFences, a.Name, b.Name)
	}
	s := &Store{old: old, new: new, sessional: [2]bool{a.Session > 0, b.Session > 0}, hints: make(chan upstream.Hint, 1024), places: make(map[place]standing)}
	if !b.Rebase {
		note, ok := new.(upstream.Noter)
		if !ok {
			return nil, fmt.Errorf("%w: %s decides its fences itself, and cannot keep what hosts with both stores have to agree on", ErrFences, b.Name)
		}
		s.order = &order{note: note, epoch: epoch}
	}
	s.info = upstream.Info{Name: a.Name + "+" + b.Name, Safety: a.Safety, MinTTL: max(a.MinTTL, b.MinTTL),
		Session: a.Session, TTLs: ttls(a) || ttls(b), Floors: b.Rebase, Pair: true, Permits: a.Permits && b.Permits, Queue: a.Queue && b.Queue, Notice: max(a.Notice, b.Notice), Timeout: 3*a.Timeout + 2*b.Timeout}
	if s.order != nil {
		s.info.Timeout += 2 * b.Timeout // for the note
	}
	if b.Safety != "linearizable" {
		s.info.Safety = b.Safety
	}
	if b.Session > 0 && (a.Session == 0 || b.Session < a.Session) {
		s.info.Session = b.Session
	}
	if s.info.Session == 0 {
		s.info.TTLs = false // of course
	} else {
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

func ttls(i upstream.Info) bool { return i.Session == 0 || i.TTLs }

// Cover says which keys this host keeps in both stores, until it is called again. It has to be called before
// a daemon uses s, or CoverLater has. If it fails nothing has changed.
func (s *Store) Cover(ctx context.Context, keys []Keys) error {
	if s.order == nil {
		return nil
	}
	return s.order.cover(ctx, keys)
}

// CoverLater is Cover that asks neither store. What hosts with both stores have to know of keys is written before the
// first grant of any key, and before Ping succeeds.
func (s *Store) CoverLater(keys []Keys) {
	if s.order != nil {
		s.order.coverLater(keys)
	}
}

// Reads fails if Cover cannot succeed, because it has to change what hosts with both stores have agreed on, and that
// cannot be read.
func (s *Store) Reads(ctx context.Context, keys []Keys) error {
	if s.order == nil {
		return nil
	}
	return s.order.reads(ctx, keys)
}

// Info says what the two have in common.
func (s *Store) Info() upstream.Info { return s.info }

// Pair is the old store and the new one.
func (s *Store) Pair() [2]upstream.Store { return [2]upstream.Store{s.old, s.new} }

// Connections is how many there are to both.
func (s *Store) Connections() int { return upstream.Connections(s.old, s.new) }

// Hints is what either store has noticed.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is the stream of the deadlines that both sessions keep; nil when
// neither store has one.
func (s *Store) Sessions() <-chan upstream.Session { return s.sessions }

// Ping asks both. It does what CoverLater has left to do, and fails while that cannot be done.
func (s *Store) Ping(ctx context.Context) error {
	old, err := s.old.Ping(ctx), s.new.Ping(ctx)
	if err == nil && s.order != nil {
		err = s.order.settle(ctx) // also while the old store is down
	}
	return errors.Join(old, err)
}

// Close closes both.
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
			select {
			case s.hints <- h:
			default: // they may be lost
			}
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

// learn takes news of one store's session and says what they are of the pair's.
func (s *Store) learn(i int, n upstream.Session) upstream.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.known[i]
	if n.No > k.No {
		*k = upstream.Session{No: n.No}
	}
	if n.Lost {
		lost := upstream.Session{No: n.No + s.known[1-i].No, Lost: true}
		if n.No == k.No {
			*k = upstream.Session{No: n.No + 1}
		}
		return lost
	}
	if n.No == k.No {
		k.Until = max(k.Until, n.Until)
	}
	return s.pairLocked()
}

// pairLocked is the session of both as far as it is known.
func (s *Store) pairLocked() upstream.Session {
	p := upstream.Session{No: s.known[0].No + s.known[1].No, Until: cache.Forever}
	for i, ends := range s.sessional {
		if ends {
			p.Until = min(p.Until, s.known[i].Until)
		}
	}
	return p
}

// session says under which session an answer of each store was got.
func (s *Store) session(r *upstream.Result, a, b *upstream.Result) {
	if s.sessions == nil {
		return
	}
	whole := true
	for i, x := range []*upstream.Result{a, b} {
		if x.Session > 0 {
			s.learn(i, upstream.Session{No: x.SessionNo, Until: x.Session})
		} else if s.sessional[i] {
			whole = false // it says nothing of its session, so nothing is known of the pair's
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

// List lists the old store's locks, then those of the new one.
func (s *Store) List(ctx context.Context, prefix, cursor string, limit int) ([]upstream.Lock, string, error) {
	which, place, _ := strings.Cut(cursor, ":")
	if cursor == "" {
		which = "old"
	}
	st, next := s.old, "new:"
	if which == "new" {
		st, next = s.new, ""
	}
	l, ok := st.(upstream.Lister)
	if !ok {
		return nil, next, nil
	}
	locks, more, err := l.List(ctx, prefix, place, limit)
	if more != "" {
		next = which + ":" + more
	}
	return locks, next, err
}

// forget forgets what is known of tokens that are not known to the daemon.
func (s *Store) forget(known func(key string, token uint64) bool) {
	s.mu.Lock()
	places := slices.Collect(maps.Keys(s.places))
	s.mu.Unlock()
	for _, p := range places {
		if !known(p.key, p.token) { // it never comes back, because tokens are not reused
			s.setStanding(&upstream.Op{Key: p.key, Token: p.token}, absent)
		}
	}
}

// Sweep has those of the two sweep that can, and forgets tokens that the daemon does not know any more.
func (s *Store) Sweep(ctx context.Context, known func(key string, token uint64) bool) (removed int, err error) {
	s.forget(known)
	for _, st := range []upstream.Store{s.new, s.old} {
		if sw, ok := st.(upstream.Sweeper); ok {
			n, e := sw.Sweep(ctx, known)
			removed, err = removed+n, errors.Join(err, e)
		}
	}
	return removed, err
}
