package engine

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/locksidecar/locksidecar/cache"
)

// The bounds of a view's scan.
const (
	maxScanned = 200_000 // holds that it visits, and also waiters
	scanPiece  = 1024    // of them with a shard's mutex held once
	maxTrouble = 20_000  // holds that it visits to find those in trouble
)

// order has the comparison functions of one order of rows. A result below 0 means that a comes
// first. Rows that compare equal are sorted by age and key.
type order struct {
	holds    func(a, b *cache.Held) int
	waiters  func(a, b *cache.Waiting) int
	sessions func(a, b *ViewSession) int
}

var orders = map[string]*order{
	"age": {
		func(a, b *cache.Held) int { return cmp.Compare(a.Since, b.Since) },
		func(a, b *cache.Waiting) int { return cmp.Compare(a.Since, b.Since) },
		func(a, b *ViewSession) int { return cmp.Compare(a.Session, b.Session) },
	},
	"key": {
		func(a, b *cache.Held) int { return cmp.Compare(a.Key, b.Key) },
		func(a, b *cache.Waiting) int { return cmp.Compare(a.Key, b.Key) },
		func(a, b *ViewSession) int { return cmp.Compare(a.Client, b.Client) },
	},
	"left": {
		func(a, b *cache.Held) int { return cmp.Compare(a.Until, b.Until) },
		func(a, b *cache.Waiting) int { return cmp.Compare(a.Deadline, b.Deadline) },
		func(a, b *ViewSession) int { return cmp.Compare(b.Holds, a.Holds) },
	},
	"waiters": {
		func(a, b *cache.Held) int { return cmp.Compare(b.Waiters, a.Waiters) },
		func(a, b *cache.Waiting) int { return cmp.Compare(b.Place, a.Place) },
		func(a, b *ViewSession) int { return cmp.Compare(b.Waiters, a.Waiters) },
	},
}

func init() { // an initializer of orders cannot refer to orders
	orders[ViewTrouble] = &order{nil, orders["age"].waiters, orders["waiters"].sessions}
}

// InTrouble reports whether a hold should have been renewed by now, is degraded or is closed by
// force.
func (h *ViewHold) InTrouble() bool {
	return h.Degraded || h.Forced || h.Late()
}

// Late reports whether a hold should have been renewed by now.
func (h *ViewHold) Late() bool { return !h.Fixed && !h.Forced && h.Left*4 < h.TTL }

// troubleFirst returns the order "trouble" of holds at a time.
func troubleFirst(now int64) func(a, b *cache.Held) int {
	rank := func(h *cache.Held) int32 {
		if h.Fence == 0 || h.Forced || !h.Fixed && (h.Until-now)*4 < h.TTL {
			return math.MaxInt32
		}
		return h.Waiters
	}
	return func(a, b *cache.Held) int { return cmp.Compare(rank(b), rank(a)) }
}

// best collects rows and keeps the first limit of them.
type best[R any] struct {
	limit   int
	compare func(a, b *R) int
	rows    []R
	cut     bool // rows were dropped
}

func (b *best[R]) add(rows ...R) {
	for i := range rows {
		if b.cut && b.compare(&rows[i], &b.rows[b.limit-1]) >= 0 { // the first limit rows are sorted
			continue
		}
		if b.rows = append(b.rows, rows[i]); len(b.rows) >= 2*b.limit+DefaultViewRows {
			b.sort()
		}
	}
}

func (b *best[R]) sort() []R {
	sort.Sort(b)
	if len(b.rows) > b.limit {
		clear(b.rows[b.limit:])
		b.rows, b.cut = b.rows[:b.limit], true
	}
	return b.rows
}

func (b *best[R]) Len() int           { return len(b.rows) }
func (b *best[R]) Less(i, j int) bool { return b.compare(&b.rows[i], &b.rows[j]) < 0 }
func (b *best[R]) Swap(i, j int)      { b.rows[i], b.rows[j] = b.rows[j], b.rows[i] }

func newBest[R any](q *ViewQuery, compare func(a, b *R) int, ties ...func(a, b *R) int) *best[R] {
	return &best[R]{limit: q.Limit, compare: func(a, b *R) int {
		n := compare(a, b)
		for i := 0; n == 0 && i < len(ties); i++ {
			n = ties[i](a, b)
		}
		if q.Desc {
			return -n
		}
		return n
	}}
}

// View sets the lists of holds, waiters and sessions of v. Only one call runs at a time, because
// each table supports only one scan.
func (e *Engine) View(q ViewQuery, v *View) {
	e.scanning.Lock()
	defer e.scanning.Unlock()
	o, now := orders[q.Sort], e.clock()
	first := o.holds
	if first == nil {
		first = troubleFirst(now)
	}
	holds := newBest(&q, first, orders["age"].holds, orders["key"].holds)
	waiters := newBest(&q, o.waiters, orders["age"].waiters, orders["key"].waiters)
	sessions := newBest(&q, o.sessions, orders["age"].sessions)
	seen := true
	if q.Key != "" {
		holds.add(e.holdsOf(q.Key, q.Limit+1, now)...)
	} else {
		seen = scanTables(e, &q, holds, matching(&q, (*cache.Table).ScanHolds,
			func(h *cache.Held) string { return h.Key }))
	}
	v.More.Unseen = !scanTables(e, &q, waiters,
		matching(&q, (*cache.Table).ScanWaiters, func(w *cache.Waiting) string { return w.Key })) ||
		!seen
	names := e.classes.list()
	now = e.clock()
	v.Holds, v.Waiters, v.Sessions = []ViewHold{}, []ViewWaiter{}, []ViewSession{}
	for _, h := range holds.sort() {
		v.Holds = append(v.Holds, viewHold(&h, names, now))
	}
	for _, w := range waiters.sort() {
		v.Waiters = append(v.Waiters, viewWaiter(&w, now))
	}
	for _, s := range e.Sessions() {
		sessions.add(s.view(now))
	}
	v.Sessions = append(v.Sessions, sessions.sort()...)
	v.More.Holds, v.More.Waiters, v.More.Sessions = holds.cut, waiters.cut, sessions.cut
}

