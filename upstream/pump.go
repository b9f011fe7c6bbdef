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

// Pump carries the batches of lanes to a store, and is its circuit breaker: when a
// batch says that the store is down and a ping agrees, nothing more is sent but
// pings until one is answered. An exception is the lane of RunAlways. A Pump owns its
// goroutines: one for each batch that may be in flight, and one that pings.
type Pump struct {
	store   Store
	timeout time.Duration
	clock   Clock
	tell    Told
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	suspect chan struct{} // a batch has failed: the pinger has to look

	telling sync.Mutex // held while Down or Up is told, and between Pause and Resume

	mu     sync.Mutex
	down   error         // guarded by mu; nil while the store is up
	up     chan struct{} // closed when the store is up again; guarded by mu
	paused chan struct{} // nil unless paused; closed by Resume; guarded by mu

	unpaused context.Context    // of batches that Pause cuts; guarded by mu
	cut      context.CancelFunc // ends unpaused; guarded by mu
	waits    context.Context    // of batches that Pause cuts if the store is down; guarded by mu
	cutWaits context.CancelFunc // ends waits; guarded by mu
}

// Told is who hears from a pump, on its goroutines.
type Told struct {
	Deliver func(*Batch) // a batch with its results and the time of its sending
	Failed  func(error)  // what Apply returned, for logs
	Down    func(error)  // the store is down, and why
	Up      func()       // it is up again
}

// The pauses between pings of a store that is down.
const (
	pingMin = 100 * time.Millisecond
	pingMax = time.Second
)

// ErrOpen is what ops are refused with while the store is down: nothing was sent.
var ErrOpen = errors.New("not asked while it is down")

// NewPump makes a pump and starts its pinger.
func NewPump(s Store, c Clock, tell Told) *Pump {
	p := &Pump{store: s, timeout: s.Info().Timeout, clock: c, tell: tell, suspect: make(chan struct{}, 1)}
	if p.timeout <= 0 {
		p.timeout = time.Second
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.begin()
	p.wg.Go(p.watch)
	return p
}

// begin makes the contexts of batches, unless the present ones have not ended. The caller holds mu, or has just
// made p.
func (p *Pump) begin() {
	if p.cut == nil || p.unpaused.Err() != nil {
		p.unpaused, p.cut = context.WithCancel(p.ctx)
	}
	if p.cutWaits == nil || p.waits.Err() != nil {
		p.waits, p.cutWaits = context.WithCancel(p.ctx)
	}
}

// whileDown is what happens to the ops of a lane while the store is down.
type whileDown uint8

const (
	refuse whileDown = iota
	wait
	send
)

// Run starts the goroutines of the lane of everything but renewals: while the
// store is down its ops are refused at once.
func (p *Pump) Run(l *Lane) { p.run(l, refuse) }

// RunPatient starts those of the lane of renewals: while the store is down they
// wait.
func (p *Pump) RunPatient(l *Lane) { p.run(l, wait) }

// RunAlways starts those of a lane whose ops are sent even while the store is down: it is a pair, and one of its
// two stores may be there. Pause does not wait for their answers.
func (p *Pump) RunAlways(l *Lane) { p.run(l, send) }

func (p *Pump) run(l *Lane, down whileDown) {
	for range l.most {
		p.wg.Go(func() { p.work(l, down) })
	}
}

func (p *Pump) work(l *Lane, down whileDown) {
	for {
		b, later := p.next(l, down)
		if b != nil {
			l.Kick() // more may wait, and another worker be idle
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

// next takes a batch, or says what to wait for if there must be none now.
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

// Pause has nothing more taken from the lanes, and nothing told but what comes of the batches that
// are out, until Resume. It waits for what is being told. If the store is down, it cuts the batches that are out: their
// results are Unknown. It always cuts those of RunAlways.
func (p *Pump) Pause() {
	p.telling.Lock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = make(chan struct{})
	p.cut()
	if p.down != nil {
		p.cutWaits()
	}
}

// CutIfDown cuts the batches that are out if the store is down: their results are Unknown. What waits behind them in
// the lane of Run is then refused.
func (p *Pump) CutIfDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down != nil && p.paused == nil {
		p.cutWaits()
		p.begin()
	}
}

// Resume is the end of Pause.
func (p *Pump) Resume() {
	p.telling.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.paused)
	p.paused = nil
	p.begin()
}

func (p *Pump) apply(b *Batch, down whileDown) {
	b.Sent = p.clock()
	p.mu.Lock()
	why, while := p.down, p.waits
	if down == send {
		while = p.unpaused
	}
	p.mu.Unlock()
	if why != nil && down == refuse {
		err := fmt.Errorf("%w: %w", ErrOpen, why)
		for i := range b.Results {
			b.Results[i] = Result{Status: cache.Refused, Left: -1, Err: err}
		}
		p.tell.Deliver(b)
		return
	}
	ctx, cancel := context.WithTimeout(while, p.timeout)
	defer cancel()
	if err := p.store.Apply(ctx, b.Ops, b.Results); err != nil && while.Err() == nil {
		p.tell.Failed(err)
		if errors.Is(err, ErrDown) {
			p.Suspect()
		}
	}
	b.Took = max(1, p.clock()-b.Sent)
	p.tell.Deliver(b)
}

// Suspect has the store pinged: something says that it is down.
func (p *Pump) Suspect() {
	select {
	case p.suspect <- struct{}{}:
	default:
	}
}

// watch pings when it has to.
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
		p.say(func() { p.tell.Down(err) })
		if !p.outlast() {
			return
		}
		p.mu.Lock()
		p.down = nil
		close(p.up)
		p.mu.Unlock()
		p.say(p.tell.Up)
	}
}

func (p *Pump) say(what func()) {
	p.telling.Lock()
	defer p.telling.Unlock()
	what()
}

// outlast pings until the store is up; false when the pump is closed before.
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

// Close ends what is in flight, ambiguously, and waits for the goroutines. The
// store is the caller's to close.
func (p *Pump) Close() {
	p.cancel()
	p.wg.Wait()
}
