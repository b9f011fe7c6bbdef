package upstream

import (
	"math/bits"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
)

// Batch is what goes to a store in one Apply.
type Batch struct {
	Ops     []Op
	Results []Result
	Sent    int64 // nanoseconds of the boot clock, read before Apply
	Took    int64 // nanoseconds of Apply; 0 when nothing was sent
}

// LaneStats is what a lane has carried.
type LaneStats struct {
	Sizes   [SizeBuckets]uint64 // batches of at most 1, 2, 4 … ops
	Ops     uint64              // in all of them
	Took    cache.Histogram     // of Apply
	Waiting int                 // ops now
	Flying  int                 // batches now
}

// SizeBuckets is enough for batches of MaxBatch ops.
const SizeBuckets = 9

// Lane gathers ops into batches: what comes while the batches in flight are out
// makes the next one. It knows no time and starts no goroutine.
type Lane struct {
	mu      sync.Mutex
	waiting queue // guarded by mu, as is all below
	free    []*Batch
	flying  int
	most    int // batches in flight
	size    int // ops in a batch
	gathers bool
	usual   int // ops in the last batches, a mean, times 8
	stats   LaneStats
	changed chan struct{}
}

// NewLane makes a lane with at most inFlight batches out, of at most size ops.
func NewLane(inFlight, size int) *Lane {
	return &Lane{most: inFlight, size: min(size, MaxBatch), changed: make(chan struct{}, 1)}
}

// Gather has a batch wait beside one that is out until it is three quarters as large as
// usual: for stores where a small one costs nearly as much as a large one. With none out
// nothing waits. It comes before all else.
func (l *Lane) Gather() { l.gathers = true }

// Push adds ops behind those that wait. It does not block.
func (l *Lane) Push(ops ...Op) {
	l.mu.Lock()
	for i := range ops {
		l.waiting.put(&ops[i])
	}
	l.mu.Unlock()
}

// Full says that as many wait as can go out next, when all that are out have come back.
func (l *Lane) Full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.n >= l.most*l.size
}

// Kick wakes whoever sleeps on Changed if there is something for it to do.
func (l *Lane) Kick() {
	l.mu.Lock()
	ready := l.ready()
	l.mu.Unlock()
	if ready {
		select {
		case l.changed <- struct{}{}:
		default:
		}
	}
}

// Changed tells of kicks; one may stand for several.
func (l *Lane) Changed() <-chan struct{} { return l.changed }

func (l *Lane) ready() bool {
	if l.waiting.n == 0 || l.flying >= l.most {
		return false
	}
	return !l.gathers || l.flying == 0 || l.waiting.n >= l.usual*3/32
}

// Next takes the next batch; nil when nothing waits or enough is in flight.
func (l *Lane) Next() *Batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready() {
		return nil
	}
	var b *Batch
	if n := len(l.free); n > 0 {
		b, l.free = l.free[n-1], l.free[:n-1]
	} else {
		b = new(Batch)
	}
	n := min(l.waiting.n, l.size)
	l.usual += n - l.usual/8
	b.Ops = l.waiting.take(b.Ops[:0], n)
	if cap(b.Results) < n {
		b.Results = make([]Result, n, max(n, 16))
	}
	b.Results = b.Results[:n]
	clear(b.Results)
	l.flying++
	return b
}

// Done gives a batch back; its slices are used again.
func (l *Lane) Done(b *Batch) {
	clear(b.Ops)
	l.mu.Lock()
	l.flying--
	if b.Took > 0 {
		l.stats.Took.Observe(b.Took)
		l.stats.Ops += uint64(len(b.Ops))
		l.stats.Sizes[min(bits.Len(uint(len(b.Ops)-1)), SizeBuckets-1)]++
		b.Took = 0
	}
	if len(l.free) < l.most {
		l.free = append(l.free, b)
	}
	l.mu.Unlock()
}

// Depth is how many ops wait and how many batches are in flight.
func (l *Lane) Depth() (waiting, flying int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.n, l.flying
}

// Waiting is the ops that wait, in their order.
func (l *Lane) Waiting() []Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ops []Op
	for i, p := range l.waiting.pieces {
		from := 0
		if i == 0 {
			from = l.waiting.head
		}
		ops = append(ops, p.ops[from:p.n]...)
	}
	return ops
}

// Stats is what the lane has carried so far.
func (l *Lane) Stats() LaneStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Waiting, s.Flying = l.waiting.n, l.flying
	return s
}

// queue is ops in the order in which they came, in pieces of one size: a million
// that wait are neither copied as they grow nor as they go.
type queue struct {
	pieces []*piece // all full but the last
	head   int      // in the first piece
	n      int
	spare  *piece
}

const pieceOps = 512

type piece struct {
	ops [pieceOps]Op
	n   int
}

func (q *queue) put(op *Op) {
	last := len(q.pieces) - 1
	if last < 0 || q.pieces[last].n == pieceOps {
		p := q.spare
		if q.spare = nil; p == nil {
			p = new(piece)
		}
		q.pieces = append(q.pieces, p)
		last++
	}
	p := q.pieces[last]
	p.ops[p.n] = *op
	p.n++
	q.n++
}

// take moves the first n ops, which have to be there, to the end of ops.
func (q *queue) take(ops []Op, n int) []Op {
	q.n -= n
	for n > 0 {
		p := q.pieces[0]
		some := p.ops[q.head:min(p.n, q.head+n)]
		ops = append(ops, some...)
		clear(some)
		q.head += len(some)
		n -= len(some)
		if q.head < p.n {
			break
		}
		q.head, p.n = 0, 0
		if len(q.pieces) > 1 { // else it stays, for those that come
			q.spare, q.pieces[0] = p, nil
			q.pieces = q.pieces[1:]
		}
	}
	return ops
}
