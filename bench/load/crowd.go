package load

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// CrowdArgs say how many sessions a worker has. Each session holds a lock all the time. Now and
// then it makes a call: a ping, a try or a release.
type CrowdArgs struct {
	Addrs    []string // addresses of the daemons: for the first worker, the second one, and so on
	Sessions int      // per worker
	Breath   time.Duration
}

type crowd struct {
	args CrowdArgs
	proc int
	all  []*client.Client
	lost atomic.Int64
}

// NewCrowd returns the load of CrowdArgs.
func NewCrowd() harness.Load { return &crowd{} }

func (c *crowd) Open(spec *harness.Spec) (int, error) {
	if err := json.Unmarshal(spec.Args, &c.args); err != nil {
		return 0, err
	}
	ctx := context.Background()
	c.proc = spec.Proc
	opts := client.Options{Name: Crowd, OnLost: func(client.Lost) { c.lost.Add(1) }}
	for i := range c.args.Sessions {
		s, err := client.Dial(ctx, c.args.Addrs[c.proc], opts)
		if err != nil {
			return 0, err
		}
		c.all = append(c.all, s)
		if _, err := s.Acquire(ctx, client.AcquireArgs{Key: c.key("kept", i)}); err != nil {
			return 0, err
		}
	}
	return len(c.all), nil
}

func (c *crowd) key(kind string, i int) string {
	return fmt.Sprintf("bench:crowd:%s:%d:%d", kind, c.proc, i)
}

// Caller makes one call after the other in a session: a ping, a try, a release, and then again.
type Caller struct {
	C     *client.Client
	Key   string // nothing else uses it
	Calls int    // number of calls so far
	fence uint64 // its latest fence
}

// Call makes the next call. It blocks until the call is answered.
func (c *Caller) Call(ctx context.Context) (err error) {
	switch c.Calls % 3 {
	case 0:
		_, err = c.C.Ping(ctx)
	case 1:
		var g protocol.Grant
		if g, err = c.C.Acquire(ctx, client.AcquireArgs{Key: c.Key}); err == nil && g.Fence <= c.fence {
			err = fmt.Errorf("fence %d after %d", g.Fence, c.fence)
		}
		c.fence = g.Fence
	case 2:
		_, err = c.C.Release(ctx, client.ReleaseArgs{Key: c.Key, Fence: c.fence})
	}
	if err != nil {
		return fmt.Errorf("call %d of %s: %w", c.Calls, c.Key, err)
	}
	c.Calls++
	return nil
}

// Breath returns a random pause between two calls, whose average is breath.
func Breath(breath time.Duration) time.Duration { return breath/2 + rand.N(breath) }

func (c *crowd) Run(ctx context.Context, caller int, rec *harness.Rec) error {
	own := Caller{C: c.all[caller], Key: c.key("own", caller)}
	pause := time.NewTimer(rand.N(c.args.Breath))
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		if rec.Stopped() {
			break
		}
		began := time.Now()
		if err := own.Call(ctx); err != nil {
			return err
		}
		rec.Op(time.Since(began))
		pause.Reset(Breath(c.args.Breath))
	}
	if n := c.lost.Swap(0); n > 0 {
		rec.Err(fmt.Errorf("%d locks are lost", n))
	}
	return nil
}

func (c *crowd) Close() {
	for _, s := range c.all {
		s.Close()
	}
}
