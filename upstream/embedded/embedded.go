package embedded

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"go.uber.org/zap"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// DefaultSession is the session's TTL unless Options says otherwise.
const DefaultSession = 10 * time.Second

// Options says how a Store is made.
type Options struct {
	// Path is the state file; its directory must exist. Without one nothing is
	// known after a restart: for tests, and for who can live with that.
	Path string
	// Session is the session's TTL: how long a restart after a crash waits at
	// most. DefaultSession when 0.
	Session time.Duration
	// Clock is the boot clock. It is required.
	Clock upstream.Clock
	// Wall is the wall clock, which fence bases follow. time.Now when nil.
	Wall func() time.Time
	// Boot is the identity of this boot of the machine. The system's when empty.
	Boot string
	// Successor is true for a Store that continues the Store of another process: Arrive is called before all else.
	Successor bool
	// Log hears of a state file that cannot be written. None when nil.
	Log *zap.Logger
}

// Store is the embedded store. It is safe for concurrent use.
type Store struct {
	session   session
	shards    [shardCount]shard
	seed      maphash.Seed
	hints     chan upstream.Hint
	stopped   chan struct{} // closed when run has ended
	successor bool          // it has not begun
}

var (
	_ upstream.Store  = (*Store)(nil)
	_ upstream.Inline = (*Store)(nil)
)

// Open reads the state file, if there is one, and starts the store. It fails
// when the file cannot be read, understood or written.
func Open(opts Options) (*Store, error) {
	if opts.Clock == nil {
		return nil, errors.New("open embedded store: no clock")
	}
	if opts.Session == 0 {
		opts.Session = DefaultSession
	}
	if opts.Session < 10*time.Millisecond {
		return nil, fmt.Errorf("open embedded store: session of %v is shorter than 10ms", opts.Session)
	}
	if opts.Wall == nil {
		opts.Wall = time.Now
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	if opts.Boot == "" {
		id, err := bootID()
		if err != nil {
			return nil, fmt.Errorf("open embedded store: %w", err)
		}
		opts.Boot = id
	}
	s := &Store{
		seed:      maphash.MakeSeed(),
		hints:     make(chan upstream.Hint, hintBuffer),
		stopped:   make(chan struct{}),
		successor: opts.Successor,
	}
	for i := range s.shards {
		s.shards[i].held = make(map[string]uint64)
	}
	if err := s.session.open(opts); err != nil {
		return nil, fmt.Errorf("open embedded store: %w", err)
	}
	if !opts.Successor {
		go s.run()
	}
	return s, nil
}

func (s *Store) shard(key string) *shard { return &s.shards[maphash.String(s.seed, key)%shardCount] }

// Ping is nil: the store is in this process.
func (s *Store) Ping(context.Context) error { return nil }

// Info says what kind of store this is.
func (s *Store) Info() upstream.Info {
	return upstream.Info{
		Name: "embedded", Safety: "linearizable", MinTTL: time.Millisecond,
		Session: s.session.ttl, Rebase: true, Permits: true, Queue: true, Timeout: time.Second,
	}
}

// Hints is the stream of keys that came free for a queued token.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions is the stream of the session's deadlines; a deadline that nobody has
// read yet gives way to the next.
func (s *Store) Sessions() <-chan upstream.Session { return s.session.news }

// ApplyInline carries out op without I/O. It returns false, and has done
// nothing, when the session or the fence limit has to be moved on first.
func (s *Store) ApplyInline(op *upstream.Op, res *upstream.Result) bool {
	return s.apply(op, res)
}

// Apply carries out ops, moving the session on first where that is due: then it
// waits for the state file to be on the disk.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	var first error
	for i := range ops {
		// The second pass is for when the session ran out between two steps, as
		// on a machine that was suspended just then.
		for try := range 3 {
			if s.apply(&ops[i], &results[i]) {
				break
			}
			err := ctx.Err()
			if err == nil && try == 2 {
				err = errOutrun
			}
			if err == nil {
				err = s.advance(ops[i].Floor, false)
			}
			if err != nil {
				results[i] = upstream.Result{Status: cache.Refused, Left: -1, Err: err}
				first = errors.Join(first, err)
				break
			}
		}
	}
	return first
}

var errOutrun = errors.New("the session ends faster than it can be extended")

// Close ends the store's goroutine and closes its streams. What is held stays
// valid to its deadline, which the state file keeps; with nothing held the
// deadline is taken back. It must not run at the same time as Apply, nor be
// called twice.
func (s *Store) Close() error {
	if s.successor { // the process that it was to take over from still uses the file
		return nil
	}
	close(s.session.stop)
	<-s.stopped
	close(s.hints)
	close(s.session.news)
	s.session.io.Lock()
	defer s.session.io.Unlock()
	return s.session.end()
}
