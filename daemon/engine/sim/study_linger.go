package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// affinity says which host uses which key. Every key has a home host.
type affinity struct {
	name  string
	away  int // permille of uses by any host but that one
	stays int // about how many uses in a row a key has on its own host; 0 for no end
	lent  int // about how many uses another host then has before the key returns; 0 for no end
}

// strolling is a load: every client acquires a key, releases it, thinks, and begins again.
type strolling struct {
	affinity
	hold, think int64
	tries       int // permille of acquires
	counting    bool
	keys        []*stroll
	of          map[*key]*stroll
	strolled
}

// stroll says where a key is, and which clients use it.
type stroll struct {
	k     *key
	home  int  // its home host
	lent  bool // another host uses it for a while, after which it returns
	host  int  // the host that uses it now
	last  int  // the host that held it last
	users int  // holds, until their release has been answered, and acquires under way
	asks  []*ask
}

// ask is an acquire in progress.
type ask struct {
	q     *request
	h     *host
	alone bool // no other client has used the key since it began
	freed bool // another host has given up its lease for it
}

// strolled is the result.
type strolled struct {
	acquires int     // that were granted
	kept     int     // of those, without a trip to the store
	ops      int     // of the store
	waits    []int64 // for grants
	moves    []int64 // the same, where the last one was another host's and nobody held it
	gives    []int64 // from the acquire to the release, by another host, of what nobody held
	refused  []int64 // for tries to be told that it is held, rightly
	lone     int     // tries by another host than the last, of what nobody held
	wrong    int     // of those, that were told that it is held
}

func newStrolling(p *Profile, a affinity, think int64) *strolling {
	l := &strolling{affinity: a, hold: ms, think: think, tries: 200, of: make(map[*key]*stroll)}
	for n := range p.Keys {
		l.keys = append(l.keys, &stroll{home: n % p.Hosts, host: n % p.Hosts, last: n % p.Hosts})
	}
	return l
}

func (l *strolling) begin(c *client) {
	w := c.w
	if len(l.of) == 0 {
		for n, x := range l.keys {
			x.k = w.keys[n]
			l.of[x.k] = x
		}
	}
	c.after(w.skewed(l.think), func() {
		if w.calm {
			return
		}
		x := l.pick(c)
		x.users++
		wait := int64(protocol.WaitAlways)
		if w.chance(l.tries) {
			wait = 0
		}
		x.asks = append(x.asks, &ask{q: c.want(x.k, wait), h: c.h, alone: true})
		x.crowd()
	})
}

// crowd records which clients use a key at the same time.
func (x *stroll) crowd() {
	for _, a := range x.asks {
		a.alone = a.alone && x.users == 1
	}
}

// pick returns the key that a client uses next.
func (l *strolling) pick(c *client) *stroll {
	w := c.w
	away := w.chance(l.away)
	mine := slices.DeleteFunc(slices.Clone(l.keys), func(x *stroll) bool {
		return (x.host == c.h.id) == away
	})
	if len(mine) == 0 {
		mine = l.keys
	}
	x := mine[w.pick(len(mine))]
	switch {
	case away:
	case l.stays > 0 && !x.lent && w.pick(l.stays) == 0:
		other := (c.h.id + 1 + w.pick(w.p.Hosts-1)) % w.p.Hosts
		x.host, x.lent = other, l.lent > 0
	case x.lent && w.pick(l.lent) == 0:
		x.host, x.lent = x.home, false
	}
	return x
}

// end handles an acquire that has been answered.
func (x *stroll) end(q *request) *ask {
	i := slices.IndexFunc(x.asks, func(a *ask) bool { return a.q == q })
	a := x.asks[i]
	x.asks = slices.Delete(x.asks, i, i+1)
	return a
}

func (l *strolling) granted(c *client, h *hold, q *request) {
	w, x := c.w, l.of[q.key]
	a := x.end(q)
	if wait := w.now - q.sent; l.counting {
		l.acquires++
		l.waits = append(l.waits, wait)
		if h.fence&1023 != 0 {
			l.kept++
		}
		if a.alone && x.last != c.h.id {
			l.moves = append(l.moves, wait)
			if q.wait == 0 {
				l.lone++
			}
		}
	}
	x.last = c.h.id
	d := l.hold
	if w.calm {
		d = 0
	}
	c.give(h, d)
}

func (l *strolling) answered(c *client, q *request, code protocol.Code) {
	switch {
	case q.op == protocol.OpRelease && code == protocol.OK:
		l.of[q.key].users--
	case q.op == protocol.OpAcquire && code == protocol.Busy:
		x := l.of[q.key]
		x.users--
		if a := x.end(q); !l.counting {
		} else if !a.alone {
			l.refused = append(l.refused, c.w.now-q.sent)
		} else {
			l.lone++
			l.wrong++
		}
	default:
		return
	}
	l.begin(c)
}

func (l *strolling) carriedOut(h *host, op *cache.Op) {
	if op.Kind != cache.OpRelease || !l.counting {
		return
	}
	for _, a := range l.of[h.w.key(op.Key)].asks {
		if a.alone && a.h != h && !a.freed {
			a.freed = true
			l.gives = append(l.gives, h.w.now-a.q.sent)
		}
	}
}

func (l *strolling) measure(w *World) { l.counting, l.ops = !l.counting, w.ops()-l.ops }

// strollAbout has the hosts of p use keys for a time.
func strollAbout(p Profile, a affinity, think, length int64) (strolled, *Failure) {
	l := newStrolling(&p, a, think)
	w := study(p, l, length)
	return l.strolled, w.failure
}
