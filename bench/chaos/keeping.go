package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// keeping has holds of the operator. It holds them while something is done that no holder may
// notice.
type keeping struct {
	st    *site
	c     *client.Client
	holds []*client.Hold
	from  int64
}

// hold acquires a lock in each namespace, twice by the same owner. If the store answers, it also
// acquires two readers' locks or a permit there.
func (st *site) hold() *keeping {
	k := &keeping{st: st, from: now()}
	var err error
	if k.c, err = st.dial(); err != nil {
		st.s.fail("recovery", "daemon %d cannot be reached: %v", st.no, err)
		return k
	}
	for _, prefix := range []string{"x:", "y:", st.own(), ""} {
		kept, read := fmt.Sprint(prefix, "kept by ", st.no), fmt.Sprint(prefix, "read by ", st.no)
		all := []client.AcquireArgs{{Key: kept, Owner: 1}, {Key: kept, Owner: 1}}
		if st.rnd.IntN(2) == 0 || !st.s.semaphores(prefix) {
			all = append(all, client.AcquireArgs{Key: read, Owner: 1, Mode: protocol.Shared},
				client.AcquireArgs{Key: read, Owner: 2, Mode: protocol.Shared})
		} else {
			all = append(all, client.AcquireArgs{Key: kept, Owner: 1, Permits: uint32(permits(0))})
		}
		for _, a := range all {
			if !k.take(a) {
				break
			}
		}
	}
	return k
}

func (k *keeping) take(a client.AcquireArgs) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	a.Wait = time.Second
	h, err := k.c.Lock(ctx, a)
	if err == nil {
		k.holds = append(k.holds, h)
	}
	return err == nil
}

// drop ends the connection.
func (k *keeping) drop() {
	if k.c != nil {
		k.c.Close()
	}
}

// over checks what has become of the holds, and releases them.
func (k *keeping) over(what string, also ...protocol.Reason) {
	if k.c == nil {
		return
	}
	defer k.c.Close()
	for _, h := range k.holds {
		err := h.Err()
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			err = h.Release(ctx)
			cancel()
		}
		if !k.allowed(h.Key(), err, also) {
			k.st.s.fail("kept", "daemon %d: %s is lost by %s, or cannot be given up: %v", k.st.no,
				h.Key(), what, err)
		}
	}
}

// allowed reports whether a hold of key may have ended with err. It may have if its store did not
// answer, if the machine was too busy, or if the reason of the loss is one of also.
func (k *keeping) allowed(key string, err error, also []protocol.Reason) bool {
	var lost *client.LostError
	switch {
	case err == nil, errors.Is(err, client.ErrExpired):
		return true
	case errors.As(err, &lost):
		return lost.Reason == protocol.LostExpired || lost.Reason == protocol.LostTooLong ||
			slices.Contains(also, lost.Reason) ||
			k.st.away(key, k.from) && (lost.Reason == protocol.LostGone ||
				lost.Reason == protocol.LostSession)
	}
	return k.st.away(key, k.from) || late.MatchString(err.Error())
}

// forsake makes the daemon hold a lock and a permit, and wait for a lock that another daemon holds.
// Their keys are never used again. After the end of the daemon, done releases the other daemon's
// lock.
func (st *site) forsake() (done func()) {
	st.forsaken++
	name := fmt.Sprintf("%sforsaken %d %d", []string{"x:", "y:"}[st.rnd.IntN(2)], st.no, st.forsaken)
	other := st.s.sites[(st.no+1)%len(st.s.sites)]
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	lock := func(c *client.Client, a client.AcquireArgs) {
		a.Owner, a.Wait = 1, 5*time.Second
		_, _ = c.Lock(ctx, a) // a store may be away, or a limit of holds may be reached
	}
	c, err := st.dial()
	if err != nil {
		cancel()
		return func() {}
	}
	var waits sync.WaitGroup
	closeOther := func() {}
	if d, err := other.dial(); err == nil { // the other daemon may be ending
		closeOther = func() { d.Close() }
		lock(d, client.AcquireArgs{Key: name + " wanted"})
		waits.Go(func() { lock(c, client.AcquireArgs{Key: name + " wanted"}) })
	}
	lock(c, client.AcquireArgs{Key: name})
	if st.s.semaphores(name[:2]) {
		lock(c, client.AcquireArgs{Key: name, Permits: 2})
	}
	st.pause(400 * time.Millisecond)
	return func() {
		c.Close()
		waits.Wait()
		closeOther()
		cancel()
	}
}
