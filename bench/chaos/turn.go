package chaos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// turn makes one acquire and does what follows from it. It returns false if there was no answer, or
// no useful one.
func (w *owner) turn() bool {
	a := client.AcquireArgs{Owner: uint64(w.no)}
	keys := w.choose(&a)
	switch n := w.rnd.IntN(20); {
	case n < 4: // try without waiting
	case n < 7:
		a.Wait = client.Forever
	default:
		a.Wait = time.Duration(200+w.rnd.IntN(2000)) * time.Millisecond
	}
	a.Fixed = w.rnd.IntN(10) == 0
	a.Quiet = w.rnd.IntN(5) == 0
	c, err := w.client()
	if err != nil {
		return false
	}
	s := section{owner: w}
	if len(keys) == 1 {
		a.Key = keys[0]
		err = s.enter(c, a)
	} else {
		err = s.enterMany(c, keys, a)
	}
	if err != nil {
		return errors.Is(err, client.ErrBusy) || errors.Is(err, client.ErrTimeout)
	}
	s.look()
	s.inside(c, a)
	s.leave()
	return true
}

// choose selects what to acquire: a permit, one lock, or several locks.
func (w *owner) choose(a *client.AcquireArgs) (keys []string) {
	kind := w.rnd.IntN(10)
	if kind < 2 && w.Semaphores > 0 {
		i := w.rnd.IntN(w.Semaphores)
		a.Mode, a.Permits = protocol.Permit, uint32(permits(i))
		return []string{w.key(i)}
	}
	if w.rnd.IntN(5) == 0 {
		a.Mode = protocol.Shared
	}
	n := 1
	if kind < 4 {
		n = 2 + w.rnd.IntN(2)
	}
	for _, i := range w.rnd.Perm(w.Keys)[:n] {
		keys = append(keys, w.key(i))
	}
	return keys
}

func (l *load) key(i int) string { return fmt.Sprint(l.Prefix, i) }

// permits returns the number of permits of the i-th semaphore.
func permits(i int) int { return 2 + i }

// ask records an acquire that is about to be sent. of is the acquire that it re-enters. group is
// the first acquire of several that are sent together.
func (w *owner) ask(key string, a client.AcquireArgs, of, group int64) (n int64) {
	n = w.acquires.Add(1)
	if group < 0 {
		group = n
	}
	wait := a.Wait.Milliseconds()
	if a.Wait < 0 {
		wait = -1
	}
	w.note(Event{E: evAsk, T: now(), N: n, K: key, O: w.no, M: int(a.Mode), P: int(a.Permits),
		Wait: wait, Of: of, G: group})
	return n
}

// got records the answer, which was read at the time at.
func (w *owner) got(at, n int64, h *client.Hold, err error) {
	e := Event{E: evGot, T: at, N: n, R: word(err)}
	if err == nil {
		g := h.Grant()
		e.F, e.C, e.U = g.Fence, g.Count, at+int64(h.Remaining())
		e.D = int64(g.Deadline) * int64(time.Millisecond)
	}
	w.note(e)
}

// patient returns a context that bounds an acquire, unless that waits without limit. After this
// time, the worker gives up a daemon that does not answer.
func patient(a client.AcquireArgs) (context.Context, context.CancelFunc) {
	if a.Wait < 0 {
		return context.Background(), func() {}
	}
	return context.WithTimeout(context.Background(), a.Wait+5*time.Second)
}

// acquire makes an acquire and records it. of is the acquire that it re-enters.
func (w *owner) acquire(c *client.Client, a client.AcquireArgs, of int64) (*client.Hold,
	int64, error) {
	ctx, cancel := patient(a)
	defer cancel()
	n := w.ask(a.Key, a, of, 0)
	h, err := c.Lock(ctx, a)
	w.got(now(), n, h, err)
	return h, n, err
}

// acquireMany is like acquire, for several keys at once. The numbers belong to the keys, in their
// order.
func (w *owner) acquireMany(c *client.Client, keys []string, a client.AcquireArgs) (hs client.Holds,
	ns []int64, err error) {
	ctx, cancel := patient(a)
	defer cancel()
	group := int64(-1)
	for _, key := range keys {
		n := w.ask(key, a, 0, group)
		ns = append(ns, n)
		group = ns[0]
	}
	hs, err = c.LockMany(ctx, keys, a)
	at := now()
	for i, n := range ns {
		var h *client.Hold
		if err == nil {
			h = hs[i]
		}
		w.got(at, n, h, err)
	}
	return hs, ns, err
}

// word returns the result of a request as one word.
func word(err error) string {
	var e *client.Error
	var lost *client.LostError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, client.ErrClosed):
		return "connection"
	case errors.As(err, &lost):
		return lost.Reason.String()
	case errors.As(err, &e):
		return e.Code.String()
	case errors.Is(err, client.ErrExpired):
		return "ran out"
	case errors.Is(err, context.DeadlineExceeded):
		return "silence"
	}
	return "?" + err.Error()
}
