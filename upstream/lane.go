package upstream

import "sync"

// Batch is what goes to a store in one Apply.
type Batch struct {
	Ops     []Op
	Results []Result
	Sent    int64 // nanoseconds of the boot clock, read before Apply
}

// Lane gathers ops into batches: what comes while the batches in flight are out
// makes the next one. It knows no time and starts no goroutine.
type Lane struct {
	mu      sync.Mutex
	ops     []Op // from head on they wait; guarded by mu, as is all below
	head    int
	free    []*Batch
	flying  int
	most    int // batches in flight
	size    int // ops in a batch
	changed chan struct{}
}

// NewLane makes a lane with at most inFlight batches out, of at most size ops.
func NewLane(inFlight, size int) *Lane {
	return &Lane{most: inFlight, size: min(size, MaxBatch), changed: make(chan struct{}, 1)}
}

// Push adds ops behind those that wait. It does not block.
func (l *Lane) Push(ops ...Op) {
	l.mu.Lock()
	l.ops = append(l.ops, ops...)
	l.mu.Unlock()
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

func (l *Lane) ready() bool { return len(l.ops) > l.head && l.flying < l.most }

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
	n := min(len(l.ops)-l.head, l.size)
	b.Ops = append(b.Ops[:0], l.ops[l.head:l.head+n]...)
	if cap(b.Results) < n {
		b.Results = make([]Result, n, max(n, 16))
	}
	b.Results = b.Results[:n]
	clear(b.Results)
	l.took(n)
	l.flying++
	return b
}

// took drops the first n ops. What is left moves to the front only when it is no more
// than what has gone: a million that wait are not copied for each batch.
func (l *Lane) took(n int) {
	clear(l.ops[l.head : l.head+n])
	l.head += n
	switch rest := len(l.ops) - l.head; {
	case rest == 0 && cap(l.ops) > spareOps:
		l.ops, l.head = nil, 0
	case rest <= l.head:
		copy(l.ops, l.ops[l.head:])
		clear(l.ops[rest:])
		l.ops, l.head = l.ops[:rest], 0
	}
}

// spareOps is the most room that an idle lane keeps.
const spareOps = 64 << 10

// Done gives a batch back; its slices are used again.
func (l *Lane) Done(b *Batch) {
	clear(b.Ops)
	l.mu.Lock()
	l.flying--
	if len(l.free) < l.most {
		l.free = append(l.free, b)
	}
	l.mu.Unlock()
}

// Depth is how many ops wait and how many batches are in flight.
func (l *Lane) Depth() (waiting, flying int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ops) - l.head, l.flying
}
