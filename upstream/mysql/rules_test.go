package mysql

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/storetest"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

const hour = int64(3600e6)

// scene makes rows of all kinds, with present and ended entries of three hosts, of which one is
// ours.
type scene struct {
	rnd       *rand.Rand
	now       int64
	instances [3]string
}

func (s *scene) lease() entry {
	ends := s.now + hour
	if s.rnd.IntN(2) == 0 {
		ends = s.now - hour
	}
	return entry{cache.Mode(s.rnd.IntN(2)), string(appendToken(nil, s.instances[s.rnd.IntN(3)],
		uint64(5+s.rnd.IntN(3)))), ends}
}

func (s *scene) entries(most int) (gs []entry) {
	for range s.rnd.IntN(most) {
		if g := s.lease(); find(gs, g.token) < 0 {
			gs = append(gs, g)
		}
	}
	return gs
}

func (s *scene) row() row {
	r := row{version: int64(s.rnd.IntN(1000)), last: strings.Repeat("-", lastLen),
		fence: s.now + hour - int64(s.rnd.IntN(2))*2*hour}
	switch s.rnd.IntN(4) {
	case 0:
		g := s.lease()
		r.owner, r.ends = g.token, g.ends
	case 1, 2:
		r.readers = s.entries(9)
		for i := range r.readers {
			r.readers[i].mode = cache.Shared
		}
		if r.ends = latest(r.readers); len(r.readers) > 0 && s.rnd.IntN(4) == 0 {
			r.ends = s.now + hour // as after a release
		}
	}
	if s.rnd.IntN(2) == 0 {
		r.queue = slices.DeleteFunc(s.entries(9), func(g entry) bool { return r.has(g.token) })
		r.queued = latest(r.queue)
	}
	return r
}

// TestServerAndRulesAgree compares the rules in SQL, which the server applies to plain requests,
// with the rules in Go. On random rows, both must give the same result and leave the same row.
func TestServerAndRulesAgree(t *testing.T) {
	t.Parallel()
	t.Run("returning", func(t *testing.T) { agreeing(t) })
	t.Run("read besides", func(t *testing.T) { agreeing(t, WithoutReturning) })
}

func agreeing(t *testing.T, set ...func(*Config)) {
	srv := testserver.StartMariaDB(t, "--innodb-flush-log-at-trx-commit=0")
	cfg, err := Parse(srv.URL() + "?timeout=30s&waiter_lease=1m")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), storetest.With(cfg, set))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	sc := &scene{rnd: rand.New(rand.NewPCG(1, 2)), now: time.Now().UnixMicro()}
	sc.instances = [3]string{s.instance, upstream.NewInstance(), upstream.NewInstance()}
	for round := range 12 {
		ops, results := make([]upstream.Op, upstream.MaxBatch), make([]upstream.Result, upstream.MaxBatch)
		before := make([]row, len(ops))
		var insert text
		insert.add("INSERT INTO locks.locksidecar (name,version,last,fence,owner,ends,queued,readers,queue) VALUES ")
		for i := range ops {
			ops[i] = upstream.Op{Kind: []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpRelease,
				cache.OpRenew, cache.OpDowngrade, cache.OpPeek}[sc.rnd.IntN(6)],
				Mode: cache.Mode(sc.rnd.IntN(2)), Key: fmt.Sprintf("r%d.%d", round, i), Token: 6,
				TTL: time.Hour, Floor: uint64(sc.now), Rebase: sc.rnd.IntN(2) == 0}
			before[i] = sc.row()
			it := item{request: request{name: ops[i].Key}, last: before[i].last,
				decision: decision{next: before[i]}}
			if i > 0 {
				insert.add(",")
			}
			insert.add("(")
			insert.hex(it.name)
			fmt.Fprintf((*writer)(&insert), ",%d,'%s',", before[i].version, before[i].last)
			var swapped text
			swapped.swap(&it)
			_, rest, _ := strings.Cut(string(swapped), ",")
			insert.add(rest + ")")
		}
		srv.Exec(string(insert))
		if err := s.Apply(t.Context(), ops, results); err != nil {
			t.Fatal(err)
		}
		for i := range ops {
			agree(t, s, srv, sc, &ops[i], &results[i], &before[i])
		}
	}
}

type writer text

func (w *writer) Write(p []byte) (int, error) { *w = append(*w, p...); return len(p), nil }

