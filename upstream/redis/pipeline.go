package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// pipeline has the calls that a batch sends to one node at a time, on one connection.
type pipeline struct {
	node        *node
	calls       []int32 // indices of the batch's calls
	cmds        []goredis.Cmder
	loads       bool             // the scripts are among cmds
	grants      bool             // some call grants or extends leases
	clockReply  *goredis.TimeCmd // nil unless the server's clock is due to be read
	waitReply   *goredis.IntCmd
	aofReply    *goredis.IntSliceCmd
	marker      sendMarker
	unconfirmed error // why too few replicas have the grants and renewals
	unusable    bool  // the server did not answer, or cannot write
}

// sendMarker is an argument of the first call of a pipeline. It shows whether anything was sent.
type sendMarker struct {
	value int
	// sent is set when go-redis begins to write the call. Until then, nothing of this pipeline has
	// left the process, whatever the error.
	sent bool
}

// MarshalBinary is called by go-redis when it writes the argument.
func (m *sendMarker) MarshalBinary() ([]byte, error) {
	m.sent = true
	return strconv.AppendInt(nil, int64(m.value), 10), nil
}

// The bounds for sending calls again. A call is sent again, to the node that the reply names, if
// the reply proves that nothing was done.
const (
	maxRounds = 10
	firstWait = 2 * time.Millisecond // for a slot that is moving; it doubles each time
	lastWait  = 32 * time.Millisecond
)

// run sends the calls and reads the replies. It repeats the calls that a server has redirected.
func (b *batch) run(ctx context.Context) {
	for i := range b.calls {
		c := &b.calls[i]
		c.node, c.current = b.store.serves(c.slot), true
	}
	pause := firstWait
	for round := 0; ; round++ {
		from := len(b.pipelines)
		b.assemble(from)
		b.exec(ctx, b.pipelines[from:])
		if round == maxRounds || ctx.Err() != nil || !b.retry(b.pipelines[from:], pause <= lastWait) {
			break
		}
		if b.retryLater {
			driverkit.Sleep(ctx, pause)
			pause *= 2
		}
	}
	for i := range b.calls {
		if c := &b.calls[i]; c.current {
			b.read(c)
		}
	}
	for _, pl := range b.pipelines {
		pl.node.bad.Store(pl.unusable)
	}
}

// assemble makes the pipelines of the calls that are not done. from is the number of pipelines of
// earlier rounds.
func (b *batch) assemble(from int) {
	for i := range b.calls {
		c := &b.calls[i]
		if c.done {
			continue
		}
		if c.node == nil {
			c.done, c.pipeline, c.cmd = true, nil, goredis.NewCmd(context.Background())
			c.cmd.SetErr(fmt.Errorf("no node serves slot %d of the cluster", c.slot))
			continue
		}
		pl := b.pipelineTo(c.node, from)
		c.pipeline = pl
		pl.calls = append(pl.calls, int32(i))
		pl.grants = pl.grants || scripts[c.script].grants
		if c.loadScripts && !pl.loads {
			pl.loads = true
			for j := range scripts {
				pl.cmds = append(pl.cmds, goredis.NewStringCmd(context.Background(), "script", "load",
					scripts[j].source))
			}
		}
		if c.asking {
			pl.cmds = append(pl.cmds, goredis.NewStatusCmd(context.Background(), "asking"))
		}
		c.args[2] = c.keys
		if len(pl.calls) == 1 {
			pl.marker.value = c.keys
			c.args[2] = &pl.marker
		}
		c.cmd = goredis.NewCmd(context.Background(), c.args...)
		pl.cmds = append(pl.cmds, c.cmd)
	}
	for _, pl := range b.pipelines[from:] {
		if b.store.fences.Due(&pl.node.clockRead) {
			pl.clockReply = goredis.NewTimeCmd(context.Background(), "time")
			pl.cmds = append(pl.cmds, pl.clockReply)
		}
		b.store.addWait(pl)
	}
}

func (b *batch) pipelineTo(n *node, from int) *pipeline {
	for _, pl := range b.pipelines[from:] {
		if pl.node == n {
			return pl
		}
	}
	some := min(len(b.calls), 32)
	b.pipelines = append(b.pipelines, &pipeline{node: n, calls: make([]int32, 0, some),
		cmds: make([]goredis.Cmder, 0, some)})
	return b.pipelines[len(b.pipelines)-1]
}

// errand is a pipeline that a goroutine other than the batch's executes.
type errand struct {
	ctx      context.Context
	pipeline *pipeline
	done     *sync.WaitGroup
}

