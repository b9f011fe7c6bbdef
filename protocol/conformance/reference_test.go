package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// reference is the adapter for package client. It carries out the commands of
// docs/contribute/client.md.
type reference struct {
	socket string

	out      sync.Mutex // guards standard output
	mu       sync.Mutex
	c        *client.Client              // guarded by mu
	holds    map[holdName][]*client.Hold // guarded by mu; one for each acquire
	told     map[holdName]bool           // guarded by mu: holds with a lost event
	released map[*client.Hold]bool       // guarded by mu: by a command
	cancels  map[int]context.CancelFunc  // guarded by mu: by the command's id
}

type holdName struct {
	key          string
	owner, fence uint64
}

type command struct {
	ID      int      `json:"id"`
	Do      string   `json:"do"`
	Key     string   `json:"key"`
	Keys    []string `json:"keys"`
	Owner   uint64   `json:"owner"`
	Mode    string   `json:"mode"`
	Wait    int64    `json:"wait_ms"`
	TTL     int64    `json:"ttl_ms"`
	Fixed   bool     `json:"fixed"`
	Permits uint32   `json:"permits"`
	Keep    int64    `json:"keep_ms"`
	Now     bool     `json:"now"`
	Fence   Fence    `json:"fence"`
	Fences  []Fence  `json:"fences"`
	Target  int      `json:"target"`
	Quiet   bool     `json:"quiet"`
}

func runReference(socket string, can []string) {
	r := &reference{socket: socket, holds: map[holdName][]*client.Hold{}, told: map[holdName]bool{},
		released: map[*client.Hold]bool{}, cancels: map[int]context.CancelFunc{}}
	r.say(map[string]any{"event": "ready", "client": "protocol/client", "can": can})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var q command
		if err := json.Unmarshal(in.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		ctx, cancel := context.WithCancel(context.Background())
		r.mu.Lock()
		r.cancels[q.ID] = cancel
		r.mu.Unlock()
		go func() {
			a, err := r.do(ctx, &q)
			if a == nil {
				a = map[string]any{}
			}
			a["id"], a["ok"] = q.ID, true
			if err != nil {
				a["ok"], a["error"] = false, errorName(err)
			}
			r.say(a)
		}()
	}
}

func (r *reference) say(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	r.out.Lock()
	defer r.out.Unlock()
	fmt.Printf("%s\n", b)
}

