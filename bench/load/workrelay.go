package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/protocol"
)

// relay is not a lock service, but a limit for comparison. It gathers the requests of its clients
// into script calls for many keys. If several of its clients want the same key, it passes the key
// from one to the next. It has no modes, times, cancels and renewals, and ends at the first fault.
// So it bounds what a daemon with all of these could do.
type relay struct {
	redis *redis.Client
	ready chan struct{} // a request is due

	mu sync.Mutex
	// guarded by mu: keys that are not known to be free, and who waits for them
	keys         map[string][]ask
	takes, drops []ask  // guarded by mu: due
	fence        uint64 // guarded by mu
}

type ask struct {
	by  net.Conn
	id  uint64
	key string
}

// outbox has frames by client. All of them are written at once.
type outbox map[net.Conn][]byte

const (
	relayKeys     = 32 // per script call
	relayInFlight = 2
	relayToken    = "relay:0123456789abcdef"
)

// TakeKeys and DropKeys are the least work for many locks. TakeKeys sets keys that do not exist to
// a token, and DropKeys deletes keys that have the token. Each returns the number of these keys.
var (
	TakeKeys = redis.NewScript(`
local n = 0
for i = 1, #KEYS do if redis.call("SET", KEYS[i], ARGV[1], "NX", "PX", 30000) then n = n + 1 end end
return n`)
	DropKeys = redis.NewScript(`
local held, mine = redis.call("MGET", unpack(KEYS)), {}
for i, v in ipairs(held) do if v == ARGV[1] then mine[#mine + 1] = KEYS[i] end end
return #mine > 0 and redis.call("DEL", unpack(mine)) or 0`)
)

// RelayUpstream returns the path of the file beside a relay's socket that has the address of its
// Redis.
func RelayUpstream(socket string) string { return filepath.Join(filepath.Dir(socket), "upstream") }

// ServeRelay runs a relay until something goes wrong.
func ServeRelay(l net.Listener) error {
	addr, err := os.ReadFile(RelayUpstream(l.Addr().String()))
	if err != nil {
		return err
	}
	r := &relay{redis: redis.NewClient(&redis.Options{Addr: string(addr), PoolSize: relayInFlight,
		MaxRetries: -1}),
		ready: make(chan struct{}, 1), keys: map[string][]ask{}, fence: 1 << 50}
	for _, s := range []*redis.Script{TakeKeys, DropKeys} {
		if err := s.Load(context.Background(), r.redis).Err(); err != nil {
			return err
		}
	}
	for range relayInFlight {
		go func() {
			fmt.Fprintln(os.Stderr, r.carry())
			l.Close() // ends everything
		}()
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go r.serve(c)
	}
}

func (r *relay) serve(c net.Conn) {
	defer c.Close()
	w, box := &wire{conn: c, buf: make([]byte, 64<<10)}, outbox{}
	var q protocol.Request
	for w.fill() == nil {
		r.mu.Lock()
		for p, ok := w.took(); ok && protocol.DecodeRequest(p, &q) == nil; p, ok = w.took() {
			switch a := (ask{c, q.ID, string(q.Key)}); q.Op {
			case protocol.OpHello:
				box[c] = protocol.AppendWelcome(box[c], q.ID,
					&protocol.Welcome{Version: protocol.Version, MaxFrame: 64 << 10})
			case protocol.OpAcquire:
				if queue, taken := r.keys[a.key]; taken {
					r.keys[a.key] = append(queue, a)
				} else {
					r.takeLocked(a, nil)
				}
			case protocol.OpRelease:
				r.releaseLocked(a, box)
			}
		}
		r.mu.Unlock()
		box.flush()
	}
}

// takeLocked requests a key for a, which came first, and for the queue behind it.
func (r *relay) takeLocked(a ask, queue []ask) {
	r.keys[a.key] = queue
	r.takes = append(r.takes, a)
	r.wakeLocked()
}

func (r *relay) releaseLocked(a ask, box outbox) {
	queue := r.keys[a.key]
	if len(queue) == 0 {
		r.drops = append(r.drops, a)
		r.wakeLocked()
		return
	}
	r.keys[a.key] = queue[1:]
	box[a.by] = protocol.AppendReleased(box[a.by], a.id, 0)
	r.grantLocked(queue[0], box)
}

func (r *relay) grantLocked(a ask, box outbox) {
	r.fence++
	box[a.by] = protocol.AppendGrant(box[a.by], a.id,
		&protocol.Grant{Fence: r.fence, Left: 30_000, Deadline: 1 << 31, Count: 1})
}

// carry sends everything that is due to the Redis, and answers the clients.
func (r *relay) carry() error {
	box := outbox{}
	for range r.ready {
		r.mu.Lock()
		takes, drops := r.takes, r.drops
		r.takes, r.drops = nil, nil
		r.mu.Unlock()
		if err := r.call(takes, drops); err != nil {
			return err
		}
		r.mu.Lock()
		for _, a := range takes {
			r.grantLocked(a, box)
		}
		for _, a := range drops {
			box[a.by] = protocol.AppendReleased(box[a.by], a.id, 0)
			if queue := r.keys[a.key]; len(queue) > 0 { // clients that have asked meanwhile
				r.takeLocked(queue[0], queue[1:])
			} else {
				delete(r.keys, a.key)
			}
		}
		r.mu.Unlock()
		box.flush()
	}
	return nil
}

func (r *relay) wakeLocked() {
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// call carries out every request. A request that is not carried out is an error.
func (r *relay) call(takes, drops []ask) error {
	ctx, p := context.Background(), r.redis.Pipeline()
	for script, asks := range map[*redis.Script][]ask{TakeKeys: takes, DropKeys: drops} {
		for chunk := range slices.Chunk(asks, relayKeys) {
			keys := make([]string, len(chunk))
			for i, a := range chunk {
				keys[i] = a.key
			}
			script.EvalSha(ctx, p, keys, relayToken)
		}
	}
	cmds, err := p.Exec(ctx)
	done := 0
	for _, c := range cmds {
		n, _ := c.(*redis.Cmd).Int()
		done += n
	}
	if err == nil && done != len(takes)+len(drops) {
		err = errors.New("the relay's keys are not as it left them")
	}
	return err
}

func (box outbox) flush() {
	for c, b := range box {
		if len(b) > 0 {
			c.Write(b)
			box[c] = b[:0]
		}
	}
}
