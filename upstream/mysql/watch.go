package mysql

import (
	"context"
	"database/sql"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

const (
	hintBuffer = 1024
	// perLook is the most locks of each kind in one look.
	perLook = 256
	// heldPause is about how often held locks are looked at: whether they are wanted
	// is known from each renewal too.
	heldPause = 250 * time.Millisecond
	// tellPause is how long a hint is not repeated.
	tellPause = 500 * time.Millisecond
	// lookRetry is the pause after a look that failed.
	lookRetry = time.Second
)

// watch is the locks that this store holds or waits for, to look at them: a
// server cannot tell us when one comes free.
type watch struct {
	hints chan upstream.Hint
	wake  chan struct{} // there is something to look at

	mu    sync.Mutex
	waits map[string]*watched // by name; guarded by mu, as is all below
	held  map[string]*watched
	order []string // of held, as far as it has not had its turn
	sems  map[string]*watchedSem
}

// watched is one lock that is looked at.
type watched struct {
	ask  ask
	key  string
	told time.Time // when it was told last; guarded by watch.mu, as is
	ends time.Time // when it is not looked at any more, if nothing is heard of it
}

func (w *watch) init() {
	w.hints = make(chan upstream.Hint, hintBuffer)
	w.wake = make(chan struct{}, 1)
	w.waits, w.held, w.sems = map[string]*watched{}, map[string]*watched{}, map[string]*watchedSem{}
}

// note follows the results of a batch.
func (s *Store) note(items []*item, results []upstream.Result) {
	w := &s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.idle()
	for _, it := range items {
		switch results[it.at].Status {
		case cache.Granted:
			delete(w.waits, it.name)
			w.put(w.held, it, it.ask.ttl)
		case cache.Queued:
			w.put(w.waits, it, 2*it.ask.lease)
		case cache.Done:
			switch it.op.Kind {
			case cache.OpRenew, cache.OpDowngrade:
				w.put(w.held, it, it.ask.ttl)
			case cache.OpRelease, cache.OpWithdraw:
				w.drop(it)
			}
		case cache.Busy, cache.NotHeld:
			if it.op.Kind != cache.OpPeek {
				w.drop(it)
			}
		}
	}
	if idle && !w.idle() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// put looks at a lock for so many µs more.
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

// next chooses what to look at now: of what is waited for as much as goes, and in
// turn some of what is held.
func (w *watch) next(held bool) (waits, holds []*item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for name, x := range w.waits {
		if now.After(x.ends) {
			delete(w.waits, name)
			continue
		}
		if len(waits) == perLook {
			break
		}
		waits = append(waits, &item{name: name, ask: x.ask})
	}
	if !held {
		return waits, nil
	}
	if len(w.order) == 0 {
		for name := range w.held {
			w.order = append(w.order, name)
		}
	}
	for len(w.order) > 0 && len(holds) < perLook {
		name := w.order[len(w.order)-1]
		w.order = w.order[:len(w.order)-1]
		if x := w.held[name]; x != nil && now.After(x.ends) {
			delete(w.held, name)
		} else if x != nil {
			holds = append(holds, &item{name: name, ask: x.ask})
		}
	}
	return waits, holds
}

// tell passes a hint on, unless it was told a moment ago or nobody keeps up with
// them.
func (w *watch) tell(in map[string]*watched, it *item, kind cache.HintKind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := in[it.name]
	if x == nil || x.ask.token != it.ask.token || time.Since(x.told) < tellPause {
		return
	}
	x.told = time.Now()
	w.hint(upstream.Hint{Kind: kind, Key: x.key})
}

func (w *watch) hint(h upstream.Hint) {
	select {
	case w.hints <- h:
	default:
	}
}

// watchAll looks at the locks until ctx ends. It sleeps while there are none.
func (s *Store) watchAll(ctx context.Context) {
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
			if pause = s.cfg.Poll; !s.looks(ctx, waits, holds, sems) {
				pause = lookRetry
			}
		case held:
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			}
		}
		if len(waits) == 0 && !slices.ContainsFunc(sems, func(l semLook) bool { return l.most > 0 }) {
			pause = max(pause, heldPause)
		}
		t := time.NewTimer(jitter(pause))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// looks looks at what is there to look at, and says whether all of it could be.
func (s *Store) looks(ctx context.Context, waits, holds []*item, sems []semLook) bool {
	ok := len(waits)+len(holds) == 0 || s.lookAt(ctx, waits, holds) == nil
	return (len(sems) == 0 || s.lookAtSems(ctx, sems) == nil) && ok
}

// lookAt reads the rows of what is waited for, and of what is held those that
// somebody waits for.
func (s *Store) lookAt(ctx context.Context, waits, holds []*item) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.aside(ctx, func(conn *sql.Conn) error {
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
		if err := s.readRows(ctx, conn, holds, " AND queued>@n", &now); err != nil {
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

// readRows reads the rows of items, in one round trip.
func (s *Store) readRows(ctx context.Context, conn *sql.Conn, items []*item, and string, now *int64) error {
	if len(items) == 0 {
		return nil
	}
	x := exchange{store: s, items: map[string]*item{}}
	for _, it := range items {
		x.items[it.name] = it
	}
	x.text.add("SET @n=" + clock + ";SELECT @n;")
	x.text.rows(s.cfg.Table, items)
	x.text.add(and)
	rows, err := conn.QueryContext(ctx, string(x.text))
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return errAnswer
	}
	if err := rows.Scan(now); err != nil {
		return err
	}
	if err := x.next(rows); err != nil {
		return err
	}
	_, err = x.read(rows)
	return err
}
