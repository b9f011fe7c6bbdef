package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// WorkArgs says which callers acquire and release which keys. Without Keys, each key is new and
// nothing else uses it; then the load measures how long a pair of acquire and release takes. With
// Keys, it measures how long an acquire waits.
type WorkArgs struct {
	PairsArgs
	Keys    int           // number of keys that all callers of all processes share
	Prefix  string        // prefix of these keys
	Board   string        // path of a board for so many keys, from NewBoard
	Skew    bool          // four of five acquires are for the first fifth of the keys
	Readers float64       // share of the acquires that are in shared mode
	Section time.Duration // time inside the lock
	Pause   time.Duration // pause of a caller between two locks
}

type work struct {
	open   func(*PairsArgs) (Locker, error)
	locker Locker
	fenced FencedLocker // the Locker if it is fenced, or nil
	args   WorkArgs
	board  *board
	first  uint64 // number of this process's first caller as a contender
	// pick draws one of the keys, and reports whether the acquire is also counted separately.
	pick func(*rand.Rand) (slot int, apart bool)
}

// NewPairs returns the load of WorkArgs, which uses the locker of open. If only PairsArgs are set,
// it acquires and releases a new key again and again.
func NewPairs(open func(*PairsArgs) (Locker, error)) func() harness.Load {
	return func() harness.Load { return &work{open: open} }
}

func (w *work) Open(spec *harness.Spec) (int, error) {
	err := json.Unmarshal(spec.Args, &w.args)
	if err != nil {
		return 0, err
	}
	w.first = uint64(spec.Proc*w.args.Callers) + 1
	w.pick = func(rnd *rand.Rand) (int, bool) { return w.args.pick(rnd), false }
	if w.args.Keys > 0 {
		if w.board, err = openBoard(w.args.Board, w.args.Keys); err != nil {
			return 0, err
		}
	}
	if w.locker, err = w.open(&w.args.PairsArgs); err != nil {
		return 0, err
	}
	w.fenced, _ = w.locker.(FencedLocker)
	if w.fenced == nil && w.args.Readers > 0 {
		return 0, errors.New("this library has no shared mode")
	}
	return w.args.Callers, nil
}

func (w *work) Run(ctx context.Context, caller int, rec *harness.Rec) error {
	rnd := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	turn := w.own
	if w.args.Keys > 0 {
		turn = w.wanted
	}
	for !rec.Stopped() && ctx.Err() == nil {
		if err := turn(ctx, caller, rnd, rec); err != nil && ctx.Err() == nil {
			rec.Err(err)
			time.Sleep(time.Millisecond) // so that a broken peer does not use all CPU time
		}
		if w.args.Pause > 0 {
			time.Sleep(w.args.Pause)
		}
	}
	return nil
}

// own makes one pair on a key that nothing else uses.
func (w *work) own(ctx context.Context, caller int, rnd *rand.Rand, rec *harness.Rec) error {
	key := string(w.args.key(nil, rnd))
	began := time.Now()
	unlock, err := w.locker.Lock(ctx, caller, key)
	if err != nil {
		return err
	}
	if err := unlock(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	rec.Op(time.Since(began))
	return nil
}

// wanted makes one turn on a key that other callers use, too.
func (w *work) wanted(ctx context.Context, caller int, rnd *rand.Rand, rec *harness.Rec) error {
	slot, apart := w.pick(rnd)
	key := fmt.Sprintf("%s:%04d", w.args.Prefix, slot)
	mode := protocol.Exclusive
	if rnd.Float64() < w.args.Readers {
		mode = protocol.Shared
	}
	began := time.Now()
	fence, unlock, err := w.lock(ctx, caller, key, mode)
	if err != nil {
		return err
	}
	took := time.Since(began)
	if rec.Op(took); apart {
		rec.OpApart(took)
	}
	id := w.first + uint64(caller)
	rec.Entered(w.board.enter(slot, id, fence, mode))
	if w.args.Section > 0 {
		time.Sleep(w.args.Section)
	}
	w.board.leave(slot, id, mode)
	return unlock(context.WithoutCancel(ctx))
}

// lock acquires in a mode. The fence is 0 for a locker without fences.
func (w *work) lock(ctx context.Context, caller int, key string, mode protocol.Mode) (fence uint64,
	unlock func(context.Context) error, err error) {
	if w.fenced != nil {
		return w.fenced.LockFenced(ctx, caller, key, mode)
	}
	unlock, err = w.locker.Lock(ctx, caller, key)
	return 0, unlock, err
}

// pick draws one of the keys.
func (a *WorkArgs) pick(rnd *rand.Rand) int {
	few := a.Keys / 5
	switch {
	case !a.Skew || few == 0:
		return rnd.IntN(a.Keys)
	case rnd.IntN(5) < 4:
		return rnd.IntN(few)
	}
	return few + rnd.IntN(a.Keys-few)
}

func (w *work) Close() {
	w.locker.Close()
	if w.board != nil {
		w.board.close()
	}
}
