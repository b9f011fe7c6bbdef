package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// item is one op about a lock while it is carried out.
type item struct {
	request
	kind byte
	last string // the value of the column last once this request is applied
	ask  ask

	had      bool // of reqFree, or if current: the request was applied
	found    bool // the row exists
	current  bool // the row was returned by its own write
	partial  bool // it was returned without long texts
	row      row  // as last read
	err      error
	decision decision // of decide, for reqSwap
}

// newItem returns an item for reading the row of that name.
func newItem(name string, a ask) *item { return &item{request: request{name: name}, ask: a} }

// exchange is one round trip: one packet of statements and its answers. The statements in brackets
// are left out if no item needs them:
//
//	SET @now        the time of the packet, before any row is read
//	[SELECT …]      the rows of releases and peeks, as they were before
//	[INSERT …]      the one write
//	SELECT @now …   the divider: an error before it is about the write, one after it is not
//	[SELECT …]      the rows of all others, as they are after
//
// If the write itself can return the rows that it leaves, no SELECT reads them. The server sends
// these rows while it has them locked. A client that stops reading must not keep them locked, so
// long texts are left out.
type exchange struct {
	store   *Store
	text    text
	items   map[string]*item
	before  []*item
	writes  []*item
	after   []*item
	returns bool

	now   int64 // µs of UTC: @now
	wrote bool  // the write was answered: it has happened
	proof bool  // of the error: nothing has happened
}

func (x *exchange) begin(items []*item) {
	x.text, x.before, x.writes, x.after = x.text[:0], x.before[:0], x.writes[:0], x.after[:0]
	x.now, x.wrote, x.proof = 0, false, true
	clear(x.items)
	x.returns = x.store.returning.Load()
	for _, it := range items {
		x.items[it.name] = it
		write := it.kind != reqPeek && !it.partial
		if write {
			x.writes = append(x.writes, it)
		}
		it.current = write && x.returns
		switch {
		case it.current:
		case it.kind == reqPeek || it.kind == reqFree:
			x.before = append(x.before, it)
		default:
			x.after = append(x.after, it)
		}
	}
	ttl := x.text.times(x.writes)
	if len(x.before) > 0 {
		x.text.rows(x.store.cfg.Table, x.before)
		x.text.add(";")
	}
	if len(x.writes) > 0 {
		x.text.write(x.store.cfg.Table, x.writes, ttl)
		if x.returns {
			x.text.add(returning)
		}
		x.text.add(";")
	}
	x.text.add("SELECT @now," + readOnlyFlags)
	if len(x.after) > 0 {
		x.text.add(";")
		x.text.rows(x.store.cfg.Table, x.after)
	}
}

// run sends the packet and reads the answers into the items. After an error, proof reports that
// nothing has happened, and wrote that the write has.
func (x *exchange) run(ctx context.Context, conn *sql.Conn) error {
	x.proof = false
	rows, err := conn.QueryContext(ctx, string(x.text))
	if err != nil {
		x.judge(err)
		x.proof = x.proof || len(x.before) > 0 && number(err) != 0 // the first query has failed
		return err
	}
	defer rows.Close()
	if err := x.readBefore(rows); err != nil {
		return err
	}
	if err := x.readWrites(rows); err != nil {
		return err
	}
	x.wrote = true
	if x.now, err = readState(rows); err != nil {
		return err
	}
	x.store.fences.SawClock(x.now)
	if len(x.after) == 0 {
		return rows.Close()
	}
	if err := nextRows(rows); err != nil {
		return err
	}
	_, err = x.read(rows)
	return err
}

// readBefore reads the rows as they were before the write.
func (x *exchange) readBefore(rows *sql.Rows) error {
	if len(x.before) == 0 {
		return nil
	}
	if _, err := x.read(rows); err != nil {
		return err
	}
	for _, it := range x.before {
		it.had = it.found && it.row.has(it.ask.token)
	}
	err := nextRows(rows)
	if err != nil {
		x.judge(err)
	}
	return err
}

// readWrites reads the rows that the write returns, if it does.
func (x *exchange) readWrites(rows *sql.Rows) error {
	if len(x.writes) == 0 || !x.returns {
		return nil
	}
	n, err := x.read(rows)
	if err != nil {
		x.judge(err)
		return err
	}
	x.wrote = true
	if n != len(x.writes) {
		return errAnswer
	}
	for _, it := range x.writes {
		// A row without a fence was not made by a grant.
		it.had = it.row.last == it.last && it.row.fence != 0
	}
	return nextRows(rows)
}

// readState reads the time of a packet, and returns errReadOnly if the server is read-only.
func readState(rows *sql.Rows) (now int64, err error) {
	var flags [2]string
	if !rows.Next() {
		return 0, errors.Join(rows.Err(), errAnswer)
	}
	if err := rows.Scan(&now, &flags[0], &flags[1]); err != nil {
		return 0, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if isOn(flags[0]) || isOn(flags[1]) {
		return now, errReadOnly
	}
	return now, nil
}

// judge sets proof for an error before the divider.
func (x *exchange) judge(err error) {
	x.proof = len(x.writes) == 0 || nothingSent(err) || proves(err)
}

// read reads rows into their items, and returns the number of rows.
func (x *exchange) read(rows *sql.Rows) (n int, err error) {
	var name, last, owner, readers, queue sql.RawBytes
	for ; rows.Next(); n++ {
		var r row
		if err := rows.Scan(&name, &r.version, &last, &r.fence, &owner, &r.ends, &r.queued, &readers,
			&queue); err != nil {
			return n, fmt.Errorf("%w: %w", errAnswer, err)
		}
		it := x.items[string(name)]
		if it == nil {
			return n, errAnswer
		}
		r.last = same(last, it.last)
		if string(owner) != nobody {
			r.owner = same(owner, it.ask.token)
		}
		it.found, it.partial = true, readers == nil || queue == nil
		r.long = queue == nil
		r.readers, it.err = parseReaders(readers)
		if it.err == nil {
			r.queue, it.err = parseQueue(queue)
		}
		it.row = r
	}
	return n, rows.Err()
}

// same returns b as a string, without an allocation if b is s.
func same(b []byte, s string) string {
	if string(b) == s {
		return s
	}
	return string(b)
}
