package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// unlockOwn unlocks by force a key of the operator's own client, which one owner holds, or three
// readers. Each owner must be told, and the next owner must be granted the key with a larger fence.
func (st *site) unlockOwn() {
	from := now()
	c, err := st.dial()
	if err != nil {
		st.s.fail("recovery", "daemon %d cannot be reached: %v", st.no, err)
		return
	}
	defer c.Close()
	a := client.AcquireArgs{Key: []string{"x:", "y:", st.own(),
		""}[st.rnd.IntN(4)] + fmt.Sprint("forced ", st.no), Owner: 1, Wait: time.Second}
	owners := 1
	if st.rnd.IntN(2) == 0 {
		a.Mode, owners = protocol.Shared, 3
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	held := lockForEach(ctx, c, a, owners)
	for _, h := range held {
		defer func() { _ = h.Release(ctx) }()
	}
	if len(held) == 0 {
		return
	}
	key, fence := a.Key, held[0].Fence()
	next := make(chan error, 1)
	go func() {
		g, err := c.Lock(ctx, client.AcquireArgs{Key: key, Owner: 2, Wait: patience})
		if err == nil {
			if g.Fence() <= fence {
				st.s.fail("fence order", "%s: %d after an unlocked %d", key, g.Fence(), fence)
			}
			err = g.Release(ctx)
		}
		next <- err
	}()
	n := st.forced([]string{"unlock", "--force", "-o", "json", "--fence",
		strconv.FormatUint(fence, 10), key})
	expired := st.checkTold(held, n)
	if n != len(held) && !expired && !st.away(key, from) {
		st.s.fail("unlock", "%s: %d were ended, though %d were held", key, n, len(held))
	}
	err = <-next
	var lost *client.LostError
	var refused *client.Error
	limited := errors.As(err, &refused) && refused.Code == protocol.Limit
	if err != nil && !limited && !st.away(key, from) && !errors.As(err, &lost) &&
		!errors.Is(err, client.ErrTimeout) {
		st.s.fail("unlock", "%s: the next one gets %v", key, err)
	}
}

// lockForEach acquires a key for several owners, from a.Owner on, with the same fence. It may
// return fewer holds: the store may not answer, a limit of holds may be reached, or the readers
// before one may be lost.
func lockForEach(ctx context.Context, c *client.Client, a client.AcquireArgs, owners int) (
	held []*client.Hold,
) {
	for range owners {
		h, err := c.Lock(ctx, a)
		if err != nil {
			break
		}
		if len(held) > 0 && h.Fence() != held[0].Fence() {
			_ = h.Release(ctx)
			break
		}
		held = append(held, h)
		a.Owner += 10
	}
	return held
}

// checkTold checks that the holders of n ended holds are told the reason forced, if n is all of
// them. It reports whether a hold has expired instead.
func (st *site) checkTold(held []*client.Hold, n int) (expired bool) {
	for _, h := range held {
		err := st.toldGone(h)
		var lost *client.LostError
		errors.As(err, &lost)
		expired = expired || lost != nil && lost.Reason == protocol.LostExpired
		if n == len(held) && (lost == nil || lost.Reason != protocol.LostForced) {
			st.s.fail("unlock", "%s: %d were ended, and a holder is told: %v", h.Key(), n, err)
		}
	}
	return expired
}

// toldGone waits until the client knows that it has lost h, and returns the reason.
func (st *site) toldGone(h *client.Hold) error {
	if !st.s.until(patience, func() bool { return h.Err() != nil }) {
		st.s.fail("unlock", "%s: its holder has heard nothing for %v", h.Key(), patience)
	}
	return h.Err()
}

// unlockStopped unlocks a lock of a worker that is stopped. The worker believes in the lock until
// it is continued, or the stated validity is over. The history shows that no other client gets the
// lock before.
func (st *site) unlockStopped() {
	prefix := []string{"x:", "y:"}[st.rnd.IntN(2)] // workers at other daemons wait for these keys
	i := slices.IndexFunc(st.s.workers, func(w *worker) bool {
		return w.host == st.no && w.prefix == prefix
	})
	if i < 0 {
		return
	}
	w := st.s.workers[i]
	for range 10 {
		if w.ended() {
			return
		}
		w.freeze()
		if st.unlockHeldBy(prefix) {
			st.pause(stormTTL)
			w.thaw()
			return
		}
		w.thaw()
		st.pause(50 * time.Millisecond)
	}
}

// unlockHeldBy unlocks a key with this prefix that a worker holds. It returns false if no worker
// holds one.
func (st *site) unlockHeldBy(prefix string) bool {
	holds, err := st.holds(prefix)
	if err != nil {
		return false
	}
	for _, h := range holds {
		if !strings.Contains(h.Key, " ") && st.forced([]string{"unlock", "--force", "-o",
			"json", h.Key}) > 0 {
			return true
		}
	}
	return false
}

// unlockSteadily uses this many clients (passers), each with this many locks at once (passing). So
// some locks are held at every moment of a takeover.
const (
	passers = 4
	passing = 6
)

// unlockSteadily lets clients acquire locks, and unlocks them one after the other until over
// returns true. This is faster than with commands.
func (st *site) unlockSteadily(seed uint64, over func() bool) {
	numbers := []int{}
	for i := range passers {
		numbers = append(numbers, i)
	}
	together(numbers, func(no int) {
		c, err := st.dial()
		if err != nil {
			return // the check of the takeover reports it if no process serves
		}
		defer c.Close()
		rnd := rand.New(rand.NewPCG(seed, uint64(no)))
		for !over() {
			st.unlockRound(c, no, rnd)
		}
	})
}

func (st *site) unlockRound(c *client.Client, no int, rnd *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	var held []*client.Hold
	for i := range passing {
		h, err := c.Lock(ctx, client.AcquireArgs{Key: fmt.Sprintf("passing %d %d %d", st.no, no, i),
			Owner: 1, Wait: time.Second})
		if err == nil {
			held = append(held, h)
		}
	}
	for _, h := range held {
		time.Sleep(time.Duration(rnd.IntN(4)) * time.Millisecond)
		code, err := st.unlockAtOnce(h.Key())
		var lost *client.LostError
		switch {
		case err != nil: // the process that was asked has ended, perhaps after it had unlocked
		case code == http.StatusOK:
			if err := st.toldGone(h); !errors.As(err, &lost) {
				st.s.fail("unlock", "%s was unlocked, and its holder is told: %v", h.Key(), err)
			}
		case h.Err() == nil:
			if err := h.Release(ctx); err != nil && !errors.As(err, &lost) &&
				!errors.Is(err, client.ErrExpired) {
				st.s.fail("unlock", "%s was not unlocked (status %d), and its release fails: %v",
					h.Key(), code, err)
			}
		}
		_ = h.Release(ctx)
	}
	if len(held) == 0 {
		time.Sleep(20 * time.Millisecond)
	}
}

// unlockAtOnce does what the command does, but in this process. It returns the status of the
// answer.
func (st *site) unlockAtOnce(key string) (code int, err error) {
	r, err := st.admin().PostForm("http://localhost/unlock", url.Values{"key": {key}})
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	var u unlocked
	if r.StatusCode == http.StatusOK && (json.NewDecoder(r.Body).Decode(&u) != nil ||
		u.Released == 0) {
		return http.StatusNotFound, nil // it was unlocked before
	}
	return r.StatusCode, nil
}
