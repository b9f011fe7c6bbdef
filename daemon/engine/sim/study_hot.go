package sim

import (
	"slices"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// hotKey is a load: every client of every host acquires one key, holds it, releases it, and
// acquires it again as soon as the release is answered.
type hotKey struct {
	hold     int64 // how long each hold is kept
	counting bool
	from     int64 // when the counting has begun
	hosts    []contender
	waits    [2][]int64 // of acquires, on the first host and on the others
	local    int        // grants without a trip to the store
	ops      int        // of the store
}

// contender counts a host's use of the key.
type contender struct {
	holds   int
	wants   int   // acquires that wait
	has     bool  // one of its clients holds the key
	since   int64 // when its clients began to wait without any of them holding
	longest int64 // the longest time for which that has lasted
}

func (l *hotKey) begin(c *client) {
	w := c.w
	if w.calm {
		return
	}
	x := &l.hosts[c.h.id]
	if x.wants == 0 && !x.has {
		x.since = w.now
	}
	x.wants++
	c.want(w.keys[0], protocol.WaitAlways)
}

func (l *hotKey) granted(c *client, h *hold, q *request) {
	w, x := c.w, &l.hosts[c.h.id]
	l.gap(x, w.now)
	x.wants--
	x.has = true
	if l.counting {
		x.holds++
		l.waited(c, q, w.now)
		if h.fence&1023 != 0 {
			l.local++
		}
	}
	d := l.hold
	if w.calm {
		d = 0
	}
	c.after(d, func() {
		x.has, x.since = false, w.now
		c.give(h, 0)
	})
}

func (l *hotKey) answered(c *client, q *request, code protocol.Code) {
	if q.op == protocol.OpRelease && code == protocol.OK {
		c.after(0, func() { l.begin(c) })
	}
}

func (l *hotKey) carriedOut(*host, *cache.Op) {}

// gap records how long a host has had nothing.
func (l *hotKey) gap(x *contender, now int64) {
	if l.counting && x.wants > 0 && !x.has {
		x.longest = max(x.longest, now-max(x.since, l.from))
	}
}

// waited records how long an acquire has waited, within the time that counts.
func (l *hotKey) waited(c *client, q *request, now int64) {
	n := min(c.h.id, 1)
	l.waits[n] = append(l.waits[n], now-max(q.sent, l.from))
}

func (l *hotKey) measure(w *World) {
	for i := range l.hosts { // hosts that have got nothing yet count, too
		l.gap(&l.hosts[i], w.now)
	}
	if l.counting {
		for _, c := range w.clients {
			for _, q := range c.calls {
				if q.op == protocol.OpAcquire {
					l.waited(c, q, w.now)
				}
			}
		}
	}
	l.counting, l.from, l.ops = !l.counting, w.now, w.ops()-l.ops
}

// hotShare is the result for a hot key. In pairs, the first value is for the first host, the second
// for all others.
type hotShare struct {
	rate    int64 // holds a second
	local   int   // permille of them that came without a trip to the store
	jain    float64
	first   int      // permille of the holds that the first host had
	median  int64    // of acquires' waits
	typical [2]int64 // the medians
	longest [2]int64 // of them
	gap     int64    // the longest time in which a host wanted and had nothing
	ops     float64  // of the store, a hold
}

// shareKey has the hosts of p share a key for a time.
func shareKey(p Profile, hold, length int64) (r hotShare, f *Failure) {
	l := &hotKey{hold: hold, hosts: make([]contender, p.Hosts)}
	f = study(p, l, length).failure
	for n, waits := range l.waits {
		r.typical[n], r.longest[n] = quantile(waits, 500), quantile(waits, 1000)
	}
	r.median = quantile(slices.Concat(l.waits[0], l.waits[1]), 500)
	var holds []int
	n := 0
	for _, x := range l.hosts {
		holds = append(holds, x.holds)
		n += x.holds
		r.gap = max(r.gap, x.longest)
	}
	r.rate, r.jain = int64(n)*sec/length, jain(holds)
	if n > 0 {
		r.local, r.first, r.ops = l.local*1000/n, holds[0]*1000/n, float64(l.ops)/float64(n)
	}
	return r, f
}
