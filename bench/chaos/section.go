package chaos

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// section is the time inside one hold, or inside several.
type section struct {
	*owner
	holds []*hold
	all   client.Holds // the holds that were acquired together
}

func (s *section) enter(c *client.Client, a client.AcquireArgs) error {
	h, n, err := s.acquire(c, a, 0)
	if err == nil {
		s.holds = append(s.holds, &hold{owner: s.owner, h: h, n: n, key: a.Key})
	}
	return err
}

func (s *section) enterMany(c *client.Client, keys []string, a client.AcquireArgs) error {
	hs, ns, err := s.acquireMany(c, keys, a)
	for i, h := range hs {
		s.holds = append(s.holds, &hold{owner: s.owner, h: h, n: ns[i], key: keys[i]})
	}
	s.all = hs
	return err
}

// look reports whether all holds are still valid, and records what has become known.
func (s *section) look() bool {
	ok := true
	for _, g := range s.holds {
		ok = g.look() && ok
	}
	return ok
}

// inside works on the guarded registers under the holds, for a moment or longer.
func (s *section) inside(c *client.Client, a client.AcquireArgs) {
	const brief = 10 * time.Millisecond
	first := s.holds[0]
	a.Key, a.Wait = first.key, time.Second
	some := s.rnd.IntN(5) == 0
	switch {
	case a.Mode == protocol.Permit:
		if some { // one more permit
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
		if some { // this is refused
			s.again(c, a, func() {})
		}
	}
}

// again acquires the first key once more, and calls meanwhile before the release.
func (s *section) again(c *client.Client, a client.AcquireArgs, meanwhile func()) {
	h, n, err := s.acquire(c, a, s.holds[0].n)
	meanwhile()
	if err == nil {
		s.note(Event{E: evGive, T: now(), N: n})
		err := h.Release(context.Background())
		s.note(Event{E: evGave, T: now(), N: n, R: word(err)})
	}
}

// write increments each register of each key. Some time passes between the read and the write.
func (s *section) write() {
	type seen struct {
		value, plain int
		ok           bool
	}
	all := make([]seen, len(s.holds))
	for i, g := range s.holds {
		all[i].value, all[i].ok = s.put("fr %s %d %s", g.key, g.h.Fence(), g.who())
		all[i].plain, _ = s.put("ur %s", g.key)
	}
	s.stay(10 * time.Millisecond)
	for i, g := range s.holds {
		if all[i].ok {
			s.put("fw %s %d %s %d", g.key, g.h.Fence(), g.who(), all[i].value+1)
		}
		if s.look() { // a client that knows of the loss does not write
			s.put("uw %s %d", g.key, all[i].plain+1)
		}
	}
}

// stay returns a time that is mostly short, sometimes longer, and rarely longer than a TTL. For one
// key, each fourth worker often stays that long.
func (s *section) stay(short time.Duration) {
	d := time.Duration(s.rnd.Int64N(int64(short)))
	long := 2
	if s.Worker%4 == 3 && len(s.holds) == 1 {
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

// put sends a request to the register.
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

// leave releases the holds that were acquired together in one request, or else one after the other.
func (s *section) leave() {
	s.look()
	if s.all != nil {
		give(s.holds, s.all.Release)
		return
	}
	for _, g := range s.holds {
		give([]*hold{g}, g.h.Release)
	}
}
