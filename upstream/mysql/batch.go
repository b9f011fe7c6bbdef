package mysql

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Apply carries out one batch, usually in one round trip. Ops that meet other requests take two
// more round trips for each turn. See doc.go.
func (s *Store) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	b := s.batches.Get().(*batch)
	defer s.batches.Put(b)
	b.begin(ops, results)
	defer b.sawBases()
	var wg sync.WaitGroup
	var permitErr error
	if len(b.permits) > 0 { // locks and permits do not wait for each other
		wg.Go(func() { permitErr = s.applyPermits(ctx, ops, results, b.permits) })
	}
	if len(b.items) > 0 {
		b.apply(ctx, b.items)
		s.watch.note(b.items, results)
	}
	wg.Wait()
	return worse(b.err, permitErr)
}

// sawBases records the fence bases that the server has given.
func (b *batch) sawBases() {
	last := uint64(0)
	for i := range b.results {
		last = max(last, b.results[i].Base)
	}
	if last > 0 {
		b.store.fences.SawBase(last)
	}
}

// begin makes the items, in the order in which their rows are locked.
func (b *batch) begin(ops []upstream.Op, results []upstream.Result) {
	b.results, b.err = results, nil
	if cap(b.all) < len(ops) {
		b.all = make([]item, 0, max(len(ops), 16))
	}
	clear(b.all[:cap(b.all)])
	b.all, b.items, b.permits = b.all[:0], b.items[:0], b.permits[:0]
	for i := range ops {
		results[i] = upstream.Result{Left: -1}
		if err := b.store.valid(&ops[i]); err != nil {
			b.end(&request{at: i}, cache.Refused, err)
			continue
		}
		if ops[i].Mode == cache.Permit {
			b.permits = append(b.permits, i)
			continue
		}
		b.all = append(b.all, b.item(i, &ops[i]))
		b.items = append(b.items, &b.all[len(b.all)-1])
	}
	slices.SortFunc(b.items, func(a, c *item) int { return strings.Compare(a.name, c.name) })
}

func (b *batch) item(i int, op *upstream.Op) item {
	s := b.store
	kind := kindOf(op)
	it := item{request: request{at: i, op: op, name: s.cfg.Prefix + op.Key, reads: kind == reqPeek},
		kind: kind}
	b.buf = append(b.buf[:0], it.kind)
	b.buf = appendToken(b.buf, s.instance, op.Token)
	b.buf = append(b.buf, '.')
	b.buf = appendPadded(b.buf, s.requests.Add(1), 36, numberLen)
	it.last = string(b.buf)
	it.ask = ask{token: it.last[1 : 1+tokenLen], mode: op.Mode, join: op.Kind == cache.OpJoin,
		ttl:   micros(op.TTL),
		lease: micros(s.cfg.WaiterLease), floor: int64(op.Floor), apart: int64(i)}
	return it
}
