package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/driverkit"
)

// maxTTL is the longest TTL of a lease.
const maxTTL = 10 * 365 * 24 * time.Hour

// item is one op of a batch.
type item struct {
	at    int // in ops and results
	op    *upstream.Op
	name  string
	token string
	kind  byte // see sql/apply.sql
}

// batch is one Apply.
type batch struct {
	store    *Store
	results  []upstream.Result
	items    []item // without results yet, by name
	began    time.Time
	waits    bool // the batch waits for locked rows
	notifies bool
	err      error // for logs: the first error, or the first that is ErrDown
}

// Apply carries out one batch in one round trip, unless the server rolls it back.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	b := &batch{store: s, results: results, began: time.Now(), notifies: true}
	b.items = make([]item, 0, len(ops))
	for i := range ops {
		op := &ops[i]
		results[i] = upstream.Result{Left: -1}
		if err := s.valid(op); err != nil {
			b.end(&item{at: i}, cache.Refused, err)
			continue
		}
		b.items = append(b.items, item{i, op, s.cfg.Prefix + op.Key, s.token(op.Token), kindOf(op)})
	}
	slices.SortFunc(b.items, func(a, c item) int { return strings.Compare(a.name, c.name) })
	b.waits = !s.anyStuck(b.items)
	if len(b.items) > 0 {
		b.carry(ctx)
	}
	return b.err
}

// token returns the text of a token: the instance, a dot and 13 digits of base 36. The texts of an
// instance have the order of the numbers.
func (s *Store) token(n uint64) string {
	digits := strconv.FormatUint(n, 36)
	return s.instance + "." + "0000000000000"[:13-len(digits)] + digits
}

func kindOf(op *upstream.Op) byte {
	switch {
	case op.Kind == cache.OpJoin && op.ShortLived:
		return 'k'
	case op.Kind == cache.OpRenew && op.Rebase:
		return 'b'
	}
	return [...]byte{cache.OpTry: 't', cache.OpJoin: 'j', cache.OpWithdraw: 'f', cache.OpRelease: 'f',
		cache.OpRenew: 'n', cache.OpDowngrade: 'd', cache.OpPeek: 'p'}[op.Kind]
}

// carry sends the items until each has its result.
func (b *batch) carry(ctx context.Context) {
	s := b.store
	c, err := s.take(ctx)
	if err != nil {
		b.endAll(cache.Refused, s.reason(ErrNothingSent, err))
		return
	}
	defer func() {
		if c != nil {
			s.give(c)
		}
	}()
	for turn := 0; len(b.items) > 0; turn++ {
		if err := pause(ctx, turn); err != nil {
			b.endAll(cache.Refused, s.reason(ErrRefused, err))
			return
		}
		rows, err := b.run(ctx, c)
		switch {
		case err == nil:
			b.read(rows)
		case pgconn.SafeToRetry(err):
			if turn == 0 { // the connection was found broken before anything was sent
				s.give(c)
				c, err = s.take(ctx)
			}
			if err != nil {
				b.endAll(cache.Refused, s.reason(ErrNothingSent, err))
				return
			}
		case !rolledBack(err):
			s.pool.dropIdle()
			b.endAll(cache.Unknown, s.reason(ErrNoAnswer, err))
			return
		case slices.Contains(repeatable, code(err)):
		case code(err) == codeLocked && b.waits:
			b.waits = false
		case code(err) == codeLimit && b.notifies:
			b.notifies = false // hints may be lost, but locks must work
		default:
			c.close() // the next connection is checked, and may lead to another server
			b.endAll(cache.Refused, s.reason(ErrRefused, err))
			return
		}
	}
}

// pause waits before a turn. The wait grows with the number of turns.
func pause(ctx context.Context, turn int) error {
	if err := ctx.Err(); err != nil {
		if turn == 0 {
			return err
		}
		return errTurns
	}
	if turn < 2 {
		return nil
	}
	d := min(time.Duration(turn)*time.Millisecond, 20*time.Millisecond)
	if !driverkit.Sleep(ctx, driverkit.Jitter(d)) {
		return errTurns
	}
	return nil
}

