package redis

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// read sets the results of the ops of a call.
func (b *batch) read(c *call) {
	v, err := c.cmd.Result()
	if err != nil {
		st, err := b.classify(c, err)
		for _, i := range c.ops {
			b.fail(int(i), st, err)
		}
		return
	}
	if err := b.readReply(c, v); err != nil {
		for _, i := range c.ops {
			b.fail(int(i), cache.Unknown, fmt.Errorf("%w: %w", ErrNoAnswer, err))
		}
	}
}

// classify returns the status of ops whose call failed with err. It is Refused only if err proves
// that nothing was done.
func (b *batch) classify(c *call, err error) (cache.Status, error) {
	addr, sent := b.store.cfg.Addr, false
	if c.pipeline != nil {
		addr, sent = c.pipeline.node.String(), c.pipeline.marker.sent
	}
	switch {
	case isReply(err) && sent && refused(err.Error()):
		b.noteUnusable(c.pipeline, err.Error())
		return cache.Refused, fmt.Errorf("%w at %s: %w", ErrRefused, addr, err)
	case sent:
		return cache.Unknown, fmt.Errorf("%w at %s: %w", ErrNoAnswer, addr, err)
	case errors.Is(err, ErrServer):
		return cache.Refused, fmt.Errorf("redis at %s: %w", addr, err)
	default:
		return cache.Refused, fmt.Errorf("%w at %s: %w", ErrNothingSent, addr, advice(err))
	}
}

// noteUnusable notes an error reply that says that the server cannot serve now, or has another role
// than before.
func (b *batch) noteUnusable(pl *pipeline, msg string) {
	msg = strings.TrimPrefix(msg, "-")
	if !unable(msg) {
		return
	}
	pl.unusable = true
	if b.store.cluster != nil {
		b.store.cluster.requestRefresh()
	} else if strings.HasPrefix(msg, "READONLY ") {
		pl.node.dialer.retire() // new connections find the master
	}
}

var errAnswer = errors.New("the script's answer is malformed")

// readReply reads base or {base, index, code, extra, …}: see fast.lua.
func (b *batch) readReply(c *call, answer any) error {
	v, ok := answer.([]any)
	if !ok {
		v = []any{answer}
	}
	if len(v)%3 != 1 {
		return errAnswer
	}
	if msg, failed := v[0].(string); failed && ok {
		for _, i := range c.ops {
			b.failReply(c, i, cache.Refused, msg)
		}
		return nil
	}
	base, ok := v[0].(int64)
	if !ok || base < 0 || uint64(base) > cache.MaxBase {
		return errAnswer
	}
	if base != 0 {
		b.store.fences.SawBase(uint64(base) + uint64(len(c.ops)) - 1)
	}
	for n, i := range c.ops {
		b.results[i].Status = success[b.ops[i].Kind]
		if base != 0 {
			b.results[i].Base = uint64(base) + uint64(n)
		}
	}
	for v = v[1:]; len(v) > 0; v = v[3:] {
		if !b.readEntry(c, v) {
			return errAnswer
		}
	}
	b.finish(c)
	return nil
}

// readEntry reads one index, code and extra of a reply. It returns false if they are malformed.
func (b *batch) readEntry(c *call, v []any) bool {
	at, ok1 := v[0].(int64)
	code, ok2 := v[1].(int64)
	if !ok1 || !ok2 || at < 0 || int(at) > len(c.ops) {
		return false
	}
	msg, isText := v[2].(string)
	if at == 0 {
		if isText {
			b.hints = append(b.hints, msg)
		}
		return isText
	}
	op := c.ops[at-1]
	if isText {
		b.failReply(c, op, cache.Status(code), msg)
		return true
	}
	left, ok := v[2].(int64)
	if !ok || !b.possible(op, code) {
		return false
	}
	b.setResult(op, code, left)
	return true
}

// possible reports whether op i can end with the code.
func (b *batch) possible(i int32, code int64) bool {
	st, kind := cache.Status(code&codeStatus), b.ops[i].Kind
	return st <= cache.Refused && (st != cache.Granted || kind == cache.OpTry || kind == cache.OpJoin)
}

// success is the status of ops that the reply does not mention.
var success = [...]cache.Status{
	cache.OpTry: cache.Granted, cache.OpJoin: cache.Granted, cache.OpWithdraw: cache.Done,
	cache.OpRelease: cache.Done,
	cache.OpRenew:   cache.Done, cache.OpDowngrade: cache.Done, cache.OpPeek: cache.Done,
}

// The flags of a code in a reply, above the status. slow.lua has the same.
const (
	codeContended = 16
	codeShared    = 32
	codeStatus    = 15
)

func (b *batch) failReply(c *call, i int32, st cache.Status, msg string) {
	msg = strings.TrimPrefix(msg, "-")
	b.noteUnusable(c.pipeline, msg)
	if st == cache.Refused {
		b.fail(int(i), st, fmt.Errorf("%w at %v: %s", ErrRefused, c.pipeline.node, msg))
	} else {
		b.fail(int(i), cache.Unknown, fmt.Errorf("%w at %v: %s", ErrNoAnswer, c.pipeline.node, msg))
	}
}

func (b *batch) setResult(i int32, code, left int64) {
	r := &b.results[i]
	r.Status = cache.Status(code & codeStatus)
	r.Contended = code&codeContended != 0
	if code&codeShared != 0 {
		r.Mode = cache.Shared
	} else if op := &b.ops[i]; op.Kind == cache.OpPeek && op.Mode == cache.Permit {
		r.Mode = cache.Permit
	}
	if left >= 0 && (r.Status == cache.Busy || r.Status == cache.Queued) {
		r.Left = min(left, math.MaxInt64/int64(time.Millisecond)) * int64(time.Millisecond)
	}
}

// finish corrects results that only some kinds of ops can have, and results that too few replicas
// have confirmed.
func (b *batch) finish(c *call) {
	for _, i := range c.ops {
		op, r := &b.ops[i], &b.results[i]
		if r.Status != cache.Granted && !(r.Status == cache.Done &&
			op.Kind == cache.OpRenew && op.Rebase) {
			r.Base = 0
		}
		if op.Kind == cache.OpWithdraw && r.Status == cache.NotHeld {
			r.Status = cache.Done
		}
		if c.pipeline.unconfirmed != nil && needsReplicas(op.Kind, r.Status) {
			b.fail(int(i), cache.Unknown, fmt.Errorf("%w at %v: %w",
				ErrNoAnswer, c.pipeline.node, c.pipeline.unconfirmed))
		}
	}
}
