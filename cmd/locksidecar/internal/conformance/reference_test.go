package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// reference is a client program for the runner's own tests: it takes commands as
// clients/README.md says, and carries them out with package client. A mutant is one
// with a fault.
type reference struct {
	socket string
	mutant string

	out     sync.Mutex // guards standard output
	single  sync.Mutex // a mutant's
	mu      sync.Mutex
	c       *client.Client              // guarded by mu
	holds   map[holdName][]*client.Hold // guarded by mu; one for each acquire
	told    map[holdName]bool           // guarded by mu: said to be lost
	cancels map[int]context.CancelFunc  // guarded by mu: by the command's id
	many    map[holdName]protocol.Grant // guarded by mu
	last    map[string]uint64           // guarded by mu: the newest fence of a key
	beat    *uint64                     // guarded by mu: the last one's until, for a mutant
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
	Fence   Fence    `json:"fence"`
	Fences  []Fence  `json:"fences"`
	Target  int      `json:"target"`
}

func runReference(socket, mutant string) {
	r := &reference{socket: socket, mutant: mutant, holds: map[holdName][]*client.Hold{}, told: map[holdName]bool{},
		cancels: map[int]context.CancelFunc{}, last: map[string]uint64{}}
	if m, ok := wireMutants[mutant]; ok {
		r.socket = startRelay(socket, m)
	}
	can := make([]string, len(Abilities))
	for i, a := range Abilities {
		can[i] = a[0]
	}
	r.say(map[string]any{"event": "ready", "client": "reference " + mutant, "can": can})
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
			if err != nil && r.mutant == "hangs-in-flight" && errors.Is(err, client.ErrClosed) {
				return
			}
			if a == nil {
				a = map[string]any{}
			}
			a["id"], a["ok"] = q.ID, true
			if err != nil {
				a["ok"], a["error"] = false, errorName(err)
				if r.mutant == "has-one-error" {
					a["error"] = "closed"
				}
			}
			r.say(a)
		}()
	}
	if r.mutant == "stays-after-stdin" {
		time.Sleep(time.Hour)
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
	case errors.As(err, &gone), errors.Is(err, client.ErrReleased):
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
		r.mu.Lock()
		c := r.c
		r.mu.Unlock()
		if r.mutant != "keeps-on-close" {
			return nil, c.Close()
		}
		return nil, nil
	case "held":
		return map[string]any{"held": r.held(q)}, nil
	case "cancel":
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.mutant != "ignores-cancel" {
			r.cancels[q.Target]()
		}
		return nil, nil
	case "acquire":
		return r.acquire(ctx, q)
	}
	c, err := r.conn()
	if err != nil {
		return nil, err
	}
	switch q.Do {
	case "acquire_many":
		return r.acquireMany(ctx, c, q)
	case "release_many":
		return r.releaseMany(ctx, c, q)
	}
	h := r.take(q)
	if h == nil {
		return nil, client.ErrNotHeld
	}
	switch q.Do {
	case "release":
		return nil, r.release(ctx, c, q, h)
	case "renew":
		if r.mutant == "renews-nothing" {
			return nil, nil
		}
		return map[string]any{"fence": Fence(h.Fence())}, h.Renew(ctx, time.Duration(q.TTL)*time.Millisecond)
	case "downgrade":
		if r.mutant == "downgrades-alone" {
			return nil, nil
		}
		return map[string]any{"fence": Fence(h.Fence())}, h.Downgrade(ctx)
	}
	return nil, fmt.Errorf("no such command: %s", q.Do)
}

func (r *reference) connect(ctx context.Context) error {
	r.mu.Lock()
	c := r.c
	r.mu.Unlock()
	if c != nil && c.Err() == nil {
		return nil
	}
	c, err := client.Dial(ctx, r.socket, client.Options{Name: "reference", OnLost: r.lost, OnEnd: func(error) { r.ended() },
		OnGoingAway: func(uint64, string) {
			if r.mutant == "parts-when-told-to-go" {
				go func() { _ = r.c.Close() }()
			}
		},
		OnBeat: func(b client.Beat) {
			r.mu.Lock()
			r.beat = &b.Until
			r.mu.Unlock()
		}})
	if err != nil {
		if r.mutant == "dials-for-ever" {
			<-ctx.Done()
		}
		return err
	}
	r.mu.Lock()
	r.c = c
	r.mu.Unlock()
	return nil
}

func (r *reference) lost(l client.Lost) { r.tell(holdName{l.Key, l.Owner, l.Fence}, l.Reason.String()) }

