package redis

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var evalsha any = "evalsha"

// batch is one Apply on its way. It is reused, so that a batch costs a few
// allocations and not a few a key.
type batch struct {
	store   *Store
	ops     []upstream.Op
	results []upstream.Result
	err     error // the first thing that went wrong, for logs

	groups [scriptCount][]int32 // indices of ops
	calls  []call
	cmds   []goredis.Cmder
	buf    []byte // the text of all arguments
	args   []any  // the arguments of all calls; each points into spans
	spans  []span
	// sent is set as go-redis begins to write the first call. While it is not,
	// nothing of this batch has left the process, whatever the error.
	sent bool
}

// call is one script call.
type call struct {
	script int
	ops    []int32 // indices of ops, in the order of the script's locks
	cmd    *goredis.SliceCmd
	over   bool // it has its answer, or its error
	sent   bool // … and something of it was sent
}

// span is one argument: a piece of the batch's text.
type span struct {
	b        *batch
	from, to int
}

// MarshalBinary is called by go-redis as it writes the argument.
func (a *span) MarshalBinary() ([]byte, error) {
	a.b.sent = true
	return a.b.buf[a.from:a.to], nil
}

func newBatch(s *Store) *batch { return &batch{store: s} }

func (b *batch) begin(ops []upstream.Op, results []upstream.Result) {
	b.ops, b.results, b.err, b.sent = ops, results, nil, false
	for i := range b.groups {
		b.groups[i] = b.groups[i][:0]
	}
	clear(b.calls)
	clear(b.cmds)
	b.calls, b.cmds, b.buf, b.args, b.spans = b.calls[:0], b.cmds[:0], b.buf[:0], b.args[:0], b.spans[:0]
}

// fail gives op i its end. The first error is kept for logs.
func (b *batch) fail(i int, st cache.Status, err error) {
	b.results[i] = upstream.Result{Status: st, Left: -1, Err: err}
	if b.err == nil {
		b.err = err
	}
}

func (b *batch) build() {
	for k := range b.groups {
		for part := range slices.Chunk(b.groups[k], perCall) {
			b.add(k, part)
		}
	}
}

// add appends a call. The scripts' heads say what they take.
func (b *batch) add(k int, part []int32) {
	sc, from := &scripts[k], len(b.args)
	locks := len(part)
	if sc.fence {
		locks++
	}
	if sc.queued {
		locks++
	}
	b.args = append(b.args, evalsha, sc.sha, locks)
	if sc.fence {
		b.text(fenceName)
	}
	if sc.queued {
		b.text(queuedName)
	}
	for _, i := range part {
		at := len(b.buf)
		b.buf = append(append(b.buf, b.store.cfg.Prefix...), b.ops[i].Key...)
		b.arg(at)
	}
	b.args = append(b.args, b.store.me)
	b.text(siblings)
	ttl := b.head(k, part)
	if k != scriptPeek {
		for _, i := range part {
			b.token(b.ops[i].Token)
		}
	}
	if ttl < 0 {
		for _, i := range part {
			b.number(millis(b.ops[i].TTL))
		}
	}
	b.calls = append(b.calls, call{script: k, ops: part})
	b.calls[len(b.calls)-1].cmd = b.command(b.args[from:len(b.args):len(b.args)])
}

func (b *batch) command(args []any) *goredis.SliceCmd {
	cmd := goredis.NewSliceCmd(context.Background(), args...)
	b.cmds = append(b.cmds, cmd)
	return cmd
}

// head appends what a script takes between the siblings and the tokens. It
// returns the ttl that all ops have, or -1 when each has to be sent.
func (b *batch) head(k int, part []int32) int64 {
	if k == scriptRelease || k == scriptPeek {
		return 0
	}
	ttl, floor, rebase := millis(b.ops[part[0]].TTL), uint64(0), false
	for _, i := range part {
		op := &b.ops[i]
		floor = max(floor, op.Floor)
		rebase = rebase || op.Rebase
		if millis(op.TTL) != ttl {
			ttl = -1
		}
	}
	if scripts[k].fence {
		b.number(int64(floor))
	}
	if ttl < 0 {
		b.text("")
	} else {
		b.number(ttl)
	}
	switch k {
	case scriptAcquire, scriptShare:
		b.number(millis(b.store.cfg.WaiterLease))
		b.marks(part, func(op *upstream.Op) byte {
			if op.Kind == cache.OpJoin {
				return 'j'
			}
			return 't'
		})
	case scriptRenew:
		if !rebase {
			b.text("")
			break
		}
		b.marks(part, func(op *upstream.Op) byte {
			if op.Rebase {
				return 'b'
			}
			return '-'
		})
	}
	return ttl
}

// millis rounds up: the store must not end a lease before we do.
func millis(d time.Duration) int64 {
	return max(1, int64((d+time.Millisecond-1)/time.Millisecond))
}

func (b *batch) marks(part []int32, mark func(*upstream.Op) byte) {
	at := len(b.buf)
	for _, i := range part {
		b.buf = append(b.buf, mark(&b.ops[i]))
	}
	b.arg(at)
}

func (b *batch) token(n uint64) {
	at := len(b.buf)
	b.buf = append(append(b.buf, b.store.instance...), '.')
	b.buf = strconv.AppendUint(b.buf, n, 36)
	b.arg(at)
}

func (b *batch) number(n int64) {
	at := len(b.buf)
	b.buf = strconv.AppendInt(b.buf, n, 10)
	b.arg(at)
}

func (b *batch) text(s string) {
	at := len(b.buf)
	b.buf = append(b.buf, s...)
	b.arg(at)
}

// arg makes the text from at on the next argument. Spans that move when the
// slice grows stay where they were for the arguments that point at them.
func (b *batch) arg(at int) {
	b.spans = append(b.spans, span{b, at, len(b.buf)})
	b.args = append(b.args, &b.spans[len(b.spans)-1])
}

// run sends the calls, once more those whose script the server has lost, and
// reads the answers.
func (b *batch) run(ctx context.Context) {
	if len(b.calls) == 0 {
		return
	}
	for round, all := 0, b.cmds; len(all) > 0; round++ {
		b.exec(ctx, all)
		for i := range b.calls {
			if c := &b.calls[i]; !c.over {
				c.over, c.sent = true, b.sent
			}
		}
		if round == 1 {
			break
		}
		all = b.lost()
	}
	for i := range b.calls {
		b.read(&b.calls[i])
	}
}

func (b *batch) exec(ctx context.Context, cmds []goredis.Cmder) {
	b.sent = false
	p := b.store.client.Pipeline()
	_ = p.BatchProcess(ctx, cmds...)
	_, err := p.Exec(ctx)
	if err == nil || b.sent {
		return // every command has its own error
	}
	// go-redis leaves commands without one when it was an error reply that kept it
	// from having a connection, as a wrong password does.
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
}

// lost prepares the calls that the server had no script for to be sent again,
// after the scripts. Nothing was done for them.
func (b *batch) lost() []goredis.Cmder {
	var again []goredis.Cmder
	for i := range b.calls {
		c := &b.calls[i]
		if err := c.cmd.Err(); err == nil || !strings.HasPrefix(err.Error(), "NOSCRIPT ") {
			continue
		}
		if again == nil {
			for j := range scripts {
				again = append(again, goredis.NewStringCmd(context.Background(), "script", "load", scripts[j].source))
			}
		}
		c.over = false
		c.cmd = goredis.NewSliceCmd(context.Background(), c.cmd.Args()...)
		again = append(again, c.cmd)
	}
	return again
}
