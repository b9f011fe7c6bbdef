package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol/client"
)

// hold is a hold of a worker, with what the worker has recorded of it.
type hold struct {
	*owner
	h    *client.Hold
	n    int64
	key  string
	last Event // the last check that found it valid, unless it is recorded already
	said int64 // the validity that has been recorded
	gone bool
}

// who returns the name that the register knows the hold by.
func (g *hold) who() string { return fmt.Sprint(g.Worker, "/", g.n) }

// look reports whether the hold is still valid, and records what has become known.
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

// lower makes the hold a shared one.
func (g *hold) lower() {
	g.look()
	g.tell()
	g.note(Event{E: evLower, T: now(), N: g.n})
	err := g.h.Downgrade(context.Background())
	g.note(Event{E: evLow, T: now(), N: g.n, R: word(err), F: g.h.Fence()})
}

// give releases some holds by one request.
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
