package upstream

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// Pump sends the batches of lanes to a store. It is also the store's circuit breaker. When a batch
// fails with ErrDown and a ping fails too, the Pump sends only pings until one succeeds. The lane
// of RunAlways is an exception. A Pump owns its goroutines: one for each batch that may be in
// flight, and one that pings.
type Pump struct {
	store    Store
	timeout  time.Duration
	clock    Clock
	observer Observer
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	suspect  chan struct{} // asks watch for a ping

	notifying sync.Mutex // held during Observer's Down and Up, and between Pause and Resume

	mu     sync.Mutex
	down   error         // guarded by mu; nil while the store is up
	up     chan struct{} // closed when the store is up again; guarded by mu
	paused chan struct{} // nil unless paused; closed by Resume; guarded by mu

	// The contexts of the batches in flight, and what cuts them; guarded by mu.
	usual     context.Context // of Run and RunPatient: cut only if the store is down
	cutUsual  context.CancelFunc
	always    context.Context // of RunAlways: each Pause cuts it
	cutAlways context.CancelFunc
}

// Observer has the functions that a Pump calls, on its own goroutines.
type Observer struct {
	Deliver func(*Batch) // a batch has its results
	Failed  func(error)  // Apply has returned this error
	Down    func(error)  // the store is down because of this error
	Up      func()       // the store is up again
}

// The pauses between pings of a store that is down.
const (
	pingMin = 100 * time.Millisecond
	pingMax = time.Second
)

// ErrOpen is the error of ops that are refused while the store is down. Nothing was sent.
var ErrOpen = errors.New("store is down; request not sent")

// NewPump returns a Pump and starts the goroutine that pings.
func NewPump(s Store, c Clock, o Observer) *Pump {
	p := &Pump{
		store:    s,
		timeout:  s.Info().Timeout,
		clock:    c,
		observer: o,
		suspect:  make(chan struct{}, 1),
	}
	if p.timeout <= 0 {
		p.timeout = time.Second
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.begin()
	p.wg.Go(p.watch)
	return p
}

// begin replaces the contexts that have been cut. The caller holds mu, or has just made p.
func (p *Pump) begin() {
	if p.cutAlways == nil || p.always.Err() != nil {
		p.always, p.cutAlways = context.WithCancel(p.ctx)
	}
	if p.cutUsual == nil || p.usual.Err() != nil {
		p.usual, p.cutUsual = context.WithCancel(p.ctx)
	}
}

// whileDown says how a lane treats its ops while the store is down.
type whileDown uint8

const (
	refuse whileDown = iota
	wait
	send
)

// Run starts the goroutines of a lane whose ops are refused at once while the store is down.
func (p *Pump) Run(l *Lane) { p.run(l, refuse) }

// RunPatient starts the goroutines of a lane whose ops wait while the store is down. It is for
// renewals.
func (p *Pump) RunPatient(l *Lane) { p.run(l, wait) }

// RunAlways starts the goroutines of a lane whose ops are sent even while the store is down. It is
// for a pair, one of whose two stores may be reachable. Pause does not wait for their answers.
func (p *Pump) RunAlways(l *Lane) { p.run(l, send) }

func (p *Pump) run(l *Lane, down whileDown) {
	for range l.maxInFlight {
		p.wg.Go(func() { p.work(l, down) })
	}
}

func (p *Pump) work(l *Lane, down whileDown) {
	for {
		b, later := p.next(l, down)
		if b != nil {
			l.Kick() // more ops may wait while another worker is idle
			p.apply(b, down)
			l.Done(b)
			continue
		}
		changed := l.Changed()
		if later != nil {
			changed = nil
		}
		select {
		case <-later:
		case <-changed:
		case <-p.ctx.Done():
			return
		}
	}
}

// next returns a batch, or the channel to wait for if no batch may be sent now.
func (p *Pump) next(l *Lane, down whileDown) (b *Batch, later <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.paused != nil:
		return nil, p.paused
	case down == wait && p.down != nil:
		return nil, p.up
	}
	return l.Next(), nil
}