// run sends the items and returns the rows of the answer. The answer counts only once the server is
// ready for the next statement, because the server sends rows before it commits.
func (b *batch) run(ctx context.Context, c *conn) ([][][]byte, error) {
	s := b.store
	// The floor is read after the connection is taken, because a failover can lead to a new
	// connection, which raises the floor.
	floor := s.fences.Floor()
	var list [6][]byte
	for i := range list {
		list[i] = append(list[i], '{')
	}
	for i := range b.items {
		it := &b.items[i]
		if i > 0 {
			for j := range list {
				list[j] = append(list[j], ',')
			}
		}
		mode := byte('x')
		if it.op.Mode == cache.Shared {
			mode = 's'
		}
		list[0] = appendQuoted(list[0], it.name)
		list[1] = append(list[1], it.kind)
		list[2] = append(list[2], mode)
		list[3] = append(list[3], it.token...)
		list[4] = strconv.AppendInt(list[4], micros(it.op.TTL), 10)
		list[5] = strconv.AppendUint(list[5], max(it.op.Floor, floor), 10)
	}
	params := make([][]byte, 0, 9)
	for i := range list {
		params = append(params, append(list[i], '}'))
	}
	params = append(params, strconv.AppendInt(nil, micros(s.cfg.WaiterLease), 10),
		strconv.AppendBool(nil, b.waits), strconv.AppendBool(nil, b.notifies))
	c.warned = false
	r := c.pg.ExecPrepared(ctx, "apply", params, nil, nil).Read()
	switch {
	case r.Err != nil:
		return nil, r.Err
	case c.warned:
		return nil, errLocal
	case len(r.Rows) != len(b.items):
		return nil, errAnswer
	}
	return r.Rows, nil
}

// appendQuoted appends an element of an array.
func appendQuoted(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}

// micros returns d in µs, rounded up, because the store must not end a lease before the daemon
// does.
func micros(d time.Duration) int64 {
	return max(0, int64((d+time.Microsecond-1)/time.Microsecond))
}

func parseInt(b []byte) int64 { n, _ := strconv.ParseInt(string(b), 10, 64); return n }

// read gives the items their results. Items whose rows are locked stay in the batch.
func (b *batch) read(rows [][][]byte) {
	s := b.store
	s.fences.SawClock(parseInt(rows[0][5]))
	rest := b.items[:0]
	for i := range b.items {
		it, row := &b.items[i], rows[i]
		r := &b.results[it.at]
		r.Contended = string(row[1]) == "t"
		switch status := row[0]; status[0] {
		case 'g':
			r.Status, r.Base = cache.Granted, uint64(parseInt(row[2]))
		case 'q':
			r.Status = cache.Queued
		case 'b':
			r.Status = cache.Busy
			if string(row[4]) == "s" {
				r.Mode = cache.Shared
			}
		case 'd':
			r.Status, r.Base = cache.Done, uint64(parseInt(row[2]))
		case 'n':
			if r.Status = cache.NotHeld; it.op.Kind == cache.OpWithdraw {
				r.Status = cache.Done
			}
		case 'u':
			b.end(it, cache.Refused, s.reason(ErrRefused, errUsed))
		case 'f':
			b.end(it, cache.Refused, s.reason(ErrRefused, errFull))
		case 'l':
			if !b.endLocked(it) {
				rest = append(rest, *it)
			}
			continue
		default:
			b.end(it, cache.Unknown, s.reason(ErrNoAnswer, errAnswer))
		}
		if left := parseInt(row[3]); left > 0 && isHeld(r.Status) {
			r.Left = left * int64(time.Microsecond)
		}
		s.fences.SawBase(r.Base)
	}
	b.items = rest
}

// isHeld reports whether st means that another host holds the lock.
func isHeld(st cache.Status) bool { return st == cache.Busy || st == cache.Queued }

// endLocked ends an item whose row is locked, if it has been locked for too long already.
func (b *batch) endLocked(it *item) bool {
	s := b.store
	if !s.stuck.Has(it.name) && time.Since(b.began) <= s.cfg.lockWait() {
		return false
	}
	s.stuck.Put(it.name)
	b.end(it, cache.Refused, s.reason(ErrRefused, errLocked))
	return true
}

func (b *batch) end(it *item, st cache.Status, err error) {
	b.results[it.at] = upstream.Result{Status: st, Left: -1, Err: err}
	if b.err == nil || errors.Is(err, upstream.ErrDown) && !errors.Is(b.err, upstream.ErrDown) {
		b.err = err
	}
}

func (b *batch) endAll(st cache.Status, err error) {
	for i := range b.items {
		b.end(&b.items[i], st, err)
	}
	b.items = nil
}

// anyStuck reports whether the row of any of items was found locked not long ago.
func (s *Store) anyStuck(items []item) bool {
	return slices.ContainsFunc(items, func(it item) bool { return s.stuck.Has(it.name) })
}

// valid returns the reason why an op cannot be carried out, or nil.
func (s *Store) valid(op *upstream.Op) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
	}
	if err := cmp.Or(driverkit.CheckOp(op), driverkit.CheckFloor(op)); err != nil {
		return refuse("%w", err)
	}
	switch {
	case op.Mode != cache.Exclusive && op.Mode != cache.Shared:
		return refuse("there are no semaphores in this store")
	case len(op.Key) > maxKey || op.Key == "":
		return refuse("a key of %d bytes is not one of 1 to %d", len(op.Key), maxKey)
	case !validText(op.Key):
		return refuse("the key is not UTF-8, or has control characters")
	case op.TTL < 0 || op.TTL > maxTTL:
		return refuse("a TTL of %v is longer than %v", op.TTL, maxTTL)
	}
	return nil
}
