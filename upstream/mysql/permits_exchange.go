package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// permitExchange is one round trip about permits: one packet of statements and its answers. The
// statements in brackets are left out if no item needs them:
//
//	SET @now        the time of the packet
//	[SELECT …]      the rows of releases, as they were before
//	[START …        one transaction: it locks the semaphores' rows and applies the
//	                requests (permits_sql.go)
//	SELECT 1        the divider: after an error before it there was no COMMIT
//	COMMIT]
//	SELECT @now …   whether the server is read-only
//	[SELECT …]      the rows of all others, as they are after
//	SELECT …        the semaphores
//
// The server has the whole transaction before it begins. So no row is locked during network I/O,
// unless a statement fails. Then rollBack ends the transaction.
type permitExchange struct {
	store   *Store
	text    text
	items   []*permit
	before  []*permit
	after   []*permit
	writes  []*permit
	peeks   []*permit
	now     int64 // µs of UTC: @now
	asked   bool  // the packet has asked whether permits are contended
	divided bool  // COMMIT may have been carried out
}

func (x *permitExchange) begin(items []*permit) {
	x.text, x.before, x.after, x.writes, x.peeks = x.text[:0], x.before[:0], x.after[:0],
		x.writes[:0], x.peeks[:0]
	x.items, x.now, x.divided = items, 0, false
	for _, it := range items {
		it.had, it.found, it.sem = false, false, semRow{}
		switch it.stage {
		case stagePeek:
			x.peeks = append(x.peeks, it)
			continue
		case stageRelease:
			x.before = append(x.before, it)
		default:
			x.after = append(x.after, it)
		}
		x.writes = append(x.writes, it)
	}
	t, sql := &x.text, x.store.permitsText()
	t.add("SET @now=" + clock + ",@waiter_lease=").num(micros(x.store.cfg.WaiterLease)).add(";")
	if len(x.before) > 0 {
		t.permitRows(sql, x.before)
		t.add(";")
	}
	if len(x.writes) > 0 {
		t.add(sql.begin)
		t.lockSems(sql, x.writes)
		semaphores(x.writes, func(same []*permit) { t.changeSem(sql, same) })
		t.add(sql.end + "SELECT 1;COMMIT AND NO CHAIN NO RELEASE;")
	}
	t.add("SELECT @now," + readOnlyFlags + ";")
	if len(x.after) > 0 {
		t.permitRows(sql, x.after)
		t.add(";")
	}
	contended := "0"
	if x.asked = x.store.watch.queues(items); x.asked {
		contended = sql.contended
	}
	t.sems(sql, items, x.peeks, contended)
}

// run sends the packet and reads the answers into the items. After an error, divided reports
// whether the transaction may have been committed.
func (x *permitExchange) run(ctx context.Context, conn *sql.Conn) error {
	rows, err := conn.QueryContext(ctx, string(x.text))
	if err != nil {
		return err
	}
	defer rows.Close()
	if len(x.before) > 0 {
		err := readPermits(rows, x.before, func(it *permit, _ permitRow) { it.had = true })
		if err != nil {
			return err
		}
		if err := nextRows(rows); err != nil {
			return err
		}
	}
	if len(x.writes) > 0 {
		x.divided = true
		if !rows.Next() {
			return errors.Join(rows.Err(), errAnswer)
		}
		if err := nextRows(rows); err != nil {
			return err
		}
	}
	if x.now, err = readState(rows); err != nil {
		return err
	}
	if err := nextRows(rows); err != nil {
		return err
	}
	if len(x.after) > 0 {
		err := readPermits(rows, x.after, func(it *permit, r permitRow) { it.found, it.row = true, r })
		if err != nil {
			return err
		}
		if err := nextRows(rows); err != nil {
			return err
		}
	}
	return x.readSems(rows)
}

func (x *permitExchange) readSems(rows *sql.Rows) error {
	sems := map[string]semRow{}
	for rows.Next() {
		var name string
		var r semRow
		if err := rows.Scan(&name, &r.fence, &r.queue, &r.contended, &r.ends); err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		sems[name] = r
	}
	for _, it := range x.items {
		if r, ok := sems[it.name]; ok {
			it.sem = r
		}
	}
	return rows.Err()
}

// ask finds out whether permits are contended. It follows a packet that has found a queue but did
// not ask, because no token was queued before. Its failure is harmless: the watch finds contention
// too.
func (x *permitExchange) ask(ctx context.Context, conn *sql.Conn) {
	if x.asked {
		return
	}
	var held []*permit
	for _, it := range x.after {
		if it.sem.queue && it.found && it.row.place == 0 {
			held = append(held, it)
		}
	}
	if len(held) == 0 {
		return
	}
	t, sql := x.text[:0], x.store.permitsText()
	t.add("SET @now=" + clock + ";")
	t.sems(sql, held, nil, sql.contended)
	rows, err := conn.QueryContext(ctx, string(t))
	if err == nil {
		err = x.readSems(rows)
		_ = rows.Close()
	}
	if err != nil {
		x.rollBack(conn, err)
	}
}

// readPermits calls do for each row of items.
func readPermits(rows *sql.Rows, items []*permit, do func(it *permit, r permitRow)) error {
	type id struct{ name, token string }
	of := make(map[id][]*permit, len(items))
	for _, it := range items {
		at := id{it.name, it.token}
		of[at] = append(of[at], it)
	}
	for rows.Next() {
		var at id
		var r permitRow
		if err := rows.Scan(&at.name, &at.token, &r.place, &r.fence, &r.lasts); err != nil {
			return fmt.Errorf("%w: %w", errAnswer, err)
		}
		for _, it := range of[at] {
			do(it, r)
		}
	}
	return rows.Err()
}

// rollBack ends the transaction that is open after err. The pool must never get a connection with
// an open transaction.
func (x *permitExchange) rollBack(conn *sql.Conn, err error) {
	if number(err) == 0 {
		discard(conn)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(x.store.cfg.Timeout, time.Second))
	defer cancel()
	if _, err := conn.ExecContext(ctx, "ROLLBACK AND NO CHAIN NO RELEASE"); err != nil {
		discard(conn)
	}
}
