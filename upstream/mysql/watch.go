package mysql

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

const (
	hintBuffer = 1024
	// maxPolled limits the locks of each kind in one poll.
	maxPolled = 256
	// heldPause is the approximate interval of polls for held locks. Each renewal reports
	// contention too.
	heldPause = 250 * time.Millisecond
	// hintPause is the minimum time between two equal hints.
	hintPause = 500 * time.Millisecond
	// pollRetry is the pause after a failed poll.
	pollRetry = time.Second
)

// watch has the locks that this store holds or waits for. The store polls them, because a server
// cannot tell a client that a row has changed.
type watch struct {
	hints driverkit.Hints
	wake  chan struct{} // there is a new lock or semaphore to poll

	mu    sync.Mutex
	waits map[string]*watched // by name; guarded by mu, as are the fields below
	held  map[string]*watched
	order []string // the names in held that have not had their turn
	sems  map[string]*watchedSem
}

// watched is one polled lock.
type watched struct {
	ask  ask
	key  string
	told time.Time // time of the last hint; guarded by watch.mu, as is ends
	ends time.Time // polls end then, unless an op is applied before
}

func (w *watch) init() {
	w.hints = driverkit.NewHints(hintBuffer)
	w.wake = make(chan struct{}, 1)
	w.waits, w.held, w.sems = map[string]*watched{}, map[string]*watched{}, map[string]*watchedSem{}
}

// follow records the results of a batch: the leases that are held now, and the requests that wait.
func follow[T interface{ base() *request }](
	w *watch, items []T, results []upstream.Result, held, waits, drop func(T),
) {
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.idle()
	for _, it := range items {
		r := it.base()
		renews := r.op.Kind == cache.OpRenew || r.op.Kind == cache.OpDowngrade
		switch status := results[r.at].Status; {
		case r.op.Kind == cache.OpPeek:
		case status == cache.Granted, status == cache.Done && renews:
			held(it)
		case status == cache.Queued:
			waits(it)
		case status == cache.Done, status == cache.Busy, status == cache.NotHeld:
			drop(it)
		}
	}
	if idle && !w.idle() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// note records the results of a batch about locks.
func (w *watch) note(items []*item, results []upstream.Result) {
	follow(w, items, results, func(it *item) {
		if results[it.at].Status == cache.Granted {
			delete(w.waits, it.name)
		}
		w.put(w.held, it, it.ask.ttl)
	}, func(it *item) { w.put(w.waits, it, 2*it.ask.lease) }, w.drop)
}

// put makes polls include a lock for that many more µs.
func (w *watch) put(in map[string]*watched, it *item, more int64) {
	ends := time.Now().Add(time.Duration(more) * time.Microsecond)
	if old := in[it.name]; old != nil && old.ask.token == it.ask.token {
		old.ask, old.ends = it.ask, ends
		return
	}
	in[it.name] = &watched{ask: it.ask, key: it.op.Key, ends: ends}
}

func (w *watch) drop(it *item) {
	for _, in := range []map[string]*watched{w.waits, w.held} {
		if x := in[it.name]; x != nil && x.ask.token == it.ask.token {
			delete(in, it.name)
		}
	}
}

// next chooses the locks for the next poll: as many awaited locks as possible, and some of the
// held locks, in turn.
func (w *watch) next(held bool) (waits, holds []*item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for name, x := range w.waits {
		if now.After(x.ends) {
			delete(w.waits, name)
			continue
		}
		if len(waits) == maxPolled {
			break
		}
		waits = append(waits, newItem(name, x.ask))
	}
	if !held {
		return waits, nil
	}
	if len(w.order) == 0 {
		for name := range w.held {
			w.order = append(w.order, name)
		}
	}
	for len(w.order) > 0 && len(holds) < maxPolled {
		name := w.order[len(w.order)-1]
		w.order = w.order[:len(w.order)-1]
		if x := w.held[name]; x != nil && now.After(x.ends) {
			delete(w.held, name)
		} else if x != nil {
			holds = append(holds, newItem(name, x.ask))
		}
	}
	return waits, holds
}

// tell sends a hint, unless an equal one was sent a moment ago. A hint is lost if the channel is
// full.
func (w *watch) tell(in map[string]*watched, it *item, kind cache.HintKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := in[it.name]
	if x == nil || x.ask.token != it.ask.token || time.Since(x.told) < hintPause {
		return
	}
	x.told = time.Now()
	w.hints.Send(upstream.Hint{Kind: kind, Key: x.key})
}

// pollAll polls the locks and semaphores until ctx ends. It sleeps while there are none.
func (s *Store) pollAll(ctx context.Context) {
	w := &s.watch
	var heldAt time.Time
	pause := s.cfg.Poll
	for {
		held := time.Since(heldAt) >= heldPause
		waits, holds := w.next(held)
		sems := w.nextSems(held)
		if held {
			heldAt = time.Now()
		}
		switch {
		case len(waits)+len(holds)+len(sems) > 0:
			if pause = s.cfg.Poll; !s.poll(ctx, waits, holds, sems) {
				pause = pollRetry
			}
		case held:
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			}
		}
		if len(waits) == 0 && !slices.ContainsFunc(sems, func(l semPoll) bool { return l.most > 0 }) {
			pause = max(pause, heldPause)
		}
		if !driverkit.Sleep(ctx, driverkit.Jitter(pause)) {
			return
		}
	}
}

// poll reads the chosen locks and semaphores, and reports whether all could be read.
func (s *Store) poll(ctx context.Context, waits, holds []*item, sems []semPoll) bool {
	ok := len(waits)+len(holds) == 0 || s.pollLocks(ctx, waits, holds) == nil
	return (len(sems) == 0 || s.pollSems(ctx, sems) == nil) && ok
}

// pollLocks reads the rows of the locks that this store waits for, and the rows of held locks that
// have a queue.
func (s *Store) pollLocks(ctx context.Context, waits, holds []*item) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.onOneConn(ctx, func(conn *sql.Conn) error {
		var now int64
		err := s.readRows(ctx, conn, waits, "", &now)
		if err != nil {
			return err
		}
		for _, it := range waits {
			if it.row.decide(&it.ask, now).status == cache.Granted {
				s.watch.tell(s.watch.waits, it, cache.HintAvailable)
			}
		}
		if err := s.readRows(ctx, conn, holds, " AND queued>@now", &now); err != nil {
			return err
		}
		for _, it := range holds {
			if it.found && it.row.contended(it.ask.token, now) {
				s.watch.tell(s.watch.held, it, cache.HintContended)
			}
		}
		return nil
	})
}

// readRows reads the rows of items in one round trip.
func (s *Store) readRows(
	ctx context.Context, conn *sql.Conn, items []*item, and string, now *int64,
) error {
	if len(items) == 0 {
		return nil
	}
	x := exchange{store: s, items: map[string]*item{}}
	for _, it := range items {
		x.items[it.name] = it
	}
	x.text.add("name IN ")
	x.text.names(items)
	x.text.add(and)
	rows, at, err := s.queryRows(ctx, conn, x.text)
	if err != nil {
		return err
	}
	defer rows.Close()
	*now = at
	_, err = x.read(rows)
	return err
}
