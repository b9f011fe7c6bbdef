package sim

import (
	"bytes"
	"fmt"

	"github.com/locksidecar/locksidecar/protocol"
)

// maxFrame is the largest payload that a daemon accepts.
const maxFrame = 4096

// wrong sends a request that is a good frame and cannot be carried out. It is answered, and the
// session continues.
func (c *client) wrong() {
	w := c.w
	q := &request{op: protocol.OpPing, wrong: protocol.Invalid}
	p := &protocol.Request{Op: protocol.OpAcquire, Key: []byte(w.keys[0].name)}
	n := 10
	if len(w.sems) > 0 {
		n = 11
	}
	switch w.pick(n) {
	case 0:
		p.TTL = 50 // less than the store's minimum
	case 1:
		p.TTL = 2 * 3600 * 1000 // more than the limit
	case 2:
		p.Wait = -2
	case 3:
		p.Key = [][]byte{{}, {'k', 0}, {'k', 0xff},
			bytes.Repeat([]byte{'k'}, protocol.MaxKey+1)}[w.pick(4)]
	case 4:
		p.Mode = 7
	case 5:
		p.Flags = 1 << 20
	case 6:
		p.Op, p.Keys = protocol.OpAcquireMany, [][]byte{p.Key, p.Key}
	case 7:
		p.Op, p.TTL = protocol.OpRenew, 50
	case 8: // no operation, or one that this daemon does not have, because it cannot query stores
		p.Op, q.wrong = []protocol.Op{99, protocol.OpStored}[w.pick(2)], protocol.Unsupported
		if w.p.Queries { // this daemon has it
			p.Op = 99
		}
		if p.Op == protocol.OpStored {
			p.Key, p.Limit = nil, 1
		}
	case 9: // its grants would not fit into a frame
		p.Op, q.wrong = protocol.OpAcquireMany, protocol.Overlong
		for n := range maxFrame / 50 {
			p.Keys = append(p.Keys, fmt.Appendf(nil, "n%d", n))
		}
	case 10:
		p.Key, p.Mode, p.Permits = []byte(w.sems[0].name), protocol.Mode(w.pick(3)), protocol.MaxPermits+1
	}
	w.counts.Tallies[wrongRequests]++
	c.send(q, p)
}

// flood sends many requests and reads no answers.
func (c *client) flood() {
	for range c.w.between(200, 700) {
		c.send(&request{op: protocol.OpPing}, &protocol.Request{})
	}
}
