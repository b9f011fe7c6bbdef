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

// perCall is the maximum number of keys of one script call. A longer call would cost no less for
// each key, but would delay other clients of the server.
const perCall = 128

// batch is one Apply. It is reused, so that a batch costs a few allocations instead of a few for
// each key.
type batch struct {
	store      *Store
	names      []slotNames // by slot
	ops        []upstream.Op
	results    []upstream.Result
	err        error // the first error, for logs
	retryLater bool  // some calls are sent again after a pause

	sorted    []uint64 // for each op its script, slot and index
	order     []int32  // the indices, sorted
	calls     []call
	pipelines []*pipeline // of all rounds
	buf       []byte      // the text of all arguments
	args      []any       // the arguments of all calls; each points into spans
	spans     []span
	floors    []floorArg
	hints     []string // for other daemons
}

// call is one script call.
type call struct {
	script      int
	slot        uint16
	keys        int     // KEYS of the script
	ops         []int32 // indices of ops, in the order of the script's locks
	args        []any
	cmd         *goredis.Cmd
	node        *node     // its destination, nil if no node serves the slot
	asking      bool      // ASKING precedes it, because the slot is still moving to the node
	loadScripts bool      // SCRIPT LOAD precedes it
	done        bool      // it has its reply or its error
	current     bool      // no other calls have replaced it
	pipeline    *pipeline // in which it was last sent
}

// span is one argument: a part of the batch's text.
type span struct {
	b        *batch
	from, to int
}

// MarshalBinary is called by go-redis when it writes the argument.
func (a *span) MarshalBinary() ([]byte, error) { return a.b.buf[a.from:a.to], nil }

// floorArg is the script argument for the smallest base that may be given: the floor plus 1.
type floorArg struct {
	fences *upstream.FenceClock
	floor  uint64 // the highest base that the ops know
	text   [20]byte
}

// MarshalBinary is called by go-redis when it writes the argument. It reads the floor only then,
// because the connection may be made after a failover, which raises the floor.
func (a *floorArg) MarshalBinary() ([]byte, error) {
	return strconv.AppendUint(a.text[:0], max(a.floor, a.fences.Floor())+1, 10), nil
}

func newBatch(s *Store) *batch { return &batch{store: s, names: s.names} }

func (b *batch) begin(ops []upstream.Op, results []upstream.Result) {
	b.ops, b.results, b.err = ops, results, nil
	b.retryLater = false
	clear(b.calls)
	clear(b.pipelines)
	b.sorted, b.order, b.calls, b.pipelines = b.sorted[:0], b.order[:0], b.calls[:0], b.pipelines[:0]
	b.buf, b.args, b.spans, b.floors, b.hints = b.buf[:0], b.args[:0], b.spans[:0],
		b.floors[:0], b.hints[:0]
}

// fail sets the result of op i. The first error is kept for logs.
func (b *batch) fail(i int, st cache.Status, err error) {
	b.results[i] = upstream.Result{Status: st, Left: -1, Err: err}
	if b.err == nil {
		b.err = err
	}
}

// The positions of the parts of a number in sorted.
const (
	slotShift   = 16
	scriptShift = 32
)

// sort adds op i to sorted.
func (b *batch) sort(i int) {
	op := &b.ops[i]
	slot := b.store.slotOf(b.store.cfg.Prefix, op.Key)
	b.sorted = append(b.sorted, uint64(scriptFor(op))<<scriptShift|uint64(slot)<<slotShift|uint64(i))
}

// build makes the calls. Each has one script, one slot and at most perCall locks.
func (b *batch) build() {
	slices.Sort(b.sorted)
	for _, x := range b.sorted {
		b.order = append(b.order, int32(uint16(x)))
	}
	for from := 0; from < len(b.sorted); {
		to := from + 1
		for to < len(b.sorted) && to-from < perCall &&
			b.sorted[to]>>slotShift == b.sorted[from]>>slotShift {
			to++
		}
		b.addCall(int(b.sorted[from]>>scriptShift), uint16(b.sorted[from]>>slotShift),
			b.order[from:to:to])
		from = to
	}
}

