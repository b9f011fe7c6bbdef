package admin

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/daemon/engine"
)

// history keeps the recent losses and samples that a view shows.
type history struct {
	mu     sync.Mutex
	losses ring[engine.ViewLost]  // guarded by mu
	points ring[engine.ViewPoint] // guarded by mu
}

// The size of the history: the last losses, and one point each pointEvery.
const (
	lostMost   = 100
	pointMost  = 120
	pointEvery = 5 * time.Second
)

// ring keeps the last elements that were added.
type ring[E any] struct {
	all  []E
	next int // the index of the oldest element, once the ring is full
}

func (r *ring[E]) put(e E, limit int) {
	if len(r.all) < limit {
		r.all = append(r.all, e)
		return
	}
	r.all[r.next] = e
	r.next = (r.next + 1) % limit
}

// list returns a copy of the elements, oldest first. It is never nil.
func (r *ring[E]) list() []E {
	return append(append(make([]E, 0, len(r.all)), r.all[r.next:]...), r.all[:r.next]...)
}

// Lose adds a lost hold to the history.
func (d *Viewer) Lose(n *cache.Notice, at time.Time) { d.history.lose(n, at) }

func (l *history) lose(n *cache.Notice, at time.Time) {
	v := engine.ViewLost{At: at, Key: n.Key, Mode: n.Mode.String(), Owner: n.Owner, Fence: n.Fence,
		ViewWho: engine.WhoIs(n.Session),
		Reason:  n.Reason.String(), Held: engine.Millis(n.Took)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.losses.put(v, lostMost)
}

// lost returns the losses, the newest first: of a key, or of all keys if key is empty.
func (l *history) lost(key string) []engine.ViewLost {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.DeleteFunc(l.losses.list(), func(v engine.ViewLost) bool {
		return key != "" && v.Key != key
	})
	slices.Reverse(list)
	return list
}

func (l *history) series() []engine.ViewPoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.points.list()
}

// Remember adds a point to the history each pointEvery, until the daemon halts.
func (d *Viewer) Remember() {
	tick := time.NewTicker(pointEvery)
	defer tick.Stop()
	last := d.point(nil)
	for {
		select {
		case <-tick.C:
			last = d.point(last)
		case <-d.Halt:
			return
		}
	}
}

// moment has the totals at the last point. The next point shows the difference.
type moment struct {
	at     time.Time
	totals engine.ViewTotals
	slack  cache.Histogram // of all stores
}

// point adds a point, unless last is nil.
func (d *Viewer) point(last *moment) *moment {
	t := d.Engine.Totals()
	m := &moment{at: time.Now(), totals: viewTotals(&t)}
	for i := range t.Stores {
		m.slack.Add(&t.Stores[i].Slack)
	}
	if last == nil {
		return m
	}
	for i := range last.slack.Buckets {
		last.slack.Buckets[i] = since(m.slack.Buckets[i], last.slack.Buckets[i])
	}
	last.slack.Zero = since(m.slack.Zero, last.slack.Zero)
	took := m.at.Sub(last.at).Seconds() // not less than a tick's worth, and monotonic
	p := engine.ViewPoint{At: m.at, Held: m.totals.Held, Waiting: m.totals.Waiting,
		Sessions: m.totals.Sessions,
		Acquires: float64(since(m.totals.Acquires, last.totals.Acquires)) / took,
		Lost:     float64(since(m.totals.Lost, last.totals.Lost)) / took,
		Slack:    median(&last.slack)}
	d.history.mu.Lock()
	defer d.history.mu.Unlock()
	d.history.points.put(p, pointMost)
	return m
}

// since returns how much a counter has grown. A counter can fall, because a closed store's counts
// are gone.
func since(is, was uint64) uint64 { return is - min(is, was) }

// median returns the median of h, in milliseconds; -1 if h is empty.
func median(h *cache.Histogram) int64 {
	half := (h.Count() + 1) / 2
	n := h.Zero
	switch {
	case half == 0:
		return -1
	case n >= half:
		return 0
	}
	for i, b := range h.Buckets {
		if n += b; n >= half {
			return int64(1000 * math.Exp2(float64(cache.HistFirst+i)/(1<<cache.HistSchema)))
		}
	}
	return -1
}