func errorName(err error) string {
	var refused *client.Error
	var gone *client.LostError
	switch {
	case errors.As(err, &refused):
		return refused.Code.String()
	case errors.As(err, &gone), errors.Is(err, client.ErrReleased), errors.Is(err, client.ErrExpired):
		return "not_held"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "closed"
}

func (r *reference) conn() (*client.Client, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.c == nil {
		return nil, client.ErrClosed
	}
	return r.c, nil
}

func (r *reference) do(ctx context.Context, q *command) (map[string]any, error) {
	switch q.Do {
	case "connect":
		return nil, r.connect(ctx)
	case "close":
		c, err := r.conn()
		if err != nil {
			return nil, err
		}
		return nil, c.Close()
	case "held":
		return map[string]any{"held": r.held(q)}, nil
	case "cancel":
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cancels[q.Target]()
		return nil, nil
	}
	c, err := r.conn()
	if err != nil {
		return nil, err
	}
	switch q.Do {
	case "acquire":
		if r.lostWithConnection(q) {
			return nil, client.ErrNotHeld
		}
		h, err := c.Lock(ctx, q.args())
		if err != nil {
			return nil, err
		}
		r.keep(q.Key, q.Owner, h)
		return map[string]any{"fence": Fence(h.Fence())}, nil
	case "acquire_any":
		h, err := c.LockAny(ctx, q.Keys, q.args())
		if err != nil {
			return nil, err
		}
		r.keep(h.Key(), q.Owner, h)
		return map[string]any{"key": h.Key(), "fence": Fence(h.Fence())}, nil
	case "force_unlock":
		n, err := c.ForceUnlock(ctx, q.Key, protocol.Exclusive, uint64(q.Fence))
		return map[string]any{"ended": n}, err
	case "acquire_many":
		hs, err := c.LockMany(ctx, q.Keys, q.args())
		fences := make([]Fence, len(hs))
		for i, h := range hs {
			fences[i] = Fence(h.Fence())
			r.keep(q.Keys[i], q.Owner, h)
		}
		return map[string]any{"fences": fences}, err
	case "release_many":
		var hs client.Holds
		for i, k := range q.Keys {
			if h := r.take(holdName{k, q.Owner, uint64(q.Fences[i])}); h != nil {
				hs = append(hs, h)
			}
		}
		return nil, hs.Release(ctx)
	}
	if q.Do == "release_detached" {
		return nil, c.ReleaseDetached(ctx, q.Key, uint64(q.Fence))
	}
	h := r.take(q.named())
	if h == nil {
		return nil, client.ErrNotHeld
	}
	switch q.Do {
	case "release":
		r.mu.Lock()
		r.released[h] = true
		r.mu.Unlock()
		switch {
		case q.Now:
			return nil, h.ReleaseNow(ctx)
		case q.Quiet:
			return nil, h.ReleaseQuiet()
		}
		return nil, h.Release(ctx)
	case "renew":
		return map[string]any{"fence": Fence(h.Fence())},
			h.Renew(ctx, time.Duration(q.TTL)*time.Millisecond)
	case "downgrade":
		return map[string]any{"fence": Fence(h.Fence())}, h.Downgrade(ctx)
	}
	return nil, fmt.Errorf("no such command: %s", q.Do)
}

func (q *command) named() holdName { return holdName{q.Key, q.Owner, uint64(q.Fence)} }

func (q *command) args() client.AcquireArgs {
	a := client.AcquireArgs{Key: q.Key, Owner: q.Owner, Wait: time.Duration(q.Wait) * time.Millisecond,
		TTL: time.Duration(q.TTL) * time.Millisecond, Fixed: q.Fixed, Permits: q.Permits,
		Keep: time.Duration(q.Keep) * time.Millisecond}
	if q.Mode == "shared" {
		a.Mode = protocol.Shared
	}
	return a
}

func (r *reference) connect(ctx context.Context) error {
	r.mu.Lock()
	c := r.c
	r.mu.Unlock()
	if c != nil && c.Err() == nil {
		return nil
	}
	c, err := client.Dial(ctx, r.socket, client.Options{Name: "reference", OnLost: r.lost,
		OnEnd: func(error) { r.ended() }})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.c = c
	r.mu.Unlock()
	return nil
}

func (r *reference) lost(l client.Lost) {
	r.tell(holdName{l.Key, l.Owner, l.Fence},
		l.Reason.String())
}

func (r *reference) tell(n holdName, reason string) {
	r.mu.Lock()
	said := r.told[n]
	r.told[n] = true
	r.mu.Unlock()
	if !said {
		r.say(map[string]any{"event": "lost", "key": n.key, "owner": n.owner, "fence": Fence(n.fence),
			"reason": reason})
	}
}

func (r *reference) ended() {
	r.mu.Lock()
	var names []holdName
	for n, hs := range r.holds {
		if len(hs) > 0 && errors.Is(hs[0].Err(), client.ErrClosed) {
			names = append(names, n)
		}
	}
	r.mu.Unlock()
	for _, n := range names {
		r.tell(n, "connection")
	}
}

func (r *reference) keep(key string, owner uint64, h *client.Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := holdName{key, owner, h.Fence()}
	r.holds[n] = append(r.holds[n], h)
}

// take returns the hold that a command means: a valid one, or else one that no command has
// released.
func (r *reference) take(n holdName) *client.Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	hs := r.holds[n]
	for _, h := range hs {
		if h.Err() == nil {
			return h
		}
	}
	for _, h := range hs {
		if !r.released[h] {
			return h
		}
	}
	return nil
}

// lostWithConnection reports whether the owner has lost the key together with an earlier connection
// and not released it. A Client is one connection, so its user must keep track of this.
func (r *reference) lostWithConnection(q *command) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, hs := range r.holds {
		for _, h := range hs {
			if n.key == q.Key && n.owner == q.Owner && q.Permits == 0 && !r.released[h] &&
				errors.Is(h.Err(), client.ErrClosed) {
				return true
			}
		}
	}
	return false
}

func (r *reference) held(q *command) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.holds[q.named()] {
		if h.Valid() {
			return true
		}
	}
	return false
}
