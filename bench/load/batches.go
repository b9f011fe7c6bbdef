package load

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// BatchesArgs says which callers acquire and release many keys at once that nothing else uses. That
// is the least work for a store that serves batches as large as the daemon's, without the daemon.
type BatchesArgs struct {
	PairsArgs // Callers is the number of batches in flight
	Batch     int
}

// Batcher acquires many locks at once for one process.
type Batcher interface {
	// LockAll acquires keys, and returns a function that releases them.
	LockAll(ctx context.Context, keys []string) (unlock func(context.Context) error, err error)
	Close() error
}

type batches struct {
	open    func(*BatchesArgs) (Batcher, error)
	batcher Batcher
	args    BatchesArgs
}

// NewBatches returns a load that acquires and releases batches of new keys again and again, with
// the Batcher of open. Each key counts as one pair.
func NewBatches(open func(*BatchesArgs) (Batcher, error)) func() harness.Load {
	return func() harness.Load { return &batches{open: open} }
}

func (b *batches) Open(spec *harness.Spec) (int, error) {
	err := json.Unmarshal(spec.Args, &b.args)
	if err == nil {
		b.batcher, err = b.open(&b.args)
	}
	return b.args.Callers, err
}

func (b *batches) Run(ctx context.Context, _ int, rec *harness.Rec) error {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	keys := make([]string, b.args.Batch)
	for !rec.Stopped() && ctx.Err() == nil {
		for i := range keys {
			keys[i] = string(b.args.key(nil, rnd))
		}
		began := time.Now()
		unlock, err := b.batcher.LockAll(ctx, keys)
		if err == nil {
			err = unlock(context.WithoutCancel(ctx))
		}
		if err != nil {
			if ctx.Err() == nil {
				rec.Err(err)
				time.Sleep(time.Millisecond) // so that a broken peer does not use all CPU time
			}
			continue
		}
		took := time.Since(began)
		for range keys {
			rec.Op(took)
		}
	}
	return nil
}

func (b *batches) Close() { b.batcher.Close() }
