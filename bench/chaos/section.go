package chaos

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// section is the time inside one hold, or several.
type section struct {
	*owner
	grips []*hold
	all   client.Holds // of those that were taken together
}

func (s *section) enter(c *client.Client, a client.AcquireArgs) error {
	h, n, err := s.acquire(c, a, 0)
	if err == nil {
		s.grips = append(s.grips, &hold{owner: s.owner, h: h, n: n, key: a.Key})
	}
	return err
}

func (s *section) enterMany(c *client.Client, keys []string, a client.AcquireArgs) error {
	hs, ns, err := s.acquireMany(c, keys, a)
	for i, h := range hs {
		s.grips = append(s.grips, &hold{owner: s.owner, h: h, n: ns[i], key: keys[i]})
	}
	s.all = hs
	return err
}

// look asks whether all are still held, and notes what has become known.
func (s *section) look() bool {
	ok := true
	for _, g := range s.grips {
		ok = g.look() && ok
	}
	return ok
}

// inside works under what is held: on what it guards, for a moment or longer.
func (s *section) inside(c *client.Client, a client.AcquireArgs) {
	const brief = 10 * time.Millisecond
	first := s.grips[0]
	a.Key, a.Wait = first.key, time.Second
	some := s.rnd.IntN(5) == 0
	switch {
	case a.Mode == protocol.Permit:
		if some { // another one of them
			a.Wait = 200 * time.Millisecond
			_ = s.enter(c, a)
		}
		s.stay(brief)
		return
	case a.Mode == protocol.Shared:
		s.stay(brief)
		return
	case some:
		s.again(c, a, s.write)
	default:
		s.write()
	}
	if s.rnd.IntN(5) == 0 {
		first.lower()
		s.stay(brief)
		if some { // which is refused
			s.again(c, a, func() {})
		}
	}
}

// again takes the first one once more meanwhile.
func (s *section) again(c *client.Client, a client.AcquireArgs, meanwhile func()) {
	h, n, err := s.acquire(c, a, s.grips[0].n)
	meanwhile()
	if err == nil {
		s.note(Event{E: evGive, T: now(), N: n})
		err := h.Release(context.Background())
		s.note(Event{E: evGave, T: now(), N: n, R: word(err)})
	}
}

// write is one more in each register of each key, with a while between the reading and the writing.
func (s *section) write() {
	type seen struct {
		value, plain int
		ok           bool
	}
	all := make([]seen, len(s.grips))
	for i, g := range s.grips {
		all[i].value, all[i].ok = s.put("fr %s %d %s", g.key, g.h.Fence(), g.who())
		all[i].plain, _ = s.put("ur %s", g.key)
	}
	s.stay(10 * time.Millisecond)
	for i, g := range s.grips {
		if all[i].ok {
			s.put("fw %s %d %s %d", g.key, g.h.Fence(), g.who(), all[i].value+1)
		}
		if s.look() { // who knows better does not write
			s.put("uw %s %d", g.key, all[i].plain+1)
		}
	}
}

// stay is mostly short, sometimes longer, and seldom longer than a TTL; but each fourth
// worker's is that long often, of one key.
func (s *section) stay(short time.Duration) {
	d := time.Duration(s.rnd.Int64N(int64(short)))
	long := 2
	if s.Worker%4 == 3 && len(s.grips) == 1 {
		long = 25
	}
	switch n := s.rnd.IntN(100); {
	case n < long:
		d = s.TTL * 3 / 2
	case n < long+13:
		d = time.Duration(s.rnd.Int64N(int64(s.TTL / 5)))
	}
	for end := now() + int64(d); s.look() && now() < end; {
		time.Sleep(min(time.Duration(end-now()), 5*time.Millisecond))
	}
}

// put puts a request to the register.
func (s *section) put(format string, args ...any) (value int, ok bool) {
	fmt.Fprintf(s.reg, format+"\n", args...)
	_ = s.reg.Flush()
	line, err := s.reg.ReadBytes('\n')
	if err != nil || !bytes.HasPrefix(line, []byte("ok")) {
		return 0, false
	}
	_, _ = fmt.Sscan(string(line[2:]), &value)
	return value, true
}

// leave gives up what was taken together in one request, and else one after the other.
func (s *section) leave() {
	s.look()
	if s.all != nil {
		give(s.grips, s.all.Release)
		return
	}
	for _, g := range s.grips {
		give([]*hold{g}, g.h.Release)
	}
}
