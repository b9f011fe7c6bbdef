package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// stuckFor is how long it is remembered that somebody keeps a row locked.
const stuckFor = 10 * time.Second

// stuck is about rows that somebody else keeps locked in a transaction of his own
// at the server: they must not hold up the other locks of a batch, which are
// written by the same statement.
type stuck struct {
	mu    sync.Mutex
	until map[string]time.Time // guarded by mu
}

func (s *stuck) put(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.until == nil {
		s.until = map[string]time.Time{}
	}
	s.until[name] = time.Now().Add(stuckFor)
}

// has says whether name was locked not long ago.
func (s *stuck) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.until[name]
	if ok && time.Now().After(end) {
		delete(s.until, name)
		ok = false
	}
	return ok
}

// among returns those of items that were locked not long ago.
func (s *stuck) among(items []*item) (some []*item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.until) == 0 {
		return nil
	}
	now := time.Now()
	for name, end := range s.until {
		if now.After(end) {
			delete(s.until, name)
		}
	}
	for _, it := range items {
		if _, ok := s.until[it.name]; ok && it.kind != reqLook {
			some = append(some, it)
		}
	}
	return some
}

// unstick ends those ops whose rows were locked not long ago and still are. It
// says whether there were any.
func (b *batch) unstick(ctx context.Context, conn *sql.Conn) bool {
	some := b.store.stuck.among(b.todo)
	return len(some) > 0 && b.endLocked(ctx, conn, some, errLocked) > 0
}

var errLocked = fmt.Errorf("somebody keeps the lock's row locked in a transaction at the server")

// stick follows a write that waited too long for a row, err: the ops whose rows
// are locked end, and the others go on without them. When none is found, all of it
// is repeated.
func (b *batch) stick(ctx context.Context, conn *sql.Conn, err error) {
	b.endLocked(ctx, conn, b.x.writes, fmt.Errorf("%w: %w", errLocked, err))
}

func (b *batch) endLocked(ctx context.Context, conn *sql.Conn, items []*item, err error) (ended int) {
	locked, lerr := b.locked(ctx, conn, items)
	if lerr != nil {
		return 0 // a server too old to say, or none any more: the next turn shows
	}
	for _, it := range items {
		if !locked[it.name] {
			continue
		}
		b.store.stuck.put(it.name)
		if it.clean {
			b.end(it, cache.Refused, fmt.Errorf("%w at %s: %w", ErrRefused, b.store.cfg.Addr(), err))
		} else {
			b.end(it, cache.Unknown, fmt.Errorf("%w at %s: %w", ErrNoAnswer, b.store.cfg.Addr(), err))
		}
		ended++
	}
	return ended
}

// locked finds the rows of items that are locked at this moment: those that are
// there, and that a locking read that skips locked rows does not see.
func (b *batch) locked(ctx context.Context, conn *sql.Conn, items []*item) (map[string]bool, error) {
	var t text
	from := "SELECT name FROM `" + b.store.cfg.Table + "` FORCE INDEX (PRIMARY) WHERE name IN "
	t.add(from)
	t.names(items)
	t.add(";")
	t.add(from)
	t.names(items)
	t.add(" FOR UPDATE SKIP LOCKED")
	rows, err := conn.QueryContext(ctx, string(t))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	locked := map[string]bool{}
	for there := true; ; there = false {
		var name string
		for rows.Next() {
			if err := rows.Scan(&name); err != nil {
				return nil, err
			}
			if there {
				locked[name] = true
			} else {
				delete(locked, name)
			}
		}
		if !there {
			return locked, rows.Err()
		}
		if !rows.NextResultSet() {
			return nil, errAnswer
		}
	}
}
