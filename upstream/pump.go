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
// pings until one is answered. A pair of stores is also sent what ends leases, since one
// of the two may be there. A Pump owns its goroutines: one for each batch that may be in
// flight, and one that pings.
type Pump struct {
	store   Store
	pair    bool // the store is two stores
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
	p := &Pump{store: s, pair: s.Info().Pair, timeout: s.Info().Timeout, clock: c, tell: tell, suspect: make(chan struct{}, 1)}
	if p.timeout <= 0 {
		p.timeout = time.Second
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.wg.Go(p.watch)
	return p
}

// Run starts the goroutines of the lane of everything but renewals: while the
// store is down its ops are refused at once.
func (p *Pump) Run(l *Lane) { p.run(l, false) }

// RunPatient starts those of the lane of renewals: while the store is down they
// wait.
func (p *Pump) RunPatient(l *Lane) { p.run(l, true) }

func (p *Pump) run(l *Lane, patient bool) {
	for range l.most {
		p.wg.Go(func() { p.work(l, patient) })
	}
}

func (p *Pump) work(l *Lane, patient bool) {
	for {
		b, later := p.next(l, patient)
		if b != nil {
			l.Kick() // more may wait, and another worker be idle
			p.apply(b)
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
func (p *Pump) next(l *Lane, patient bool) (b *Batch, later <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.paused != nil:
		return nil, p.paused
	case patient && p.down != nil:
		return nil, p.up
	}
	return l.Next(), nil
}

// Pause has nothing more taken from the lanes, and nothing told but what comes of the batches that
// are out, until Resume. It waits for what is being told.
func (p *Pump) Pause() {
	p.telling.Lock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = make(chan struct{})
}

// Resume is the end of Pause.
func (p *Pump) Resume() {
	p.telling.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.paused)
	p.paused = nil
}

func (p *Pump) apply(b *Batch) {
	b.Sent = p.clock()
	n := len(b.Ops)
	if err := p.why(); err != nil {
		if n = p.refuse(b, err); n == 0 {
			p.tell.Deliver(b)
			return
		}
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.timeout)
	defer cancel()
	if err := p.store.Apply(ctx, b.Ops[:n], b.Results[:n]); err != nil && p.ctx.Err() == nil {
		p.tell.Failed(err)
		if errors.Is(err, ErrDown) {
			p.Suspect()
		}
	}
	b.Took = max(1, p.clock()-b.Sent)
	p.tell.Deliver(b)
}

// refuse answers the ops of b that are not sent while the store is down. It puts the others in front, and
// returns how many they are: those of a pair that end a lease.
func (p *Pump) refuse(b *Batch, why error) (n int) {
	if p.pair {
		n = b.EndsFirst()
	}
	err := fmt.Errorf("%w: %w", ErrOpen, why)
	for i := n; i < len(b.Results); i++ {
		b.Results[i] = Result{Status: cache.Refused, Left: -1, Err: err}
	}
	return n
}

// Suspect has the store pinged: something says that it is down.
func (p *Pump) Suspect() {
	select {
	case p.suspect <- struct{}{}:
	default:
	}
}

// why is why the store is down; nil when it is not.
func (p *Pump) why() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
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