// agree checks one result and the new row. No lease of another host may be lost before its end.
func agree(t *testing.T, s *Store, srv *testserver.MariaDB, sc *scene, op *upstream.Op,
	r *upstream.Result, before *row) {
	t.Helper()
	token := string(appendToken(nil, s.instance, op.Token))
	after := &row{}
	rows, err := srv.Admin().Query("SELECT " + columns +
		" FROM locks.locksidecar WHERE name='" + op.Key + "'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	if !rows.Next() {
		t.Fatal("the row is gone")
	}
	if _, after, err = scanRow(rows); err != nil {
		t.Fatal(err)
	}
	bad := func(what string) {
		t.Helper()
		t.Fatalf("%v %v of %s is %v (%v): %s\nbefore %+v\nafter  %+v", op.Kind, op.Mode, token, r.Status,
			r.Err, what, *before, *after)
	}
	now := time.Now().UnixMicro()
	was, is := before.live(now), after.live(now)
	if why := differs(ruled(before, s, op, r), after, now); why != "" {
		bad(why)
	}
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		a := ask{token: token, mode: op.Mode, join: op.Kind == cache.OpJoin, ttl: hour,
			lease: micros(s.cfg.WaiterLease), floor: int64(op.Floor)}
		v := before.decide(&a, now)
		if was.owner == "" && op.Mode == cache.Exclusive && before.owner == token && len(was.queue) > 0 {
			// the lease is still in the row, so the server renews it in spite of the queue.
			v.status = cache.Granted
		}
		if r.Status != v.status {
			bad(fmt.Sprintf("the rules say %v", v.status))
		}
		if r.Status == cache.Granted && (!is.holds(token) || is.ends < now+hour-60e6 ||
			r.Base <= uint64(before.fence) || r.Base != uint64(after.fence)) {
			bad("what is granted does not stand")
		}
		if r.Status == cache.Queued != (find(is.queue, token) >= 0) && !was.has(token) &&
			!was.newer(token) {
			bad("what is queued does not stand")
		}
	case cache.OpRelease:
		if (r.Status == cache.Done) != before.has(token) || after.has(token) {
			bad("it is not away")
		}
	case cache.OpRenew, cache.OpDowngrade:
		held := was.holds(token)
		if (r.Status == cache.Done) != held || held != is.holds(token) {
			bad("it is not so")
		}
		if held && op.Kind == cache.OpDowngrade && is.owner != "" {
			bad("it is not shared")
		}
		if held && op.Kind == cache.OpRenew && op.Rebase &&
			(r.Base <= uint64(before.fence) || r.Base <= op.Floor) {
			bad("its base has not risen")
		}
	case cache.OpPeek:
		if (r.Status == cache.Busy) != (was.ends > 0) {
			bad("it is not so")
		}
	}
	for _, g := range append([]entry{{token: was.owner, ends: was.ends}}, was.readers...) {
		if g.token != "" && !sameInstance(g.token, token) && !is.holds(g.token) {
			bad("the lease of " + g.token + " is gone")
		}
	}
	for _, g := range was.queue {
		if !sameInstance(g.token, token) && find(is.queue, g.token) < 0 {
			bad("the place of " + g.token + " is gone")
		}
	}
	if is.owner != "" && len(is.readers) > 0 {
		bad("there are readers beside an owner")
	}
	if after.fence < before.fence || latest(is.readers) > after.ends {
		bad("its numbers are wrong")
	}
}

// ruled returns the row after the rules in Go, for the request with the result r. The server's
// rules for plain requests must have the same effect.
func ruled(before *row, s *Store, op *upstream.Op, r *upstream.Result) *row {
	now, token := time.Now().UnixMicro(), string(appendToken(nil, s.instance, op.Token))
	next := *before
	next.readers, next.queue = slices.Clone(before.readers), slices.Clone(before.queue)
	isToken := func(g entry) bool { return g.token == token }
	switch op.Kind {
	case cache.OpTry, cache.OpJoin:
		if before.owner == token && op.Mode == cache.Exclusive {
			// a repeated request: the server renews the lease in spite of the queue, even if it had ended.
			next.ends = now + hour
			break
		}
		a := ask{token: token, mode: op.Mode, join: op.Kind == cache.OpJoin, ttl: hour,
			lease: micros(s.cfg.WaiterLease), floor: int64(op.Floor)}
		if v := next.decide(&a, now); v.change {
			return &v.next
		}
	case cache.OpRelease:
		if next.owner == token {
			next.owner, next.ends = "", 0
		}
		next.readers = slices.DeleteFunc(next.readers, isToken)
		next.queue = slices.DeleteFunc(next.queue, isToken)
	case cache.OpRenew, cache.OpDowngrade:
		if r.Status != cache.Done {
			break
		}
		next.ends = max(next.ends, now+hour)
		if i := find(next.readers, token); i >= 0 {
			next.readers[i].ends = max(next.readers[i].ends, now+hour)
		} else if op.Kind == cache.OpDowngrade {
			next.owner, next.readers = "", []entry{{cache.Shared, token, next.ends}}
		}
	}
	return &next
}

// differs describes the difference between two rows at now, or returns "". Leases and places of
// either may end a minute apart, because the two were made at different times.
func differs(want, have *row, now int64) string {
	w, h := want.live(now), have.live(now)
	near := func(a, b int64) bool { return a-b < 60e6 && b-a < 60e6 }
	same := func(a, b entry) bool { return a.mode == b.mode && a.token == b.token && near(a.ends, b.ends) }
	byToken := func(a, b entry) int { return strings.Compare(a.token, b.token) }
	slices.SortFunc(w.readers, byToken)
	slices.SortFunc(h.readers, byToken)
	switch {
	case w.owner != h.owner || w.owner != "" && !near(w.ends, h.ends):
		return fmt.Sprintf("by the rules in Go its owner is %q until %d", w.owner, w.ends)
	case !slices.EqualFunc(w.readers, h.readers, same):
		return fmt.Sprintf("by the rules in Go its readers are %v", w.readers)
	case !slices.EqualFunc(w.queue, h.queue, same):
		return fmt.Sprintf("by the rules in Go its queue is %v", w.queue)
	}
	return ""
}

func FuzzRowsReadAsWritten(f *testing.F) {
	f.Add([]byte(""), []byte(""))
	f.Add([]byte(strings.Repeat("a", readerLen)), []byte("x"+strings.Repeat("a", readerLen)))
	g := entry{cache.Shared, string(appendToken(nil, upstream.NewInstance(), 1<<63)), hour}
	f.Add(formatReaders([]entry{g, g}), formatQueue([]entry{g, {cache.Exclusive, g.token, 1}}))
	f.Fuzz(func(t *testing.T, readers, queue []byte) {
		if gs, err := parseReaders(readers); err == nil && string(formatReaders(gs)) != string(readers) {
			t.Errorf("%q reads as %v", readers, gs)
		}
		if gs, err := parseQueue(queue); err == nil && string(formatQueue(gs)) != string(queue) {
			t.Errorf("%q reads as %v", queue, gs)
		}
	})
}
