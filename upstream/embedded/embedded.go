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
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// DefaultSession is the default TTL of the session.
const DefaultSession = 10 * time.Second

// Options configures a Store.
type Options struct {
	// Path is the state file. Its directory must exist. If Path is empty, nothing is known after a
	// restart. That is for tests.
	Path string
	// Session is the session's TTL, and so the longest wait of a restart after a crash. 0 means
	// DefaultSession.
	Session time.Duration
	// Clock is the boot clock. It is required.
	Clock upstream.Clock
	// Wall is the wall clock, which fence bases follow. nil means time.Now.
	Wall func() time.Time
	// Boot is the id of this boot of the machine. If it is empty, the system's is used.
	Boot string
	// Successor is true for a Store that continues the Store of another process. Arrive must be its
	// first call.
	Successor bool
	// Log receives errors of writing the state file. It may be nil.
	Log *zap.Logger
}

// Store is the embedded store. It is safe for concurrent use.
type Store struct {
	session   session
	shards    [shardCount]shard
	seed      maphash.Seed
	hints     driverkit.Hints
	stopped   chan struct{} // closed when run has ended
	successor bool          // Arrive's begin has not been called
}

var _ upstream.Store = (*Store)(nil)

// Open reads the state file, if it exists, and starts the store. It returns an error if the file is
// malformed, or cannot be read or written.
func Open(opts Options) (*Store, error) {
	if opts.Clock == nil {
		return nil, errors.New("open embedded store: no clock")
	}
	if opts.Session == 0 {
		opts.Session = DefaultSession
	}
	if opts.Session < 10*time.Millisecond {
		return nil, fmt.Errorf("open embedded store: session %v is shorter than 10ms", opts.Session)
	}
	if opts.Wall == nil {
		opts.Wall = time.Now
	}
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	if opts.Boot == "" {
		id, err := upstream.BootID()
		if err != nil {
			return nil, fmt.Errorf("open embedded store: %w", err)
		}
		opts.Boot = id
	}
	s := &Store{
		seed:      maphash.MakeSeed(),
		hints:     driverkit.NewHints(hintBuffer),
		stopped:   make(chan struct{}),
		successor: opts.Successor,
	}
	for i := range s.shards {
		s.shards[i].held = make(map[string]uint64)
	}
	s.session.kept = s.keptLeases
	if err := s.session.open(opts, s.leave); err != nil {
		return nil, fmt.Errorf("open embedded store: %w", err)
	}
	if !opts.Successor {
		go s.run()
	}
	return s, nil
}

func (s *Store) shard(key string) *shard {
	return &s.shards[maphash.String(s.seed, key)%shardCount]
}

// Ping returns nil, because the store is in this process.
func (s *Store) Ping(context.Context) error { return nil }

// Info returns the properties of the store.
func (s *Store) Info() upstream.Info {
	i := upstream.Info{
		Name: "embedded", Safety: "linearizable", MinTTL: time.Millisecond,
		Session: s.session.ttl, Rebase: true, Permits: true, Queue: true, Timeout: time.Second,
	}
	if s.session.path != "" {
		i.Keeps = maxKeep
	}
	return i
}

// Capabilities returns the optional parts of the contract that the store implements.
func (s *Store) Capabilities() upstream.Capabilities {
	return upstream.Capabilities{Inline: s, Mover: s}
}

// Hints returns the stream of keys that have become available to a queued token.
func (s *Store) Hints() <-chan upstream.Hint { return s.hints }

// Sessions returns the stream of the session's deadlines. It keeps only the newest one.
func (s *Store) Sessions() <-chan upstream.Session { return s.session.deadlines }

// ApplyInline carries out op without I/O. It returns false, and has changed nothing, if the session
// or the limit of fence bases must be extended first, or the lease must be written to the file.
func (s *Store) ApplyInline(op *upstream.Op, res *upstream.Result) bool {
	return s.apply(op, res, false)
}

// Apply carries out ops. If the session must be extended first, Apply waits until the state file is
// on the disk.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	var first, keepErr error
	kept := false
	for i := range ops {
		// The third try is for a session that ended between two steps, such as on a machine that
		// was suspended then.
		for try := range 3 {
			if s.apply(&ops[i], &results[i], kept) {
				break
			}
			err := ctx.Err()
			if err == nil && try == 2 {
				err = errOutrun
			}
			if err == nil && asksToKeep(&ops[i]) {
				if !kept && keepErr == nil {
					keepErr = s.keep(ops)
					kept = keepErr == nil
				}
				err = keepErr
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

// Close ends the store's goroutine and closes its streams. Leases stay valid until the deadline in
// the state file. Without leases, Close removes the deadline. It must not be called twice, or
// concurrently with Apply.
func (s *Store) Close() error {
	if s.successor { // the predecessor still uses the file
		return nil
	}
	close(s.session.stop)
	<-s.stopped
	close(s.hints)
	close(s.session.deadlines)
	s.session.io.Lock()
	defer s.session.io.Unlock()
	return s.end()
}