// addCall appends a call. The heads of the scripts describe their arguments.
func (b *batch) addCall(k int, slot uint16, part []int32) {
	sc, from, names := &scripts[k], len(b.args), &b.names[slot]
	rebase := (k == scriptRenew || k == scriptPermitRenew) &&
		slices.ContainsFunc(part, func(i int32) bool { return b.ops[i].Rebase })
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
	if sc.grants {
		b.terms(k, part, rebase)
	}
	b.calls = append(b.calls, call{script: k, slot: slot, keys: keys, ops: part,
		args: b.args[from:len(b.args):len(b.args)]})
}

// addMoving appends a call for one renewal or release in a slot that is moving to another node.
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
	b.calls = append(b.calls, call{script: k, slot: c.slot, keys: 1, ops: part[:1:1],
		node: c.node, current: true,
		args: b.args[from:len(b.args):len(b.args)]})
}

// terms appends the arguments that follow the tokens of a script that grants leases: the TTLs,
// and the floor, the limits and the kinds if the script takes them.
func (b *batch) terms(k int, part []int32, rebase bool) {
	sc, permit := &scripts[k], k == scriptPermit
	sameTTL, sameLimit := b.common(part, ttlOf), true
	if sc.fence || rebase {
		b.floor(part)
	}
	if permit {
		sameLimit = b.common(part, limitOf)
	}
	switch {
	case rebase:
		b.bases(part)
	case permit, sc.fence && !(sameTTL && b.joinsByDefault(part)):
		b.kinds(part)
	}
	if !sameTTL {
		b.each(part, ttlOf)
	}
	if !sameLimit {
		b.each(part, limitOf)
	}
}

// ttlOf and limitOf return the numbers that the ops of one call can have in common.
func ttlOf(op *upstream.Op) int64   { return millis(op.TTL) }
func limitOf(op *upstream.Op) int64 { return int64(op.Limit) }

// common appends the number that all ops of a call have in common. Without one it appends an empty
// argument and returns false.
func (b *batch) common(part []int32, of func(*upstream.Op) int64) bool {
	n := of(&b.ops[part[0]])
	for _, i := range part[1:] {
		if of(&b.ops[i]) != n {
			b.text("")
			return false
		}
	}
	b.number(n)
	return true
}

// each appends the number of each op of a call.
func (b *batch) each(part []int32, of func(*upstream.Op) int64) {
	for _, i := range part {
		b.number(of(&b.ops[i]))
	}
}

// joinsByDefault reports whether all ops would queue for DefaultWaiterLease.
func (b *batch) joinsByDefault(part []int32) bool {
	return b.store.cfg.WaiterLease == DefaultWaiterLease &&
		!slices.ContainsFunc(part, func(i int32) bool { return b.ops[i].Kind != cache.OpJoin })
}

// kinds appends which ops would queue, and for how long. Without this argument all ops would queue
// for DefaultWaiterLease.
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

// bases appends which renewals request a new base.
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

// millis rounds up, so that the store does not end a lease before the daemon does.
func millis(d time.Duration) int64 {
	return max(1, int64((d+time.Millisecond-1)/time.Millisecond))
}

// key appends the name of the key that represents the lock or semaphore.
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

// arg appends an argument: the text from position at to the end. When the slice of spans grows, the
// earlier arguments keep pointing at the old spans, which do not change.
func (b *batch) arg(at int) {
	b.spans = append(b.spans, span{b, at, len(b.buf)})
	b.args = append(b.args, &b.spans[len(b.spans)-1])
}

// floor appends the floor of new bases, which is at least the highest base that the ops know.
func (b *batch) floor(part []int32) {
	known := uint64(0)
	for _, i := range part {
		known = max(known, b.ops[i].Floor)
	}
	b.floors = append(b.floors, floorArg{fences: b.store.fences, floor: known})
	b.args = append(b.args, &b.floors[len(b.floors)-1])
}
