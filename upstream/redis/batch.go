package redis

import (
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

var evalsha any = "evalsha"

// batch is one Apply on its way. It is reused, so that a batch costs a few
// allocations and not a few a key.
type batch struct {
	store   *Store
	names   []slotNames // by slot
	ops     []upstream.Op
	results []upstream.Result
	err     error // the first thing that went wrong, for logs
	late    bool  // some calls have to wait a little before they are sent again

	sorted []uint64 // one an op: script, slot and index
	order  []int32  // the indices, sorted
	calls  []call
	legs   []*leg // of all rounds
	buf    []byte // the text of all arguments
	args   []any  // the arguments of all calls; each points into spans
	spans  []span
	floors []floorArg
	hints  []string // for other daemons
}

// call is one script call.
type call struct {
	script int
	slot   uint16
	keys   int     // KEYS of the script
	ops    []int32 // indices of ops, in the order of the script's locks
	args   []any
	cmd    *goredis.Cmd
	node   *node // where it goes, nil when nobody serves the slot
	asking bool  // … although the slot is not quite there yet
	load   bool  // … after the scripts
	over   bool  // it has its answer, or its error
	unread bool  // … and no others have taken its place
	leg    *leg  // it went with last
}

// span is one argument: a piece of the batch's text.
type span struct {
	b        *batch
	from, to int
}

// MarshalBinary is called by go-redis as it writes the argument.
func (a *span) MarshalBinary() ([]byte, error) { return a.b.buf[a.from:a.to], nil }

// floorArg is the script argument for the smallest base that may be given: the floor plus 1.
type floorArg struct {
	fences *upstream.FenceClock
	floor  uint64 // the highest base that the ops know
	text   [20]byte
}

// MarshalBinary is called by go-redis when it writes the argument. The floor is read only then, because
// the connection may exist only after a failover, and the floor has risen meanwhile.
func (a *floorArg) MarshalBinary() ([]byte, error) {
	return strconv.AppendUint(a.text[:0], max(a.floor, a.fences.Floor())+1, 10), nil
}

func newBatch(s *Store) *batch { return &batch{store: s, names: s.names} }

func (b *batch) begin(ops []upstream.Op, results []upstream.Result) {
	b.ops, b.results, b.err = ops, results, nil
	b.late = false
	clear(b.calls)
	clear(b.legs)
	b.sorted, b.order, b.calls, b.legs = b.sorted[:0], b.order[:0], b.calls[:0], b.legs[:0]
	b.buf, b.args, b.spans, b.floors, b.hints = b.buf[:0], b.args[:0], b.spans[:0], b.floors[:0], b.hints[:0]
}

// fail gives op i its end. The first error is kept for logs.
func (b *batch) fail(i int, st cache.Status, err error) {
	b.results[i] = upstream.Result{Status: st, Left: -1, Err: err}
	if b.err == nil {
		b.err = err
	}
}

// The parts of a number in sorted.
const (
	slotShift   = 16
	scriptShift = 32
)

// take puts op i where it belongs.
func (b *batch) take(i int) {
	op := &b.ops[i]
	var slot uint16
	if b.store.cluster != nil {
		slot = slotOf(b.store.cfg.Prefix, op.Key)
	}
	b.sorted = append(b.sorted, uint64(scriptFor(op))<<scriptShift|uint64(slot)<<slotShift|uint64(i))
}

// build makes the calls: each of one script, one slot and at most perCall locks.
func (b *batch) build() {
	slices.Sort(b.sorted)
	for _, x := range b.sorted {
		b.order = append(b.order, int32(uint16(x)))
	}
	for from := 0; from < len(b.sorted); {
		to := from + 1
		for to < len(b.sorted) && to-from < perCall && b.sorted[to]>>slotShift == b.sorted[from]>>slotShift {
			to++
		}
		b.add(int(b.sorted[from]>>scriptShift), uint16(b.sorted[from]>>slotShift), b.order[from:to:to])
		from = to
	}
}

// add appends a call. The scripts' heads say what they take.
func (b *batch) add(k int, slot uint16, part []int32) {
	sc, from, names := &scripts[k], len(b.args), &b.names[slot]
	rebase := (k == scriptRenew || k == scriptPermitRenew) && slices.ContainsFunc(part, func(i int32) bool { return b.ops[i].Rebase })
	b.args = append(b.args, evalsha, sc.sha, nil) // see assemble
	if sc.fence || rebase {
		b.args = append(b.args, &names.fence)
	}
	if sc.queued {
		b.args = append(b.args, &names.queued)
	}
	for _, i := range part {
		b.key(sc, names, b.ops[i].Key)
	}
	keys := len(b.args) - from - 3
	if k != scriptPeek && k != scriptPermitPeek {
		for _, i := range part {
			b.token(b.ops[i].Token)
		}
	}
	if k == scriptPermit {
		b.permits(part)
	} else if sc.gives {
		b.tail(k, part, rebase)
	}
	b.calls = append(b.calls, call{script: k, slot: slot, keys: keys, ops: part, args: b.args[from:len(b.args):len(b.args)]})
}

// addMoving appends a call for one op that renews or releases in a slot that is on
// its way.
func (b *batch) addMoving(c *call, i int32) {
	from, op := len(b.args), &b.ops[i]
	what := "release"
	if op.Kind == cache.OpRenew {
		what = "renew"
	}
	k := scriptMoving
	if scripts[c.script].permit {
		k = scriptPermitMoving
	}
	b.args = append(b.args, evalsha, scripts[k].sha, nil)
	b.key(&scripts[k], &b.names[c.slot], op.Key)
	b.token(op.Token)
	b.args = append(b.args, what)
	b.number(millis(op.TTL))
	b.args = append(b.args, &b.names[c.slot].siblings)
	b.order = append(b.order, i)
	part := b.order[len(b.order)-1:]
	b.calls = append(b.calls, call{script: k, slot: c.slot, keys: 1, ops: part[:1:1], node: c.node, unread: true,
		args: b.args[from:len(b.args):len(b.args)]})
}

// tail appends what a script that gives leases takes behind the tokens.
func (b *batch) tail(k int, part []int32, rebase bool) {
	ttl, floor, same := millis(b.ops[part[0]].TTL), uint64(0), true
	join := b.store.cfg.WaiterLease == DefaultWaiterLease
	for _, i := range part {
		op := &b.ops[i]
		floor = max(floor, op.Floor)
		same = same && millis(op.TTL) == ttl
		join = join && op.Kind == cache.OpJoin
	}
	if same {
		b.number(ttl)
	} else {
		b.text("")
	}
	switch {
	case scripts[k].fence:
		b.floor(floor)
		if !join || !same {
			b.kinds(part)
		}
	case rebase:
		b.floor(floor)
		b.bases(part)
	}
	if !same {
		for _, i := range part {
			b.number(millis(b.ops[i].TTL))
		}
	}
}

// kinds says who would queue, and for how long. Without it all do, for
// DefaultWaiterLease.
func (b *batch) kinds(part []int32) {
	at := len(b.buf)
	b.buf = strconv.AppendInt(b.buf, millis(b.store.cfg.WaiterLease), 10)
	for _, i := range part {
		mark := byte('t')
		if b.ops[i].ShortLived {
			mark = 'b'
		} else if b.ops[i].Kind == cache.OpJoin {
			mark = 'j'
		}
		b.buf = append(b.buf, mark)
	}
	b.arg(at)
}

// bases says which renewals ask for a new base.
func (b *batch) bases(part []int32) {
	at := len(b.buf)
	for _, i := range part {
		mark := byte('-')
		if b.ops[i].Rebase {
			mark = 'b'
		}
		b.buf = append(b.buf, mark)
	}
	b.arg(at)
}

// millis rounds up: the store must not end a lease before we do.
func millis(d time.Duration) int64 {
	return max(1, int64((d+time.Millisecond-1)/time.Millisecond))
}

// key appends the name that stands for op's lock or semaphore.
func (b *batch) key(sc *script, names *slotNames, key string) {
	at := len(b.buf)
	if sc.permit {
		b.buf = append(append(b.buf, names.siblings...), permitsKind...)
	}
	b.buf = append(append(b.buf, b.store.cfg.Prefix...), key...)
	b.arg(at)
}

func (b *batch) token(n uint64) {
	at := len(b.buf)
	b.buf = append(append(b.buf, b.store.instance...), '.')
	b.buf = strconv.AppendUint(b.buf, n, 36)
	b.arg(at)
}

func (b *batch) number(n int64) {
	at := len(b.buf)
	b.buf = strconv.AppendInt(b.buf, n, 10)
	b.arg(at)
}

func (b *batch) text(s string) {
	at := len(b.buf)
	b.buf = append(b.buf, s...)
	b.arg(at)
}

// arg makes the text from at on the next argument. Spans that move when the
// slice grows stay where they were for the arguments that point at them.
func (b *batch) arg(at int) {
	b.spans = append(b.spans, span{b, at, len(b.buf)})
	b.args = append(b.args, &b.spans[len(b.spans)-1])
}

// floor appends the floor of new bases, which is at least the highest base that the ops know.
func (b *batch) floor(known uint64) {
	b.floors = append(b.floors, floorArg{fences: b.store.fences, floor: known})
	b.args = append(b.args, &b.floors[len(b.floors)-1])
}
