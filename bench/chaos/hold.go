package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
)

// hold is one that a worker has, with what it has noted of it.
type hold struct {
	*owner
	h    *client.Hold
	n    int64
	key  string
	last Event // the last look that found it valid, unless noted
	said int64 // until when, as far as it has been noted
	gone bool
}

// who is what the register knows it by.
func (g *hold) who() string { return fmt.Sprint(g.Worker, "/", g.n) }

// look asks whether it is still held, and notes what has become known.
func (g *hold) look() bool {
	e := Event{E: evState, T: now(), N: g.n}
	left := int64(g.h.Remaining())
	if left == 0 {
		if !g.gone {
			g.gone = true
			g.tell()
			why := "silence"
			if err := g.h.Err(); !errors.Is(err, client.ErrExpired) {
				why = word(err)
			}
			g.note(Event{E: evLost, T: now(), N: g.n, R: why})
		}
		return false
	}
	if e.U = e.T + left; e.U > g.said+int64(10*time.Millisecond) {
		g.note(e)
		g.said, g.last = e.U, Event{}
	} else {
		g.last = e
	}
	return !g.gone
}

func (g *hold) tell() {
	if g.last.E != "" {
		g.note(g.last)
		g.last = Event{}
	}
}

// lower makes it a shared one.
func (g *hold) lower() {
	g.look()
	g.tell()
	g.note(Event{E: evLower, T: now(), N: g.n})
	err := g.h.Downgrade(context.Background())
	g.note(Event{E: evLow, T: now(), N: g.n, R: word(err), F: g.h.Fence()})
}

// give gives some up by one request.
func give(all []*hold, release func(context.Context) error) {
	for _, g := range all {
		g.tell()
		g.note(Event{E: evGive, T: now(), N: g.n})
	}
	err := release(context.Background())
	for _, g := range all {
		g.note(Event{E: evGave, T: now(), N: g.n, R: word(err)})
	}
}
