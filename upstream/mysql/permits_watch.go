package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// perFront is the most places of queues that one look reads.
const perFront = 4096

// watchedSem is one semaphore that is looked at. Its maps are by token.
type watchedSem struct {
	key   string
	waits map[string]*watchedPlace // guarded by watch.mu, as are
	held  map[string]time.Time     // when it is not looked at any more, and
	told  time.Time                // when its permits were told last that they are wanted
	queue bool                     // somebody queued when it was seen last
}

// watchedPlace is a place in the queue of a semaphore.
type watchedPlace struct {
	token uint64
	limit int64
	told  time.Time
	ends  time.Time
}

// semLook is one semaphore in a look.
type semLook struct {
	name  string
	most  int64 // the largest limit of those that wait, 0 when none does
	wants bool  // permits are held: they may be wanted
}

// notePermits follows the results of a batch.
func (s *Store) notePermits(items []*permit, results []upstream.Result) {
	w := &s.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	idle := w.idle()
	for _, it := range items {
		switch results[it.at].Status {
		case cache.Granted:
			w.dropPermit(it)
			w.sem(it).held[it.token] = time.Now().Add(it.op.TTL)
		case cache.Queued:
			w.waitPermit(it, 2*s.cfg.WaiterLease)
		case cache.Done:
			switch it.stage {
			case stageRenew, stageRebase:
				w.sem(it).held[it.token] = time.Now().Add(it.op.TTL)
			case stageRelease:
				w.dropPermit(it)
			}
		case cache.Busy, cache.NotHeld:
			w.dropPermit(it)
		}
	}
	for _, it := range items {
		if x := w.sems[it.name]; x != nil {
			x.queue = it.sem.queue
		}
	}
	if idle && !w.idle() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// idle says whether there is nothing to look at.
func (w *watch) idle() bool { return len(w.waits)+len(w.held)+len(w.sems) == 0 }

// queues says whether somebody queued for one of the items' semaphores when they
// were seen last.
func (w *watch) queues(items []*permit) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(items, func(it *permit) bool {
		x := w.sems[it.name]
		return x != nil && x.queue
	})
}

func (w *watch) sem(it *permit) *watchedSem {
	x := w.sems[it.name]
	if x == nil {
		x = &watchedSem{key: it.op.Key, waits: map[string]*watchedPlace{}, held: map[string]time.Time{}}
		w.sems[it.name] = x
	}
	return x
}

func (w *watch) waitPermit(it *permit, more time.Duration) {
	x := w.sem(it)
	p := x.waits[it.token]
	if p == nil {
		p = &watchedPlace{token: it.op.Token}
		x.waits[it.token] = p
	}
	p.limit, p.ends = int64(it.op.Limit), time.Now().Add(more)
}

func (w *watch) dropPermit(it *permit) {
	if x := w.sems[it.name]; x != nil {
		delete(x.waits, it.token)
		delete(x.held, it.token)
		if len(x.waits)+len(x.held) == 0 {
			delete(w.sems, it.name)
		}
	}
}

// nextSems chooses which semaphores to look at now: those that are waited for and,
// if held, those of which permits are held.
func (w *watch) nextSems(held bool) (looks []semLook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for name, x := range w.sems { // whatever order: all have their turn
		l := semLook{name: name}
		for t, p := range x.waits {
			if now.After(p.ends) {
				delete(x.waits, t)
			} else {
				l.most = max(l.most, p.limit)
			}
		}
		if held {
			for t, ends := range x.held {
				if now.After(ends) {
					delete(x.held, t)
				}
			}
			l.wants = len(x.held) > 0
		}
		switch {
		case len(x.waits)+len(x.held) == 0:
			delete(w.sems, name)
		case l.most > 0 || l.wants:
			looks = append(looks, l)
		}
		if len(looks) == perLook {
			break
		}
	}
	return looks
}

// semState is what a look has found.
type semState struct {
	held      int64    // permits
	contended bool     // by another host
	front     []string // the tokens that queue, the first first, as far as there are permits free
}

// tellPermits passes on what a look has found, unless it was told a moment ago.
func (w *watch) tellPermits(found map[string]*semState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for name, st := range found {
		x := w.sems[name]
		if x == nil {
			continue
		}
		for before, token := range st.front {
			if p := x.waits[token]; p != nil && st.held+int64(before) < p.limit && now.Sub(p.told) >= tellPause {
				p.told = now
				w.hint(upstream.Hint{Kind: cache.HintAvailable, Mode: cache.Permit, Key: x.key, Token: p.token})
			}
		}
		if st.contended && len(x.held) > 0 && now.Sub(x.told) >= tellPause {
			x.told = now
			w.hint(upstream.Hint{Kind: cache.HintContended, Mode: cache.Permit, Key: x.key})
		}
	}
}

// lookAtSems reads the semaphores in one round trip.
func (s *Store) lookAtSems(ctx context.Context, looks []semLook) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	found := map[string]*semState{}
	err := s.aside(ctx, func(conn *sql.Conn) error { return s.readSems(ctx, conn, looks, found) })
	if err == nil {
		s.watch.tellPermits(found)
	}
	return err
}

func (s *Store) readSems(ctx context.Context, conn *sql.Conn, looks []semLook, found map[string]*semState) error {
	text, fronts := s.lookText(looks)
	rows, err := conn.QueryContext(ctx, text)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var st semState
		if err := rows.Scan(&name, &st.held, &st.contended); err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		found[name] = &st
	}
	if err := rows.Err(); err != nil || !fronts {
		return err
	}
	if err := nextRows(rows); err != nil {
		return err
	}
	for rows.Next() {
		var name, token string
		if err := rows.Scan(&name, &token); err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		if st := found[name]; st != nil {
			st.front = append(st.front, token)
		}
	}
	return rows.Err()
}

// lookText asks how many permits are held and whether they are wanted and, where
// some may be free, who queues.
func (s *Store) lookText(looks []semLook) (query string, fronts bool) {
	table := s.permitsText().table
	var t text
	t.add("SET @n=" + clock + ";SELECT s.name,IF(s.ends>@n,s.held,(SELECT COUNT(*) FROM " + table +
		" q FORCE INDEX (PRIMARY) WHERE q.name=s.name AND q.place+0=0 AND q.ends>@n))," + s.permitsText().wanted +
		" FROM " + table + " s FORCE INDEX (PRIMARY) WHERE s.token='~' AND s.name IN ")
	sep := "("
	for _, l := range looks {
		t.add(sep)
		t.hex(l.name)
		sep = ","
	}
	t.add(");SELECT s.name,q.token FROM " + table + " s FORCE INDEX (PRIMARY) STRAIGHT_JOIN " + table +
		" q FORCE INDEX (queue) ON q.name=s.name WHERE s.token='~' AND s.waits>0 AND q.place>0 AND q.ends>@n AND (")
	sep = ""
	for _, l := range looks {
		if l.most == 0 {
			continue
		}
		fronts = true
		t.add(sep + "s.name=")
		t.hex(l.name)
		t.add(" AND (s.held<")
		t.num(l.most)
		t.add(" OR s.ends<=@n)")
		sep = " OR "
	}
	if !fronts {
		t.add("FALSE")
	}
	t.add(") ORDER BY q.name,q.place LIMIT " + strconv.Itoa(perFront))
	return string(t), fronts
}
