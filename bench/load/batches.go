package load

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
)

// BatchesArgs says who acquires and releases many keys at once that nobody else
// wants: the least that a store can be asked for by somebody who gathers locks as
// the daemon does, without the daemon.
type BatchesArgs struct {
	PairsArgs // Callers is how many batches are on their way
	Batch     int
}

// Batcher is one process's way to many locks at once.
type Batcher interface {
	// LockAll takes keys and returns what gives them up.
	LockAll(ctx context.Context, keys []string) (unlock func(context.Context) error, err error)
	Close() error
}

type batches struct {
	open    func(*BatchesArgs) (Batcher, error)
	batcher Batcher
	args    BatchesArgs
}

// NewBatches returns the load that takes and gives up batches of new keys again and
// again, with what open opens. Each key counts as a pair.
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
				time.Sleep(time.Millisecond) // a broken peer should not spin
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
