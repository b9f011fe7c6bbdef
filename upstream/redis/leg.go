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
)

// leg is what goes to one node: one pipeline on one connection.
type leg struct {
	node  *node
	calls []int32 // indices of the batch's calls
	cmds  []goredis.Cmder
	loads bool             // the scripts are among cmds
	gives bool             // some call gives leases
	clock *goredis.TimeCmd // nil unless the server's clock is due to be read
	wait  *goredis.IntCmd
	aof   *goredis.IntSliceCmd
	mark  mark
	acks  error // why what was given does not stand where it has to
	bad   bool  // the server did not answer, or cannot write
}

// mark is an argument of a leg's first call.
type mark struct {
	value int
	// sent is set as go-redis begins to write the call. While it is not, nothing of
	// this leg has left the process, whatever the error.
	sent bool
}

// MarshalBinary is called by go-redis as it writes the argument.
func (m *mark) MarshalBinary() ([]byte, error) {
	m.sent = true
	return strconv.AppendInt(nil, int64(m.value), 10), nil
}

// A call is sent again, to where its answer says, when that proves that nothing
// was done.
const (
	rounds    = 10
	firstWait = 2 * time.Millisecond // for a slot on its way; doubled each time
	longWait  = 32 * time.Millisecond
)

// run sends the calls, and again those that were not for that server, and reads
// the answers.
func (b *batch) run(ctx context.Context) {
	for i := range b.calls {
		c := &b.calls[i]
		c.node, c.unread = b.store.serves(c.slot), true
	}
	pause := firstWait
	for round := 0; ; round++ {
		from := len(b.legs)
		b.assemble(from)
		b.exec(ctx, b.legs[from:])
		if round == rounds || ctx.Err() != nil || !b.again(b.legs[from:], pause <= longWait) {
			break
		}
		if b.late {
			sleep(ctx, pause)
			pause *= 2
		}
	}
	for i := range b.calls {
		if c := &b.calls[i]; c.unread {
			b.read(c)
		}
	}
	for _, l := range b.legs {
		l.node.bad.Store(l.bad)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// assemble makes the legs of the calls that are not over, behind from.
func (b *batch) assemble(from int) {
	for i := range b.calls {
		c := &b.calls[i]
		if c.over {
			continue
		}
		if c.node == nil {
			c.over, c.leg, c.cmd = true, nil, goredis.NewCmd(context.Background())
			c.cmd.SetErr(fmt.Errorf("nobody serves slot %d of the cluster", c.slot))
			continue
		}
		l := b.legTo(c.node, from)
		c.leg = l
		l.calls = append(l.calls, int32(i))
		l.gives = l.gives || scripts[c.script].gives
		if c.load && !l.loads {
			l.loads = true
			for j := range scripts {
				l.cmds = append(l.cmds, goredis.NewStringCmd(context.Background(), "script", "load", scripts[j].source))
			}
		}
		if c.asking {
			l.cmds = append(l.cmds, goredis.NewStatusCmd(context.Background(), "asking"))
		}
		c.args[2] = c.keys
		if len(l.calls) == 1 {
			l.mark.value = c.keys
			c.args[2] = &l.mark
		}
		c.cmd = goredis.NewCmd(context.Background(), c.args...)
		l.cmds = append(l.cmds, c.cmd)
	}
	for _, l := range b.legs[from:] {
		if b.store.fences.Due(&l.node.clockRead) {
			l.clock = goredis.NewTimeCmd(context.Background(), "time")
			l.cmds = append(l.cmds, l.clock)
		}
		b.store.await(l)
	}
}

func (b *batch) legTo(n *node, from int) *leg {
	for _, l := range b.legs[from:] {
		if l.node == n {
			return l
		}
	}
	some := min(len(b.calls), 32)
	b.legs = append(b.legs, &leg{node: n, calls: make([]int32, 0, some), cmds: make([]goredis.Cmder, 0, some)})
	return b.legs[len(b.legs)-1]
}

// trip is a leg that another goroutine than its batch's sees through.
type trip struct {
	ctx  context.Context
	leg  *leg
	over *sync.WaitGroup
}

// send has a goroutine see a leg through. Those that have are kept for the next
// ones: what go-redis needs of a stack is much to grow anew each time.
func (s *Store) send(t trip) {
	select {
	case s.trips <- t:
	default:
		s.wg.Go(func() {
			for ok := true; ok; t, ok = <-s.trips {
				t.leg.exec(t.ctx)
				t.over.Done()
			}
		})
	}
}

// exec sends the legs, each in a goroutine of its own but the last, and waits for
// their answers.
func (b *batch) exec(ctx context.Context, legs []*leg) {
	var over sync.WaitGroup
	for i, l := range legs {
		if i == len(legs)-1 {
			l.exec(ctx)
		} else {
			over.Add(1)
			b.store.send(trip{ctx, l, &over})
		}
	}
	over.Wait()
	for _, l := range legs {
		if l.clock != nil && l.clock.Err() == nil {
			b.store.fences.SawClock(l.clock.Val().UnixMicro())
		}
		b.store.acked(l)
		for _, at := range l.calls {
			c := &b.calls[at]
			c.over = true
			if err := c.cmd.Err(); err != nil && (!l.mark.sent || !isReply(err)) {
				b.store.noAnswer(l, err)
			}
		}
	}
}

func (l *leg) exec(ctx context.Context) {
	if l.node.silent.Load() {
		l.fail(errSilent)
		return
	}
	p := l.node.client.Pipeline()
	_ = p.BatchProcess(ctx, l.cmds...)
	_, err := p.Exec(ctx)
	if err == nil || l.mark.sent {
		return // every command has its own error
	}
	// go-redis leaves commands without one when it was an error reply that kept it
	// from having a connection, as a wrong password does.
	l.fail(err)
}

var errSilent = errors.New("it did not answer in time, and has not yet when asked whether it does again")

func (l *leg) fail(err error) {
	for _, cmd := range l.cmds {
		cmd.SetErr(err)
	}
}

// noAnswer notes that a server was not reached, or has not answered.
func (s *Store) noAnswer(l *leg, err error) {
	l.bad = true
	if s.cluster == nil {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		l.node.silent.Store(true)
	}
	s.cluster.look()
}

// again prepares calls to be sent again whose answers prove that nothing was done
// and that it can be done elsewhere, or a little later if there is time. It says
// whether there are any.
func (b *batch) again(legs []*leg, later bool) bool {
	b.late = false
	any := false
	for _, l := range legs {
		for _, at := range l.calls {
			c := &b.calls[at]
			err := c.cmd.Err()
			if err == nil || !l.mark.sent || !isReply(err) {
				continue
			}
			kind, rest, _ := strings.Cut(err.Error(), " ")
			switch {
			case kind == "NOSCRIPT":
				c.over, c.load = false, true
			case b.store.cluster == nil:
			case kind == "MOVED":
				if n := b.store.cluster.moved(c.slot, rest, c.node); n != nil {
					c.node, c.asking, c.over = n, false, false
				}
			case kind == "ASK" && c.moves():
				if n := b.store.cluster.asked(rest, c.node); n != nil {
					c.node, c.asking, c.over = n, true, false
				}
			case kind != "ASK" && kind != "TRYAGAIN" || c.moves():
			case b.alone(c):
				any = true
				b.apart(at)
				continue
			case later:
				b.late, c.over = true, false
			}
			any = any || !c.over
		}
	}
	return any
}

// moves says that a call is one for a slot that is on its way.
func (c *call) moves() bool { return c.script == scriptMoving || c.script == scriptPermitMoving }

// alone says whether a call's ops can be carried out with nothing but the locks'
// own keys.
func (b *batch) alone(c *call) bool {
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

// apart puts a call for each lock in the place of a call.
func (b *batch) apart(at int32) {
	b.calls[at].unread = false
	c := b.calls[at]
	for _, i := range c.ops {
		b.addMoving(&c, i)
	}
}

// gave says whether a result is one that the replicas have to have.
func gave(kind cache.OpKind, st cache.Status) bool {
	return st == cache.Granted || st == cache.Done && (kind == cache.OpRenew || kind == cache.OpDowngrade)
}