// runPipeline has a goroutine execute a pipeline. The goroutines are kept for later pipelines,
// because a new one would have to grow its stack to the size that go-redis needs.
func (s *Store) runPipeline(t errand) {
	select {
	case s.errands <- t:
	default:
		s.wg.Go(func() {
			for ok := true; ok; t, ok = <-s.errands {
				t.pipeline.exec(t.ctx)
				t.done.Done()
			}
		})
	}
}

// exec sends the pipelines and waits for their replies. Each pipeline except the last has its own
// goroutine.
func (b *batch) exec(ctx context.Context, pipelines []*pipeline) {
	var over sync.WaitGroup
	for i, pl := range pipelines {
		if i == len(pipelines)-1 {
			pl.exec(ctx)
		} else {
			over.Add(1)
			b.store.runPipeline(errand{ctx, pl, &over})
		}
	}
	over.Wait()
	for _, pl := range pipelines {
		if pl.clockReply != nil && pl.clockReply.Err() == nil {
			b.store.fences.SawClock(pl.clockReply.Val().UnixMicro())
		}
		b.store.readWait(pl)
		for _, at := range pl.calls {
			c := &b.calls[at]
			c.done = true
			if err := c.cmd.Err(); err != nil && (!pl.marker.sent || !isReply(err)) {
				b.store.noteNoAnswer(pl, err)
			}
		}
	}
}

func (pl *pipeline) exec(ctx context.Context) {
	if pl.node.silent.Load() {
		pl.fail(errSilent)
		return
	}
	p := pl.node.client.Pipeline()
	_ = p.BatchProcess(ctx, pl.cmds...)
	_, err := p.Exec(ctx)
	if err == nil || pl.marker.sent {
		return // every command has its own error
	}
	// go-redis sets no error on the commands if an error reply prevented the connection, such as
	// one about a wrong password.
	pl.fail(err)
}

var errSilent = errors.New("it did not answer in time, and has not yet when asked whether it " +
	"does again")

func (pl *pipeline) fail(err error) {
	for _, cmd := range pl.cmds {
		cmd.SetErr(err)
	}
}

// noteNoAnswer notes that a server could not be reached, or did not answer.
func (s *Store) noteNoAnswer(pl *pipeline, err error) {
	pl.unusable = true
	if s.cluster == nil {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		pl.node.silent.Store(true)
	}
	s.cluster.requestRefresh()
}

// retry prepares calls to be sent again. Their replies prove that nothing was done, and they can
// succeed at another node or, if later is true, a little later. It reports whether there are any.
func (b *batch) retry(pipelines []*pipeline, later bool) bool {
	b.retryLater = false
	any := false
	for _, pl := range pipelines {
		for _, at := range pl.calls {
			err := b.calls[at].cmd.Err()
			if err != nil && pl.marker.sent && isReply(err) && b.retryCall(at, err, later) {
				any = true
			}
		}
	}
	return any
}

// retryCall prepares one call to be sent again, and reports whether it must be.
func (b *batch) retryCall(at int32, err error, later bool) bool {
	c := &b.calls[at]
	kind, rest, _ := strings.Cut(err.Error(), " ")
	switch {
	case kind == "NOSCRIPT":
		c.done, c.loadScripts = false, true
	case b.store.cluster == nil:
	case kind == "MOVED":
		if n := b.store.cluster.moved(c.slot, rest, c.node); n != nil {
			c.node, c.asking, c.done = n, false, false
		}
	case kind == "ASK" && c.moving():
		if n := b.store.cluster.redirectTarget(rest, c.node); n != nil {
			c.node, c.asking, c.done = n, true, false
		}
	case kind != "ASK" && kind != "TRYAGAIN" || c.moving():
	case b.separable(c):
		b.split(at)
		return true
	case later:
		b.retryLater, c.done = true, false
	}
	return !c.done
}

// moving reports whether the call is for a slot that moves to another node.
func (c *call) moving() bool { return c.script == scriptMoving || c.script == scriptPermitMoving }

// separable reports whether each op of a call needs only the keys of its own lock.
func (b *batch) separable(c *call) bool {
	switch c.script {
	case scriptRelease, scriptPermitRelease:
		return true
	case scriptRenew, scriptPermitRenew:
	default:
		return false
	}
	for _, i := range c.ops {
		if b.ops[i].Rebase {
			return false
		}
	}
	return true
}

// split replaces a call with one call for each lock.
func (b *batch) split(at int32) {
	b.calls[at].current = false
	c := b.calls[at]
	for _, i := range c.ops {
		b.addMoving(&c, i)
	}
}

// needsReplicas reports whether the result must be on the replicas.
func needsReplicas(kind cache.OpKind, st cache.Status) bool {
	return st == cache.Granted || st == cache.Done &&
		(kind == cache.OpRenew || kind == cache.OpDowngrade)
}