func (r *reference) tell(n holdName, reason string) {
	r.mu.Lock()
	said := r.told[n]
	r.told[n] = true
	r.mu.Unlock()
	if !said && r.mutant != "tells-nothing" {
		r.say(map[string]any{"event": "lost", "key": n.key, "owner": n.owner, "fence": Fence(n.fence), "reason": reason})
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

func (r *reference) acquire(ctx context.Context, q *command) (map[string]any, error) {
	c, err := r.conn()
	if err != nil {
		return nil, err
	}
	if r.mutant == "trims-keys" {
		q.Key = strings.TrimSpace(q.Key)
	}
	if r.mutant == "lets-bad-keys-through" && protocol.CheckKey(q.Key) != nil {
		q.Key = "replaced"
	}
	switch {
	case r.mutant == "clamps-ttls":
		q.TTL = min(max(q.TTL, 0), protocol.MaxTTL)
	case q.TTL < 0:
		return nil, client.ErrInvalid
	}
	a := client.AcquireArgs{Key: q.Key, Owner: q.Owner, Wait: time.Duration(q.Wait) * time.Millisecond,
		TTL: time.Duration(q.TTL) * time.Millisecond, Fixed: q.Fixed}
	if q.Mode == "shared" {
		a.Mode = protocol.Shared
	}
	if a.Permits = q.Permits; r.mutant == "permits-are-locks" {
		a.Permits = 0
	}
	switch r.mutant {
	case "shares-nothing":
		a.Mode = protocol.Exclusive
	case "one-owner-for-all":
		a.Owner = 1
	case "ignores-fixed":
		a.Fixed = false
	case "one-at-a-time":
		r.single.Lock()
		defer r.single.Unlock()
	}
	if r.mutant == "forgets-crossed-grant" {
		return r.acquireForgetting(ctx, c, &a)
	}
	h, err := c.Lock(ctx, a)
	if r.mutant == "timeout-is-success" && errors.Is(err, client.ErrTimeout) {
		return map[string]any{"fence": Fence(1)}, nil
	}
	if err != nil && r.mutant == "upgrades-alone" && errors.Is(err, client.ErrUpgrade) {
		return map[string]any{"fence": Fence(r.last[q.Key])}, nil
	}
	if err != nil {
		return nil, err
	}
	if r.mutant == "refuses-fence-0" && h.Fence() == 0 {
		return nil, client.ErrInvalid
	}
	r.mu.Lock()
	n := holdName{q.Key, q.Owner, h.Fence()}
	r.holds[n] = append(r.holds[n], h)
	r.last[q.Key] = h.Fence()
	r.mu.Unlock()
	f := h.Fence()
	switch r.mutant {
	case "fences-are-doubles":
		f = uint64(min(float64(f), math.MaxInt64-1024))
	case "invents-fences":
		f = 1
	}
	return map[string]any{"fence": Fence(f)}, nil
}

// acquireForgetting is a mutant's: whoever has given up hears of nothing any more.
func (r *reference) acquireForgetting(ctx context.Context, c *client.Client, a *client.AcquireArgs) (map[string]any, error) {
	req := protocol.Request{Op: protocol.OpAcquire, Key: []byte(a.Key), Owner: a.Owner, Wait: -1}
	got := make(chan client.Reply, 1)
	id, err := c.Go(&req, func(p *client.Reply) { got <- *p })
	if err != nil {
		return nil, err
	}
	select {
	case p := <-got:
		return map[string]any{"fence": Fence(p.Grant.Fence)}, p.Err
	case <-ctx.Done():
		_ = c.Cancel(id, a.Key)
		return nil, ctx.Err()
	}
}

func (r *reference) named(q *command) holdName { return holdName{q.Key, q.Owner, uint64(q.Fence)} }

// take finds the hold that a command is about.
func (r *reference) take(q *command) *client.Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.named(q)
	if r.mutant == "releases-any-fence" || r.mutant == "invents-fences" {
		n.fence = r.last[q.Key]
	}
	hs := r.holds[n]
	for _, h := range hs {
		if h.Err() == nil {
			return h
		}
	}
	if len(hs) > 0 {
		return hs[0]
	}
	return nil
}

func (r *reference) release(ctx context.Context, c *client.Client, q *command, h *client.Hold) error {
	switch r.mutant {
	case "releases-all-counts":
		_, err := c.Release(ctx, client.ReleaseArgs{Key: q.Key, Owner: q.Owner, Fence: h.Fence(), All: true})
		return err
	case "release-is-always-right":
		_ = h.Release(ctx)
		return nil
	}
	return h.Release(ctx)
}

func (r *reference) held(q *command) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.named(q)
	for o := range r.told {
		if r.mutant == "loses-all-permits" && o.key == n.key {
			return false
		}
	}
	hs := r.holds[n]
	for _, h := range hs {
		switch err := h.Err(); {
		case r.mutant == "believes-silence" && err == nil:
			return true
		case r.mutant == "believes-over-connections" && errors.Is(err, client.ErrClosed):
			return true
		case r.mutant == "beats-shorten" && r.beat != nil && err == nil && bootMillis() >= *r.beat:
			return false
		}
		if h.Valid() {
			return true
		}
	}
	g, ok := r.many[n]
	return ok && r.c.Err() == nil && bootMillis() < g.Deadline
}

func (r *reference) acquireMany(ctx context.Context, c *client.Client, q *command) (map[string]any, error) {
	gs, err := c.AcquireMany(ctx, q.Keys, client.AcquireArgs{Owner: q.Owner, Wait: time.Duration(q.Wait) * time.Millisecond})
	if err != nil && r.mutant == "many-cannot-fail" {
		return map[string]any{"fences": make([]Fence, len(q.Keys))}, nil
	}
	if err != nil {
		return nil, err
	}
	fences := make([]Fence, len(gs))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.many == nil {
		r.many = map[holdName]protocol.Grant{}
	}
	for i, g := range gs {
		if r.mutant == "mixes-many-up" {
			g = gs[len(gs)-1-i]
		}
		fences[i] = Fence(g.Fence)
		r.many[holdName{q.Keys[i], q.Owner, g.Fence}] = g
	}
	return map[string]any{"fences": fences}, nil
}

func (r *reference) releaseMany(ctx context.Context, c *client.Client, q *command) (map[string]any, error) {
	fences := make([]uint64, len(q.Fences))
	r.mu.Lock()
	for i, f := range q.Fences {
		fences[i] = uint64(f)
		delete(r.many, holdName{q.Keys[i], q.Owner, fences[i]})
	}
	r.mu.Unlock()
	codes, err := c.ReleaseMany(ctx, q.Keys, fences, client.ReleaseArgs{Owner: q.Owner})
	return map[string]any{"codes": names(codes)}, err
}

func names(codes []protocol.Code) (s []string) {
	for _, c := range codes {
		s = append(s, c.String())
	}
	return s
}
