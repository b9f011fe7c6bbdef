package redis

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// read gives each op of a call its result.
func (b *batch) read(c *call) {
	v, err := c.cmd.Result()
	if err != nil {
		st, err := b.judge(c, err)
		for _, i := range c.ops {
			b.fail(int(i), st, err)
		}
		return
	}
	if err := b.answer(c, v); err != nil {
		for _, i := range c.ops {
			b.fail(int(i), cache.Unknown, fmt.Errorf("%w: %w", ErrNoAnswer, err))
		}
	}
}

// judge says what an error means for what was asked: Refused only when it
// proves that nothing was done.
func (b *batch) judge(c *call, err error) (cache.Status, error) {
	addr, sent := b.store.cfg.Addr, false
	if c.leg != nil {
		addr, sent = c.leg.node.String(), c.leg.mark.sent
	}
	switch {
	case isReply(err) && sent && refused(err.Error()):
		b.cannot(c.leg, err.Error())
		return cache.Refused, fmt.Errorf("%w at %s: %w", ErrRefused, addr, err)
	case sent:
		return cache.Unknown, fmt.Errorf("%w at %s: %w", ErrNoAnswer, addr, err)
	case errors.Is(err, ErrServer):
		return cache.Refused, fmt.Errorf("redis at %s: %w", addr, err)
	default:
		return cache.Refused, fmt.Errorf("%w at %s: %w", ErrNothingSent, addr, advice(err))
	}
}

// cannot notes an error reply that says that the server cannot do anything now,
// or is not the one that it was.
func (b *batch) cannot(l *leg, msg string) {
	msg = strings.TrimPrefix(msg, "-")
	if !unable(msg) {
		return
	}
	l.bad = true
	if b.store.cluster != nil {
		b.store.cluster.look()
	} else if strings.HasPrefix(msg, "READONLY ") {
		l.node.dialer.retire() // connections made from now on find the master
	}
}

var errAnswer = errors.New("the script's answer makes no sense")

// answer reads base or {base, index, code, extra, …}: see fast.lua.
func (b *batch) answer(c *call, answer any) error {
	base, ok := answer.(int64)
	var v []any
	if !ok {
		if v, ok = answer.([]any); !ok || len(v)%3 != 1 {
			return errAnswer
		}
		if msg, ok := v[0].(string); ok {
			for _, i := range c.ops {
				b.errored(c, i, cache.Refused, msg)
			}
			return nil
		}
		base, ok = v[0].(int64)
		v = v[1:]
	}
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
	for ; len(v) > 0; v = v[3:] {
		at, ok1 := v[0].(int64)
		code, ok2 := v[1].(int64)
		if !ok1 || !ok2 || at < 0 || int(at) > len(c.ops) {
			return errAnswer
		}
		if msg, ok := v[2].(string); ok && at == 0 {
			b.hints = append(b.hints, msg)
		} else if at == 0 {
			return errAnswer
		} else if ok {
			b.errored(c, c.ops[at-1], cache.Status(code), msg)
		} else if left, ok := v[2].(int64); ok && b.sensible(c.ops[at-1], code) {
			b.other(c.ops[at-1], code, left)
		} else {
			return errAnswer
		}
	}
	b.settle(c)
	return nil
}

// sensible says that op i can end as code says.
func (b *batch) sensible(i int32, code int64) bool {
	st, kind := cache.Status(code&codeStatus), b.ops[i].Kind
	return st <= cache.Refused && (st != cache.Granted || kind == cache.OpTry || kind == cache.OpJoin)
}

// success is how an op ends of which the answer says nothing.
var success = [...]cache.Status{
	cache.OpTry: cache.Granted, cache.OpJoin: cache.Granted, cache.OpWithdraw: cache.Done, cache.OpRelease: cache.Done,
	cache.OpRenew: cache.Done, cache.OpDowngrade: cache.Done, cache.OpPeek: cache.Done,
}

// The flags of an answer's code, above the status; slow.lua has the same.
const (
	codeContended = 16
	codeShared    = 32
	codeStatus    = 15
)

func (b *batch) errored(c *call, i int32, st cache.Status, msg string) {
	msg = strings.TrimPrefix(msg, "-")
	b.cannot(c.leg, msg)
	if st == cache.Refused {
		b.fail(int(i), st, fmt.Errorf("%w at %v: %s", ErrRefused, c.leg.node, msg))
	} else {
		b.fail(int(i), cache.Unknown, fmt.Errorf("%w at %v: %s", ErrNoAnswer, c.leg.node, msg))
	}
}

func (b *batch) other(i int32, code, left int64) {
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

// settle takes away what only some results have.
func (b *batch) settle(c *call) {
	for _, i := range c.ops {
		op, r := &b.ops[i], &b.results[i]
		if r.Status != cache.Granted && !(r.Status == cache.Done && op.Kind == cache.OpRenew && op.Rebase) {
			r.Base = 0
		}
		if op.Kind == cache.OpWithdraw && r.Status == cache.NotHeld {
			r.Status = cache.Done
		}
		if c.leg.acks != nil && gave(op.Kind, r.Status) {
			b.fail(int(i), cache.Unknown, fmt.Errorf("%w at %v: %w", ErrNoAnswer, c.leg.node, c.leg.acks))
		}
	}
}
