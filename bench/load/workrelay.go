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

// relay is a strawman, and no lock service: it gathers what its clients ask for into
// script calls of many keys, and passes a key that others here want to the next of
// them. No modes, no time, no cancel, no renewal, no mercy: any fault ends it. It
// bounds what a daemon that does all that could do.
type relay struct {
	redis *redis.Client
	ready chan struct{} // something is due

	mu           sync.Mutex
	keys         map[string][]ask // guarded by mu: not known to be free, and who is next
	takes, drops []ask            // guarded by mu: due
	fence        uint64           // guarded by mu
}

type ask struct {
	by  net.Conn
	id  uint64
	key string
}

// outbox is frames that are written all at once, by client.
type outbox map[net.Conn][]byte

const (
	relayKeys     = 32 // of one script call
	relayInFlight = 2
	relayToken    = "relay:0123456789abcdef"
)

// TakeKeys and DropKeys are the least that many locks can be asked for: keys that are
// not there are set to a token, and those that hold it deleted. They return how many.
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

// RelayUpstream is the file beside a relay's socket with the address of its Redis.
func RelayUpstream(socket string) string { return filepath.Join(filepath.Dir(socket), "upstream") }

// ServeRelay relays until something goes wrong.
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
			l.Close() // ends it all
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

// takeLocked has a key asked for, for one who came first, and those behind it.
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

// carry asks the Redis for all that is due, and answers.
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
			if queue := r.keys[a.key]; len(queue) > 0 { // meanwhile
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

// call has every ask carried out; any that is not is an error.
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
