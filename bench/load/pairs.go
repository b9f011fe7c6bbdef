package load

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// PairsArgs says which callers acquire and release keys that nothing else uses.
type PairsArgs struct {
	Addr    string // of the daemon's socket, or of the store for peers
	Callers int
	Tags    int // number of hash tags that the keys share; 0 for no tags
	TTL     time.Duration
	Wait    time.Duration // 0 for a try; the libraries do not limit their waits
	Backoff time.Duration // pause between two polls of a library that polls; 0 for its default
	Quiet   bool          // callers do not wait for the answers to releases
	Trace   string        // the traceparent of all acquires, if there is one
}

// Locker acquires locks for one process, for all its callers. Each peer implements it.
type Locker interface {
	// Lock acquires a key, and returns a function that releases it.
	Lock(ctx context.Context, caller int, key string) (unlock func(context.Context) error, err error)
	Close() error
}

// FencedLocker is a Locker that has modes, and returns the fence of each grant.
type FencedLocker interface {
	Locker
	LockFenced(ctx context.Context, caller int, key string, mode protocol.Mode) (fence uint64,
		unlock func(context.Context) error, err error)
}

// key appends a key that was not used before.
func (a *PairsArgs) key(b []byte, rnd *rand.Rand) []byte {
	b = append(b, "bench:"...)
	if a.Tags > 0 {
		b = fmt.Appendf(b, "{t%02d}:", rnd.IntN(a.Tags))
	}
	var raw [10]byte
	for i := range raw {
		raw[i] = byte(rnd.Uint32())
	}
	return hex.AppendEncode(b, raw[:])
}

// sidecar is the client of this product as a Locker. It has one connection for all callers.
type sidecar struct {
	c    *client.Client
	args *PairsArgs
}

// OpenSidecar connects to a daemon.
func OpenSidecar(args *PairsArgs) (Locker, error) {
	c, err := client.Dial(context.Background(), args.Addr, client.Options{Name: "bench"})
	if err != nil {
		return nil, err
	}
	return &sidecar{c, args}, nil
}

func (s *sidecar) Lock(ctx context.Context, caller int,
	key string) (func(context.Context) error, error) {
	_, unlock, err := s.LockFenced(ctx, caller, key, protocol.Exclusive)
	return unlock, err
}

func (s *sidecar) LockFenced(ctx context.Context, caller int, key string,
	mode protocol.Mode) (uint64, func(context.Context) error, error) {
	g, err := s.c.Acquire(ctx, client.AcquireArgs{Key: key, Owner: uint64(caller), Mode: mode,
		Wait: s.args.Wait, TTL: s.args.TTL,
		Traceparent: s.args.Trace})
	if err != nil {
		return 0, nil, err
	}
	return g.Fence, func(ctx context.Context) error {
		release := client.ReleaseArgs{Key: key, Owner: uint64(caller), Fence: g.Fence}
		if s.args.Quiet {
			return s.c.ReleaseQuiet(release)
		}
		_, err := s.c.Release(ctx, release)
		return err
	}, nil
}

func (s *sidecar) Close() error { return s.c.Close() }
