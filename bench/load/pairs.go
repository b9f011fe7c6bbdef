package load

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// PairsArgs says who acquires and releases keys that nobody else wants.
type PairsArgs struct {
	Addr    string // of the daemon's socket, or of the store for peers
	Callers int
	Tags    int // hash tags that the keys share; 0: each stands alone
	TTL     time.Duration
	Wait    time.Duration // 0: tries
	Quiet   bool          // releases are sent and not waited for
}

// Locker is one process's way to locks, shared by all its callers. Each peer is
// one.
type Locker interface {
	// Lock takes a key and returns what gives it up.
	Lock(ctx context.Context, caller int, key string) (unlock func(context.Context) error, err error)
	Close() error
}

type pairs struct {
	open   func(*PairsArgs) (Locker, error)
	locker Locker
	args   PairsArgs
}

// NewPairs returns the load that takes and gives up a new key again and again,
// with what open opens.
func NewPairs(open func(*PairsArgs) (Locker, error)) func() harness.Load {
	return func() harness.Load { return &pairs{open: open} }
}

func (p *pairs) Open(spec *harness.Spec) (int, error) {
	err := json.Unmarshal(spec.Args, &p.args)
	if err == nil {
		p.locker, err = p.open(&p.args)
	}
	return p.args.Callers, err
}

func (p *pairs) Run(ctx context.Context, caller int, rec *harness.Rec) error {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	var key []byte
	for !rec.Stopped() && ctx.Err() == nil {
		key = p.args.key(key[:0], rnd)
		began := time.Now()
		unlock, err := p.locker.Lock(ctx, caller, string(key))
		if err != nil {
			if ctx.Err() == nil {
				rec.Err(err)
				time.Sleep(time.Millisecond) // a broken peer should not spin
			}
			continue
		}
		if err := unlock(context.WithoutCancel(ctx)); err != nil {
			rec.Err(err)
			continue
		}
		rec.Op(time.Since(began))
	}
	return nil
}

// key appends a key that has not been there before.
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

func (p *pairs) Close() { p.locker.Close() }

// sidecar is our own client as a Locker: one connection for all callers.
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

func (s *sidecar) Lock(ctx context.Context, caller int, key string) (func(context.Context) error, error) {
	g, err := s.c.Acquire(ctx, client.AcquireArgs{Key: key, Owner: uint64(caller), Mode: protocol.Exclusive, Wait: s.args.Wait, TTL: s.args.TTL})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		release := client.ReleaseArgs{Key: key, Owner: uint64(caller), Fence: g.Fence}
		if s.args.Quiet {
			return s.c.ReleaseQuiet(release)
		}
		_, err := s.c.Release(ctx, release)
		return err
	}, nil
}

func (s *sidecar) Close() error { return s.c.Close() }