// Pause stops the Pump until Resume: it takes no batch and does not call Down or Up. Batches in
// flight are still delivered. If the store is down, Pause cuts the batches in flight, whose results
// are then Unknown. It always cuts the batches of RunAlways. It waits for a call of Down or Up in
// progress.
func (p *Pump) Pause() {
	p.notifying.Lock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = make(chan struct{})
	p.cutAlways()
	if p.down != nil {
		p.cutUsual()
	}
}

// CutIfDown cuts the batches in flight if the store is down: their results are Unknown. The ops
// that wait behind them in the lane of Run are then refused.
func (p *Pump) CutIfDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down != nil && p.paused == nil {
		p.cutUsual()
		p.begin()
	}
}

// Resume ends a Pause.
func (p *Pump) Resume() {
	p.notifying.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.paused)
	p.paused = nil
	p.begin()
}

func (p *Pump) apply(b *Batch, down whileDown) {
	b.Sent = p.clock()
	p.mu.Lock()
	why, while := p.down, p.usual
	if down == send {
		while = p.always
	}
	p.mu.Unlock()
	if why != nil && down == refuse {
		err := fmt.Errorf("%w: %w", ErrOpen, why)
		for i := range b.Results {
			b.Results[i] = Result{Status: cache.Refused, Left: -1, Err: err}
		}
		p.observer.Deliver(b)
		return
	}
	ctx, cancel := context.WithTimeout(while, p.timeout)
	defer cancel()
	n := b.lateLast()
	if n > 0 {
		err := p.store.Apply(ctx, b.Ops[:n], b.Results[:n])
		if err != nil && while.Err() == nil {
			p.observer.Failed(err)
			if errors.Is(err, ErrDown) {
				p.Suspect()
			}
		}
		b.Took = max(1, p.clock()-b.Sent)
	}
	p.observer.Deliver(b)
}

// lateLast moves the renewals of leases that have ended behind the other ops, and returns the
// number of the others. After an outage there can be many. A store could also take one for the
// renewal of a lease that nobody else has got since, and then keep the key from everybody for a
// TTL.
func (b *Batch) lateLast() int {
	late := func(op *Op) bool { return op.Kind == cache.OpRenew && op.Until <= b.Sent }
	n := 0
	for i := range b.Ops {
		if !late(&b.Ops[i]) {
			b.Ops[n], b.Ops[i] = b.Ops[i], b.Ops[n]
			n++
		}
	}
	return n
}

// Suspect asks for a ping because the store may be down.
func (p *Pump) Suspect() {
	select {
	case p.suspect <- struct{}{}:
	default:
	}
}

// watch pings the store when it is suspected to be down, and until it is up again.
func (p *Pump) watch() {
	for {
		select {
		case <-p.suspect:
		case <-p.ctx.Done():
			return
		}
		err := p.ping()
		if err == nil || p.ctx.Err() != nil {
			continue
		}
		p.mu.Lock()
		p.down, p.up = err, make(chan struct{})
		p.mu.Unlock()
		p.notify(func() { p.observer.Down(err) })
		if !p.outlast() {
			return
		}
		p.mu.Lock()
		p.down = nil
		close(p.up)
		p.mu.Unlock()
		p.notify(p.observer.Up)
	}
}

func (p *Pump) notify(call func()) {
	p.notifying.Lock()
	defer p.notifying.Unlock()
	call()
}

// outlast pings until the store is up. It returns false if the Pump is closed first.
func (p *Pump) outlast() bool {
	for pause := pingMin; ; pause = min(2*pause, pingMax) {
		select {
		case <-time.After(pause*4/5 + rand.N(pause*2/5)):
		case <-p.ctx.Done():
			return false
		}
		if p.ping() == nil {
			return true
		}
	}
}

func (p *Pump) ping() error {
	ctx, cancel := context.WithTimeout(p.ctx, p.timeout)
	defer cancel()
	return p.store.Ping(ctx)
}

// Close cuts the batches in flight, whose results are then Unknown, and waits for the goroutines.
// It does not close the store.
func (p *Pump) Close() {
	p.cancel()
	p.wg.Wait()
}
