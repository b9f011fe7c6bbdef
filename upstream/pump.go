package upstream

import (
	"context"
	"sync"
	"time"
)

// Pump carries the batches of lanes to a store. It owns its goroutines: one for
// each batch that may be in flight.
type Pump struct {
	store   Store
	timeout time.Duration
	clock   Clock
	deliver func(*Batch)
	failed  func(error)
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
}

// NewPump makes a pump. deliver gets each batch with its results and the time of
// its sending; failed gets what Apply returns, for logs. Both are called on the
// pump's goroutines.
func NewPump(s Store, c Clock, deliver func(*Batch), failed func(error)) *Pump {
	p := &Pump{store: s, timeout: s.Info().Timeout, clock: c, deliver: deliver, failed: failed}
	if p.timeout <= 0 {
		p.timeout = time.Second
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Run starts the goroutines of a lane.
func (p *Pump) Run(l *Lane) {
	for range l.most {
		p.wg.Go(func() { p.work(l) })
	}
}

func (p *Pump) work(l *Lane) {
	for {
		for b := l.Next(); b != nil; b = l.Next() {
			l.Kick() // more may wait, and another worker be idle
			p.apply(b)
			l.Done(b)
		}
		select {
		case <-l.Changed():
		case <-p.ctx.Done():
			return
		}
	}
}

func (p *Pump) apply(b *Batch) {
	ctx, cancel := context.WithTimeout(p.ctx, p.timeout)
	defer cancel()
	b.Sent = p.clock()
	if err := p.store.Apply(ctx, b.Ops, b.Results); err != nil && p.ctx.Err() == nil {
		p.failed(err)
	}
	p.deliver(b)
}

// Close ends what is in flight, ambiguously, and waits for the goroutines. The
// store is the caller's to close.
func (p *Pump) Close() {
	p.cancel()
	p.wg.Wait()
}
