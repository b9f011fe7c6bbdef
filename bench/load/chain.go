package load

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// ChainArgs says how processes hand off one key.
type ChainArgs struct {
	Addr   string
	Key    string
	Shared string // the page of harness.NewShared
	Quiet  bool   // a release is answered only if it fails
}

// chain is one process that waits for a key. When it is granted the key, it sends the release and
// the next acquire in one write. One thread does everything.
type chain struct {
	args   ChainArgs
	w      *wire
	shared *harness.Shared
	id     uint64
}

// NewChain returns the load that hands off one key between processes.
func NewChain() harness.Load { return &chain{} }

func (c *chain) Open(spec *harness.Spec) (int, error) {
	err := json.Unmarshal(spec.Args, &c.args)
	if err != nil {
		return 0, err
	}
	if c.shared, err = harness.OpenShared(c.args.Shared); err != nil {
		return 0, err
	}
	c.id = uint64(spec.Proc) + 1
	c.w, err = dialDaemon(c.args.Addr)
	return 1, err
}

// The ids of the two requests of a turn. Each request is answered before its id is used again.
const (
	acquireID = 1
	releaseID = 2
)

func (c *chain) Run(ctx context.Context, _ int, rec *harness.Rec) error {
	stop, err := c.w.start(ctx, true)
	if err != nil {
		return err
	}
	defer stop()
	acquire := protocol.Request{Op: protocol.OpAcquire, ID: acquireID, Key: []byte(c.args.Key),
		Owner: 1, Wait: protocol.WaitAlways}
	release := protocol.Request{Op: protocol.OpRelease, ID: releaseID, Key: acquire.Key, Owner: 1}
	if c.args.Quiet {
		release.Flags = protocol.FlagQuiet
	}
	out := protocol.AppendRequest(nil, &acquire)
	asked := time.Now()
	for {
		if err := c.w.send(out); err != nil {
			return err
		}
		g, err := c.granted()
		if err != nil {
			return err
		}
		now := time.Now()
		rec.Entered(c.shared.Enter(c.id, g.Fence))
		rec.Op(now.Sub(asked))
		asked = now
		c.shared.Leave(c.id)
		release.Fence = g.Fence
		out = protocol.AppendRequest(out[:0], &release)
		if rec.Stopped() {
			return c.w.send(out)
		}
		out = protocol.AppendRequest(out, &acquire)
	}
}

// granted reads up to the grant, and skips the answer to the release before it.
func (c *chain) granted() (protocol.Grant, error) {
	for {
		p, err := c.w.next()
		if err != nil {
			return protocol.Grant{}, err
		}
		m, err := protocol.DecodeMessage(p)
		switch {
		case err != nil:
			return protocol.Grant{}, err
		case m.ID == 0:
			if err := pushed(p); err != nil {
				return protocol.Grant{}, err
			}
		case m.Code != protocol.OK:
			return protocol.Grant{}, fmt.Errorf("request %d was answered %v", m.ID, m.Code)
		case m.ID == acquireID:
			return m.Grant()
		}
	}
}

func (c *chain) Close() {
	c.w.Close()
	c.shared.Close()
}
