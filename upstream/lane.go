package upstream

import (
	"math/bits"
	"sync"

	"github.com/locksidecar/locksidecar/cache"
)

// Batch has the ops of one Apply and their results.
type Batch struct {
	Ops     []Op
	Results []Result
	Sent    int64 // nanoseconds of the boot clock, read before Apply
	Took    int64 // nanoseconds of Apply, or 0 if nothing was sent
}

// LaneStats counts the batches and ops of a lane.
type LaneStats struct {
	Sizes    [SizeBuckets]uint64 // batches of at most 1, 2, 4 … ops
	Ops      uint64              // ops in all batches
	Took     cache.Histogram     // the duration of Apply
	Waiting  int                 // ops that wait now
	InFlight int                 // batches in flight now
}

// SizeBuckets is enough for batches of MaxBatch ops.
const SizeBuckets = 9

// Lane gathers ops into batches: the ops that arrive while the lane's batches are in flight form
// the next batch. It reads no clock and starts no goroutine.
type Lane struct {
	mu          sync.Mutex
	waiting     queue // guarded by mu, as are the fields below
	free        []*Batch
	inFlight    int
	maxInFlight int
	maxOps      int // in one batch
	gathers     bool
	usual       int                 // 8 times the moving average of the ops in a batch
	renewed     map[string]struct{} // the locks that the last batch renews; of distinct
	stats       LaneStats
	changed     chan struct{}
}

// NewLane returns a lane with at most maxInFlight batches in flight, each of at most maxOps ops.
func NewLane(maxInFlight, maxOps int) *Lane {
	return &Lane{
		maxInFlight: maxInFlight,
		maxOps:      min(maxOps, MaxBatch),
		changed:     make(chan struct{}, 1),
	}
}

// Gather is for stores where a small batch costs nearly as much as a large one. While a batch is in
// flight, the next one waits until it has three quarters of the usual number of ops. Call Gather
// before any other method.
func (l *Lane) Gather() { l.gathers = true }

// Push appends ops to the waiting ones. It does not block.
func (l *Lane) Push(ops ...Op) {
	l.mu.Lock()
	for i := range ops {
		l.waiting.put(&ops[i])
	}
	l.mu.Unlock()
}

// Discard drops the waiting ops. It is for ops whose results are of no use any more.
func (l *Lane) Discard() {
	l.mu.Lock()
	l.waiting = queue{}
	l.mu.Unlock()
}

// Full reports whether the waiting ops fill all the batches that can be in flight together.
func (l *Lane) Full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.n >= l.maxInFlight*l.maxOps
}

// Kick wakes a goroutine that waits on Changed if Next has a batch for it.
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

// Changed receives a value after a Kick. Several kicks may send only one value.
func (l *Lane) Changed() <-chan struct{} { return l.changed }

func (l *Lane) ready() bool {
	if l.waiting.n == 0 || l.inFlight >= l.maxInFlight {
		return false
	}
	return !l.gathers || l.inFlight == 0 || l.waiting.n >= l.usual*3/32
}

// Next returns the next batch. It returns nil if no op waits or no more batches may be in flight.
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
	n := l.distinct(min(l.waiting.n, l.maxOps))
	l.usual += n - l.usual/8
	b.Ops = l.waiting.take(b.Ops[:0], n)
	if cap(b.Results) < n {
		b.Results = make([]Result, n, max(n, 16))
	}
	b.Results = b.Results[:n]
	clear(b.Results)
	l.inFlight++
	return b
}

// distinct returns how many of the first n ops one batch may have. It ends the batch before a
// second renewal of a lock, because drivers expect one op of a lock in a batch. There are two if
// the lease of the first one has ended, or has been downgraded, while that renewal waited.
func (l *Lane) distinct(n int) int {
	clear(l.renewed)
	for i := range n {
		op := l.waiting.at(i)
		if op.Kind != cache.OpRenew || op.Mode == cache.Permit {
			continue
		}
		if _, twice := l.renewed[op.Key]; twice {
			return i
		}
		if l.renewed == nil {
			l.renewed = make(map[string]struct{})
		}
		l.renewed[op.Key] = struct{}{}
	}
	return n
}

// Done returns a batch to the lane, which reuses its slices.
func (l *Lane) Done(b *Batch) {
	clear(b.Ops)
	l.mu.Lock()
	l.inFlight--
	if b.Took > 0 {
		l.stats.Took.Observe(b.Took)
		l.stats.Ops += uint64(len(b.Ops))
		l.stats.Sizes[min(bits.Len(uint(len(b.Ops)-1)), SizeBuckets-1)]++
		b.Took = 0
	}
	if len(l.free) < l.maxInFlight {
		l.free = append(l.free, b)
	}
	l.mu.Unlock()
}

// Depth returns the numbers of ops that wait and of batches in flight.
func (l *Lane) Depth() (waiting, inFlight int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.n, l.inFlight
}

// Waiting returns the ops that wait, in order.
func (l *Lane) Waiting() []Op {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ops []Op
	for i, p := range l.waiting.chunks {
		from := 0
		if i == 0 {
			from = l.waiting.head
		}
		ops = append(ops, p.ops[from:p.n]...)
	}
	return ops
}

// Stats returns the counts so far.
func (l *Lane) Stats() LaneStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Waiting, s.InFlight = l.waiting.n, l.inFlight
	return s
}

// queue is a FIFO of ops, stored in chunks of one size. So a queue of a million ops is never copied
// when it grows or shrinks.
type queue struct {
	chunks []*chunk // all are full except the last one
	head   int      // the index of the first op in the first chunk
	n      int
	spare  *chunk
}

const chunkOps = 512

type chunk struct {
	ops [chunkOps]Op
	n   int
}

func (q *queue) put(op *Op) {
	last := len(q.chunks) - 1
	if last < 0 || q.chunks[last].n == chunkOps {
		p := q.spare
		if q.spare = nil; p == nil {
			p = new(chunk)
		}
		q.chunks = append(q.chunks, p)
		last++
	}
	p := q.chunks[last]
	p.ops[p.n] = *op
	p.n++
	q.n++
}

// at returns the op at index i.
func (q *queue) at(i int) *Op {
	i += q.head
	return &q.chunks[i/chunkOps].ops[i%chunkOps]
}

// take moves the first n ops to the end of ops. The queue must have that many.
func (q *queue) take(ops []Op, n int) []Op {
	q.n -= n
	for n > 0 {
		p := q.chunks[0]
		taken := p.ops[q.head:min(p.n, q.head+n)]
		ops = append(ops, taken...)
		clear(taken)
		q.head += len(taken)
		n -= len(taken)
		if q.head < p.n {
			break
		}
		q.head, p.n = 0, 0
		if len(q.chunks) > 1 { // the only chunk stays for later ops
			q.spare, q.chunks[0] = p, nil
			q.chunks = q.chunks[1:]
		}
	}
	return ops
}
