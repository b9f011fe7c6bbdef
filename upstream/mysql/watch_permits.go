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

// perFront limits the places of queues that one poll reads.
const perFront = 4096

// watchedSem is one polled semaphore. Its maps are by token.
type watchedSem struct {
	key   string
	waits map[string]*watchedPlace // guarded by watch.mu, as are all fields
	held  map[string]time.Time     // when polls for the permit end
	told  time.Time                // time of the last hint Contended
	queue bool                     // a token queued when it was last seen
}

// watchedPlace is a place of ours in the queue of a semaphore.
type watchedPlace struct {
	token uint64
	limit int64
	told  time.Time
	ends  time.Time
}

// semPoll is one semaphore in a poll.
type semPoll struct {
	name  string
	most  int64 // the largest limit of our waiting requests, 0 without one
	wants bool  // this store holds permits: they may be contended
}

// notePermits records the results of a batch about permits.
func (w *watch) notePermits(items []*permit, results []upstream.Result, waiterLease time.Duration) {
	follow(w, items, results, func(it *permit) {
		if results[it.at].Status == cache.Granted {
			w.dropPermit(it)
		}
		w.sem(it).held[it.token] = time.Now().Add(it.op.TTL)
	}, func(it *permit) { w.waitPermit(it, 2*waiterLease) }, w.dropPermit)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range items {
		if x := w.sems[it.name]; x != nil {
			x.queue = it.sem.queue
		}
	}
}

// idle reports whether there is nothing to poll.
func (w *watch) idle() bool { return len(w.waits)+len(w.held)+len(w.sems) == 0 }

// queues reports whether one of the semaphores of items had a queue when it was last seen.
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

// nextSems chooses the semaphores for the next poll. These are the semaphores that this store waits
// for and, if held is true, the semaphores of which it holds permits.
func (w *watch) nextSems(held bool) (polls []semPoll) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for name, x := range w.sems { // in any order, because each has its turn
		l := semPoll{name: name}
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
			polls = append(polls, l)
		}
		if len(polls) == maxPolled {
			break
		}
	}
	return polls
}

// semState is the state of a semaphore that a poll has found.
type semState struct {
	held      int64    // permits
	contended bool     // by another host
	front     []string // the first tokens in the queue, in order, as many as permits are free
}

// hintPermits sends the hints that follow from a poll, except those sent a moment ago.
func (w *watch) hintPermits(found map[string]*semState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for name, st := range found {
		x := w.sems[name]
		if x == nil {
			continue
		}
		for before, token := range st.front {
			if p := x.waits[token]; p != nil && st.held+int64(before) < p.limit &&
				now.Sub(p.told) >= hintPause {
				p.told = now
				w.hints.Send(upstream.Hint{Kind: cache.HintAvailable, Mode: cache.Permit, Key: x.key,
					Token: p.token})
			}
		}
		if st.contended && len(x.held) > 0 && now.Sub(x.told) >= hintPause {
			x.told = now
			w.hints.Send(upstream.Hint{Kind: cache.HintContended, Mode: cache.Permit, Key: x.key})
		}
	}
}

// pollSems reads the semaphores in one round trip.
func (s *Store) pollSems(ctx context.Context, polls []semPoll) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	found := map[string]*semState{}
	err := s.onOneConn(ctx, func(conn *sql.Conn) error { return s.readSems(ctx, conn, polls, found) })
	if err == nil {
		s.watch.hintPermits(found)
	}
	return err
}

func (s *Store) readSems(
	ctx context.Context, conn *sql.Conn, polls []semPoll, found map[string]*semState,
) error {
	text, fronts := s.pollText(polls)
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

// pollText asks how many permits are held, whether they are contended and, where some may be free,
// which tokens queue.
func (s *Store) pollText(polls []semPoll) (query string, fronts bool) {
	table := s.permitsText().table
	var t text
	t.add("SET @now=" + clock + ";SELECT s.name,IF(s.ends>@now,s.held,(SELECT COUNT(*) FROM " + table +
		" q FORCE INDEX (PRIMARY) WHERE q.name=s.name AND q.place+0=0 AND q.ends>@now))," +
		s.permitsText().contended +
		" FROM " + table + " s FORCE INDEX (PRIMARY) WHERE s.token='~' AND s.name IN ")
	addList(&t, polls, func(l semPoll) { t.hex(l.name) })
	t.add(";SELECT s.name,q.token FROM " + table + " s FORCE INDEX (PRIMARY) STRAIGHT_JOIN " + table +
		" q FORCE INDEX (queue) ON q.name=s.name WHERE s.token='~' AND s.waits>0 AND q.place>0 " +
		"AND q.ends>@now AND (")
	sep := ""
	for _, l := range polls {
		if l.most == 0 {
			continue
		}
		fronts = true
		t.add(sep + "s.name=").hex(l.name).add(" AND (s.held<").num(l.most).add(" OR s.ends<=@now)")
		sep = " OR "
	}
	if !fronts {
		t.add("FALSE")
	}
	t.add(") ORDER BY q.name,q.place LIMIT " + strconv.Itoa(perFront))
	return string(t), fronts
}
