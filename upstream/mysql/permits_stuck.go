package mysql

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/locksidecar/locksidecar/cache"
)

var errSemLocked = fmt.Errorf("somebody keeps the semaphore's rows locked in a transaction at the server")

// unstick ends those ops whose semaphores were locked not long ago and still are. It
// says whether there were any.
func (b *permits) unstick(ctx context.Context, conn *sql.Conn) bool {
	var some []*permit
	for _, it := range b.todo {
		if it.stage != stagePeek && b.store.semsStuck.has(it.name) {
			some = append(some, it)
		}
	}
	return len(some) > 0 && b.endLocked(ctx, conn, some, errSemLocked) > 0
}

// stick follows a transaction that waited too long for a row, err, as batch's does.
func (b *permits) stick(ctx context.Context, conn *sql.Conn, err error) {
	b.endLocked(ctx, conn, b.x.writes, fmt.Errorf("%w: %w", errSemLocked, err))
}

func (b *permits) endLocked(ctx context.Context, conn *sql.Conn, items []*permit, err error) (ended int) {
	locked, lerr := b.locked(ctx, conn, items)
	if lerr != nil {
		return 0
	}
	for _, it := range items {
		if !locked[it.name] {
			continue
		}
		b.store.semsStuck.put(it.name)
		if it.dirty {
			b.end(it, cache.Unknown, fmt.Errorf("%w at %s: %w", ErrNoAnswer, b.store.cfg.Addr(), err))
		} else {
			b.end(it, cache.Refused, fmt.Errorf("%w at %s: %w", ErrRefused, b.store.cfg.Addr(), err))
		}
		ended++
	}
	return ended
}

// locked finds the semaphores of items with rows locked at this moment, their own or
// the items': those that are there, and that a locking read that skips locked rows
// does not see.
func (b *permits) locked(ctx context.Context, conn *sql.Conn, items []*permit) (map[string]bool, error) {
	var t text
	from := "SELECT name,token FROM " + b.store.permitsText().table + " FORCE INDEX (PRIMARY) WHERE "
	for _, how := range []string{";", " FOR UPDATE SKIP LOCKED"} {
		t.add(from)
		sep := ""
		semaphores(items, func(same []*permit) {
			t.add(sep + "name=")
			t.hex(same[0].name)
			t.add(" AND (token='~' OR token IN ")
			t.tokens(same)
			t.add(")")
			sep = " OR "
		})
		t.add(how)
	}
	rows, err := conn.QueryContext(ctx, string(t))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	type id struct{ name, token string }
	unseen := map[id]bool{}
	for there := true; ; there = false {
		var at id
		for rows.Next() {
			if err := rows.Scan(&at.name, &at.token); err != nil {
				return nil, err
			}
			if there {
				unseen[at] = true
			} else {
				delete(unseen, at)
			}
		}
		if !there {
			break
		}
		if err := nextRows(rows); err != nil {
			return nil, err
		}
	}
	locked := map[string]bool{}
	for at := range unseen {
		locked[at.name] = true
	}
	return locked, rows.Err()
}
