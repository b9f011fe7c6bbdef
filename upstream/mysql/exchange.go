package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/upstream"
)

// item is one op on its way.
type item struct {
	at    int // its index in the batch
	op    *upstream.Op
	name  string
	kind  byte
	last  string // the request as the row has it once it has had its way
	ask   ask
	over  bool // it has its result
	clean bool // nothing of its token stands, as far as is proved

	had     bool // reqFree, or sure: the request has had its way
	found   bool // the row was there
	sure    bool // the row is as its write has left it
	partial bool // … without long texts
	row     row  // as it was read last
	err     error
	verdict verdict // of decide, for reqSwap
}

// exchange is one round trip: one packet of statements and what is answered. Its
// statements are, those in brackets if there is something for them to do:
//
//	SET @n          the time of it all: before anything is looked at
//	[SELECT …]      the rows of releases and peeks, as they were before
//	[INSERT …]      the one write
//	SELECT @n …     it divides: an error before it is the write's, and one behind it is not
//	[SELECT …]      the rows of all others, as they are after
//
// Where the write itself can return the rows that it leaves, they are not read
// besides, neither before nor after. It sends them while it has them locked, so they
// are without long texts: a client that reads no more must not keep them locked.
type exchange struct {
	store   *Store
	text    text
	items   map[string]*item
	before  []*item
	writes  []*item
	after   []*item
	returns bool

	now   int64 // µs of UTC: @n
	wrote bool  // the write was answered: it has happened
	proof bool  // of an error: nothing has happened
}

func (x *exchange) begin(items []*item) {
	x.text, x.before, x.writes, x.after = x.text[:0], x.before[:0], x.writes[:0], x.after[:0]
	x.now, x.wrote, x.proof = 0, false, true
	clear(x.items)
	x.returns = x.store.returning.Load()
	for _, it := range items {
		x.items[it.name] = it
		write := it.kind != reqLook && !it.partial
		if write {
			x.writes = append(x.writes, it)
		}
		it.sure = write && x.returns
		switch {
		case it.sure:
		case it.kind == reqLook || it.kind == reqFree:
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
	x.text.add("SELECT @n," + readOnlyFlags)
	if len(x.after) > 0 {
		x.text.add(";")
		x.text.rows(x.store.cfg.Table, x.after)
	}
}

// readOnlyFlags are the variables of which each says that a server must not be
// written to. Who may write all the same is not kept from it by the server.
const readOnlyFlags = "@@global.read_only,@@global.innodb_read_only"

func isOn(flag string) bool { return flag != "0" && flag != "OFF" && flag != "" }

// run sends the packet and reads the answers into the items. When it fails, proof
// says whether nothing has happened, and wrote whether the write has.
func (x *exchange) run(ctx context.Context, conn *sql.Conn) error {
	x.proof = false
	rows, err := conn.QueryContext(ctx, string(x.text))
	if err != nil {
		x.judge(err)
		x.proof = x.proof || len(x.before) > 0 && number(err) != 0 // it is the first query's
		return err
	}
	defer rows.Close()
	if len(x.before) > 0 {
		if _, err := x.read(rows); err != nil {
			return err
		}
		for _, it := range x.before {
			it.had = it.found && it.row.has(it.ask.token)
		}
		if err := x.next(rows); err != nil {
			x.judge(err)
			return err
		}
	}
	if len(x.writes) > 0 && x.returns {
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
			// A row that was made by anything but a grant has no fence.
			it.had = it.row.last == it.last && it.row.fence != 0
		}
		if err := x.next(rows); err != nil {
			return err
		}
	}
	x.wrote = true
	var flags [2]string
	if !rows.Next() {
		return errors.Join(rows.Err(), errAnswer)
	}
	if err := rows.Scan(&x.now, &flags[0], &flags[1]); err != nil {
		return fmt.Errorf("%w: %w", errAnswer, err)
	}
	if isOn(flags[0]) || isOn(flags[1]) {
		return errReadOnly
	}
	x.store.fences.SawClock(x.now)
	if len(x.after) == 0 {
		return rows.Close()
	}
	if err := x.next(rows); err != nil {
		return err
	}
	_, err = x.read(rows)
	return err
}

var errAnswer = errors.New("the answer makes no sense")

// next goes on to the next answer that has rows.
func (x *exchange) next(rows *sql.Rows) error {
	if rows.NextResultSet() {
		return nil
	}
	if err := rows.Err(); err != nil {
		return err
	}
	return errAnswer
}

// judge follows an error before the division.
func (x *exchange) judge(err error) {
	x.proof = len(x.writes) == 0 || unsent(err) || proves(err)
}

// read reads rows into the items that they are of, and returns how many.
func (x *exchange) read(rows *sql.Rows) (n int, err error) {
	var name, last, owner, readers, queue sql.RawBytes
	for ; rows.Next(); n++ {
		var r row
		if err := rows.Scan(&name, &r.version, &last, &r.fence, &owner, &r.ends, &r.queued, &readers, &queue); err != nil {
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

// same is b as a string, without making one when it is s.
func same(b []byte, s string) string {
	if string(b) == s {
		return s
	}
	return string(b)
}