// piece is cache.Table.ScanHolds or cache.Table.ScanWaiters.
type piece[R any] func(t *cache.Table, found []R, prefix string, room, limit int) (
	_ []R, looked int, more bool,
)

// holdsOf returns up to limit holds of a key: of its lock and its semaphore.
func (e *Engine) holdsOf(key string, limit int, now int64) []cache.Held {
	sh := e.lock(shardOf(key))
	defer sh.mu.Unlock()
	held, _, _ := sh.table.HoldersOf(key, false, limit, now)
	permits, _, _ := sh.table.HoldersOf(key, true, limit, now)
	return append(held, permits...)
}

// matching limits the rows that next finds to those that q asks for.
func matching[R any](q *ViewQuery, next piece[R], key func(*R) string) piece[R] {
	if q.Search == "" && q.Key == "" {
		return next
	}
	return func(t *cache.Table, found []R, prefix string, room, limit int) (
		_ []R, looked int, more bool,
	) {
		found, looked, more = next(t, found, prefix, room, limit)
		found = slices.DeleteFunc(found, func(r R) bool {
			k := key(&r)
			return q.Key != "" && k != q.Key || !strings.Contains(k, q.Search)
		})
		return found, looked, more
	}
}

// scanTables scans all tables, each for its share of the budget, and adds the rows to into. If the
// order is by age, only the first rows of a table matter. It reports whether it has visited all
// rows that matter.
func scanTables[R any](e *Engine, q *ViewQuery, into *best[R], next piece[R]) (all bool) {
	all = true
	budget, byAge, prefix := e.maxScanned, q.Sort == "age", cmp.Or(q.Key, q.Prefix)
	if q.Sort == ViewTrouble {
		budget = min(budget, maxTrouble)
	}
	var rows []R
	for i := range e.shards {
		share, room := budget/(shards-i), e.maxScanned
		if byAge {
			room = q.Limit + 1 // one more than the limit, to detect whether there are more rows
		}
		for begun, more := false, true; more; begun = true {
			looked := 0
			sh := e.lock(i)
			if !begun {
				sh.table.BeginScan(byAge && q.Desc)
			}
			rows, looked, more = next(sh.table, rows[:0], prefix, room, min(share, scanPiece))
			room, share, budget = room-len(rows), share-looked, budget-looked
			if more && share == 0 {
				all = false
			}
			if more = more && share > 0 && room > 0; !more {
				sh.table.EndScan()
			}
			sh.mu.Unlock()
			into.add(rows...)
		}
	}
	return all
}

// ViewHold describes a hold.
func (e *Engine) ViewHold(h *cache.Held, now int64) ViewHold {
	return viewHold(h, e.classes.list(), now)
}

func viewHold(h *cache.Held, names []*class, now int64) ViewHold {
	return ViewHold{Key: h.Key, Mode: h.Mode.String(), Owner: h.Owner, Fence: h.Fence,
		Class: names[h.Class].name, ViewWho: WhoIs(h.Session), Held: Millis(max(0, now-h.Since)),
		Left: Millis(max(0, h.Until-now)), TTL: Millis(h.TTL),
		Waiters: h.Waiters, Degraded: h.Fence == 0, Fixed: h.Fixed, Forced: h.Forced}
}

func viewWaiter(w *cache.Waiting, now int64) ViewWaiter {
	v := ViewWaiter{Key: w.Key, Mode: w.Mode.String(), Owner: w.Owner, ViewWho: WhoIs(w.Session),
		Waited: Millis(max(0, now-w.Since)), Left: -1, Place: w.Place}
	if w.Deadline != cache.Forever {
		v.Left = Millis(max(0, w.Deadline-now))
	}
	if w.Holder != nil {
		who := WhoIs(w.Holder)
		v.Behind = &who
	}
	return v
}

// WhoIs describes the client of a session. For detached holds it only knows the user.
func WhoIs(c *cache.Session) ViewWho {
	s := SessionOf(c)
	w := ViewWho{Session: c.ID, PID: s.peer.PID, UID: s.peer.UID}
	if w.Detached = s.Detached(); w.Detached {
		w.Session = 0
	}
	if name := s.client.Load(); name != nil {
		w.Client = *name
	}
	return w
}

func (s *Session) view(now int64) ViewSession {
	v := ViewSession{ViewWho: WhoIs(s.core), Since: Millis(max(0, now-s.began)), Heard: -1,
		Watched: s.peer.Watched}
	v.Holds, v.Waiters = s.Counts()
	if heard := s.heard.Load(); heard != 0 {
		v.Heard = Millis(max(0, now-heard))
	}
	return v
}
