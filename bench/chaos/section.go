package chaos

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// section is the time inside one hold.
type section struct {
	*owner
	h    *client.Hold
	n    int64
	key  string
	last Event // the last look that found it valid, unless noted
	said int64 // until when, as far as it has been noted
	gone bool
}

// look asks whether it is still held, and notes what has become known.
func (s *section) look() bool {
	e := Event{E: evState, T: now(), N: s.n}
	left := int64(s.h.Remaining())
	if left == 0 {
		if !s.gone {
			s.gone = true
			s.tell()
			why := "silence"
			if err := s.h.Err(); err != nil {
				why = word(err)
			}
			s.note(Event{E: evLost, T: now(), N: s.n, R: why})
		}
		return false
	}
	if e.U = e.T + left; e.U > s.said+int64(10*time.Millisecond) {
		s.note(e)
		s.said, s.last = e.U, Event{}
	} else {
		s.last = e
	}
	return !s.gone
}

func (s *section) tell() {
	if s.last.E != "" {
		s.note(s.last)
		s.last = Event{}
	}
}

// inside works under the lock: on what it guards, for a moment or longer.
func (s *section) inside(c *client.Client, a client.AcquireArgs) {
	if a.Mode == protocol.Exclusive {
		if s.rnd.IntN(5) == 0 {
			a.Wait = time.Second
			if h, n, err := s.acquire(c, a, s.n); err == nil {
				defer func() {
					s.note(Event{E: evGive, T: now(), N: n})
					err := h.Release(context.Background())
					s.note(Event{E: evGave, T: now(), N: n, R: word(err)})
				}()
			}
		}
		s.write()
		return
	}
	s.stay(10 * time.Millisecond)
}

// write is one more in each register, with a while between the reading and the writing.
func (s *section) write() {
	who := fmt.Sprint(s.Worker, "/", s.n)
	fence := s.h.Fence()
	value, ok := s.ask("fr %s %d %s", s.key, fence, who)
	plain, _ := s.ask("ur %s", s.key)
	s.stay(10 * time.Millisecond)
	if ok {
		s.ask("fw %s %d %s %d", s.key, fence, who, value+1)
	}
	if s.look() { // who knows better does not write
		s.ask("uw %s %d", s.key, plain+1)
	}
}

// stay is mostly short, sometimes longer, and seldom longer than a TTL; but each fourth
// worker's is that long often.
func (s *section) stay(short time.Duration) {
	d := time.Duration(s.rnd.Int64N(int64(short)))
	long := 2
	if s.Worker%4 == 3 {
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

// ask puts a request to the register.
func (s *section) ask(format string, args ...any) (value int, ok bool) {
	fmt.Fprintf(s.reg, format+"\n", args...)
	_ = s.reg.Flush()
	line, err := s.reg.ReadBytes('\n')
	if err != nil || !bytes.HasPrefix(line, []byte("ok")) {
		return 0, false
	}
	_, _ = fmt.Sscan(string(line[2:]), &value)
	return value, true
}

func (s *section) leave() {
	s.look()
	s.tell()
	s.note(Event{E: evGive, T: now(), N: s.n})
	err := s.h.Release(context.Background())
	s.note(Event{E: evGave, T: now(), N: s.n, R: word(err)})
}
