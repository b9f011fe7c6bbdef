package chaos

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
)

// Register is the resource that the locks guard. For each key it has a number that refuses smaller
// fences than it has seen, and a number that accepts everything. Clients read a number, and write
// it plus 1.
type Register struct {
	hub *hub

	mu    sync.Mutex
	cells map[string]*register // guarded by mu
}

type register struct {
	fence    uint64
	value    int
	accepted int               // writes under a fence
	refused  int               // refused reads and writes
	used     map[uint64]string // the client that wrote with each fence
	shared   []sharedFence     // fences that two clients used

	plain, plainWrites int
}

// NewRegister starts a register on a free port of the loopback interface.
func NewRegister() (*Register, error) {
	h, err := newHub()
	if err != nil {
		return nil, err
	}
	r := &Register{hub: h, cells: map[string]*register{}}
	h.start(r.serve)
	return r, nil
}

// Addr returns the address for clients.
func (r *Register) Addr() string { return r.hub.addr() }

// Close ends all connections and waits for their goroutines.
func (r *Register) Close() { r.hub.close() }

func (r *Register) serve(c net.Conn) {
	for in := bufio.NewScanner(c); in.Scan(); {
		if _, err := fmt.Fprintln(c, r.answer(in.Text())); err != nil {
			return
		}
	}
}

// answer answers one request, which has one of these forms:
//
//	fr KEY FENCE WHO
//	fw KEY FENCE WHO VALUE
//	ur KEY
//	uw KEY VALUE
//
// The answer is "ok", followed by the value after a read, or "no".
func (r *Register) answer(line string) string {
	var what, key, who string
	var fence uint64
	var value int
	f := strings.Fields(line)
	if len(f) < 2 {
		return "bad"
	}
	what, key = f[0], f[1]
	var err error
	switch what {
	case "fr":
		_, err = fmt.Sscan(strings.Join(f[2:], " "), &fence, &who)
	case "fw":
		_, err = fmt.Sscan(strings.Join(f[2:], " "), &fence, &who, &value)
	case "uw":
		_, err = fmt.Sscan(f[2], &value)
	}
	if err != nil {
		return "bad"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.cells[key]
	if g == nil {
		g = &register{used: map[uint64]string{}}
		r.cells[key] = g
	}
	return g.answer(what, fence, who, value)
}

func (g *register) answer(what string, fence uint64, who string, value int) string {
	switch what {
	case "ur":
		return fmt.Sprint("ok ", g.plain)
	case "uw":
		g.plain = value
		g.plainWrites++
		return "ok"
	}
	if fence < g.fence {
		g.refused++
		return "no"
	}
	g.fence = fence
	if by := g.used[fence]; by != "" && by != who {
		g.shared = append(g.shared, sharedFence{fence, by, who})
	}
	g.used[fence] = who
	if what == "fr" {
		return fmt.Sprint("ok ", g.value)
	}
	g.value = value
	g.accepted++
	return "ok"
}

// Guarded has the totals of the registers.
type Guarded struct {
	Accepted, Refused int // with a fence
	Plain, PlainLost  int // without a fence: writes, and how many of them are missing in the value
}

// sharedFence is a fence that two acquires had. Each is named by its worker and number, as in
// 1/781.
type sharedFence struct {
	fence     uint64
	by, later string
}

// Check returns the totals, and what must not have happened: a lost write that had been accepted,
// or a fence that two clients wrote with. Two acquires may have the same fence if forgives returns
// true: the store may have forgotten the first before it granted the second, which was requested
// before. The order of fences has the same exception.
func (r *Register) Check(forgives func(by, later string) bool) (g Guarded, found []Violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var v verdict
	for key, c := range r.cells {
		g.Accepted += c.accepted
		g.Refused += c.refused
		g.Plain += c.plainWrites
		g.PlainLost += c.plainWrites - c.plain
		if c.value != c.accepted {
			v.fail("lost write", "%s: %d writes were accepted, and the register stands at %d", key,
				c.accepted, c.value)
		}
		for _, s := range c.shared {
			if !forgives(s.by, s.later) {
				v.fail("fence twice", "%s: %d·%d by %s and %s", key, s.fence>>10, s.fence&1023, s.by, s.later)
			}
		}
	}
	return g, v.found
}
