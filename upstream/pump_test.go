package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// slow is a store that answers when the test allows it.
type slow struct {
	upstream.Store
	calls atomic.Int64
	let   chan struct{}
}

func (s *slow) Info() upstream.Info { return upstream.Info{} }

func (s *slow) Apply(ctx context.Context, ops []upstream.Op, rs []upstream.Result) error {
	s.calls.Add(1)
	select {
	case <-s.let:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range rs {
		rs[i].Status = cache.Done
	}
	return nil
}

func TestAPumpDeliversEveryOpOnceAndStampsTheTimeBefore(t *testing.T) {
	s := &slow{let: make(chan struct{})}
	var clock atomic.Int64
	var mu sync.Mutex
	seen := map[uint64]int{}
	var all sync.WaitGroup
	all.Add(1000)
	l := upstream.NewLane(2, 64)
	p := upstream.NewPump(s, func() int64 { return clock.Add(1) },
		upstream.Observer{Deliver: func(b *upstream.Batch) {
			if b.Sent == 0 || b.Sent > clock.Load() {
				t.Error("sent at", b.Sent)
			}
			mu.Lock()
			for i, o := range b.Ops {
				if b.Results[i].Status != cache.Done {
					t.Error(b.Results[i])
				}
				seen[o.Token]++
				all.Done()
			}
			mu.Unlock()
		}, Failed: func(err error) { t.Error(err) }})
	p.Run(l)
	for i := range uint64(1000) {
		l.Push(op(i + 1))
		l.Kick()
	}
	close(s.let)
	all.Wait()
	p.Close()
	for i := range uint64(1000) {
		if seen[i+1] != 1 {
			t.Fatalf("op %d was delivered %d times", i+1, seen[i+1])
		}
	}
}

func TestClosingAPumpAnswersWhatIsInFlightAmbiguously(t *testing.T) {
	s := &slow{let: make(chan struct{})}
	got := make(chan cache.Status, 1)
	l := upstream.NewLane(1, 64)
	p := upstream.NewPump(s, func() int64 { return 1 },
		upstream.Observer{Deliver: func(b *upstream.Batch) { got <- b.Results[0].Status }})
	p.Run(l)
	l.Push(op(1))
	l.Kick()
	for s.calls.Load() == 0 {
		runtime.Gosched()
	}
	p.Close()
	if st := <-got; st != cache.Unknown {
		t.Fatal(st)
	}
}

// fickle is a store that is down while err is set.
type fickle struct {
	upstream.Store
	mu           sync.Mutex
	err          error
	pings, asked int
}

func (s *fickle) Info() upstream.Info { return upstream.Info{Timeout: time.Second} }

func (s *fickle) say(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *fickle) Ping(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pings++
	return s.err
}

func (s *fickle) Apply(_ context.Context, _ []upstream.Op, rs []upstream.Result) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	for i := range rs {
		rs[i].Status = cache.Done
		if s.err != nil {
			rs[i].Status = cache.Unknown
		}
	}
	return s.err
}

var errNoServer = fmt.Errorf("%w: no server", upstream.ErrDown)

// breaking is a pump on a fickle store. It records the calls of the Observer.
type breaking struct {
	*upstream.Pump
	store          *fickle
	main, renewals *upstream.Lane
	delivered      chan upstream.Result
	told           chan error // why down; nil for up
}

func newBreaking() *breaking {
	b := &breaking{store: &fickle{}, main: upstream.NewLane(2, 64), renewals: upstream.NewLane(1, 64),
		delivered: make(chan upstream.Result, 100), told: make(chan error, 100)}
	b.Pump = upstream.NewPump(b.store, func() int64 { return 1 }, upstream.Observer{
		Deliver: func(x *upstream.Batch) {
			for _, r := range x.Results {
				b.delivered <- r
			}
		},
		Failed: func(error) {}, Down: func(err error) { b.told <- err }, Up: func() { b.told <- nil },
	})
	b.Run(b.main)
	b.RunPatient(b.renewals)
	return b
}

func (b *breaking) ask(l *upstream.Lane, n uint64) {
	l.Push(op(n))
	l.Kick()
	synctest.Wait()
}

func TestAStoreThatIsDownIsAskedNothingButPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaking()
		b.store.say(errNoServer)
		b.ask(b.main, 1)
		if r := <-b.delivered; r.Status != cache.Unknown {
			t.Error(r.Status)
		}
		if err := <-b.told; !errors.Is(err, upstream.ErrDown) {
			t.Error(err)
		}
		for n := range uint64(10) {
			b.ask(b.main, n+2)
			if r := <-b.delivered; r.Status != cache.Refused || !errors.Is(r.Err, upstream.ErrOpen) {
				t.Errorf("%v, %v", r.Status, r.Err)
			}
		}
		b.ask(b.renewals, 20) // waits
		time.Sleep(time.Minute)
		synctest.Wait()
		if b.store.asked != 1 || b.store.pings < 40 || b.store.pings > 90 || len(b.delivered) > 0 {
			t.Errorf("%d batches, %d pings, %d answers", b.store.asked, b.store.pings, len(b.delivered))
		}
		b.store.say(nil)
		if err := <-b.told; err != nil {
			t.Error(err)
		}
		if r := <-b.delivered; r.Status != cache.Done {
			t.Errorf("the renewal is %v", r.Status)
		}
		b.ask(b.main, 30)
		if r := <-b.delivered; r.Status != cache.Done {
			t.Error(r.Status)
		}
		b.Close()
	})
}

// One of two stores is down. Releases are still sent, because the other store may be up.
func TestReleasesAreSentToAPairThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaking()
		ends := upstream.NewLane(1, 64)
		b.RunAlways(ends)
		b.store.say(errNoServer)
		b.ask(b.main, 1)
		<-b.delivered
		<-b.told
		b.ask(ends, 2)
		if r := <-b.delivered; r.Status != cache.Unknown || b.store.asked != 2 {
			t.Errorf("%v after %d batches", r.Status, b.store.asked)
		}
		b.Close()
	})
}

// A pause, such as in a takeover, does not wait for a store that does not answer.
func TestAPauseCutsReleasesSentToAPairThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{let: make(chan struct{})}
		delivered := make(chan cache.Status, 10)
		p := upstream.NewPump(s, func() int64 { return 1 }, upstream.Observer{
			Deliver: func(b *upstream.Batch) { delivered <- b.Results[0].Status },
			Failed:  func(err error) { t.Error(err) },
		})
		ends := upstream.NewLane(1, 64)
		p.RunAlways(ends)
		for n := range uint64(2) {
			ends.Push(op(2*n + 1))
			ends.Kick()
			synctest.Wait()
			p.Pause()
			if st := <-delivered; st != cache.Unknown {
				t.Error(st)
			}
			ends.Push(op(2*n + 2))
			ends.Kick()
			synctest.Wait()
			if n := len(delivered); n > 0 {
				t.Errorf("%d batches have been sent in the pause", n)
			}
			p.Resume()
			synctest.Wait()
			s.let <- struct{}{}
			if st := <-delivered; st != cache.Done {
				t.Error(st)
			}
		}
		p.Close()
	})
}

func TestOneFailedBatchIsNotAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaking()
		b.store.say(errors.New("one script had a fault"))
		b.ask(b.main, 1)
		b.store.say(nil)
		b.Suspect() // and a ping that is answered
		synctest.Wait()
		b.ask(b.main, 2)
		if b.store.asked != 2 || b.store.pings != 1 || len(b.told) != 0 {
			t.Errorf("%d batches, %d pings, told %d", b.store.asked, b.store.pings, len(b.told))
		}
		b.Close()
	})
}

func TestClosingAPumpWhileItsStoreIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaking()
		b.store.say(errNoServer)
		b.ask(b.renewals, 1)
		<-b.told
		b.ask(b.renewals, 2)
		b.Close()
	})
}

// recorder is a store that records the tokens that it is asked about.
type recorder struct {
	upstream.Store
	asked chan []uint64
}

func (s *recorder) Info() upstream.Info { return upstream.Info{} }

func (s *recorder) Apply(_ context.Context, ops []upstream.Op, rs []upstream.Result) error {
	var tokens []uint64
	for i := range ops {
		tokens = append(tokens, ops[i].Token)
		rs[i].Status = cache.Done
	}
	s.asked <- tokens
	return nil
}

// Renewals have waited for the end of an outage. The leases of some have ended.
func TestAPumpDoesNotRenewWhatHasEnded(t *testing.T) {
	s := &recorder{asked: make(chan []uint64, 2)}
	got := make(chan map[uint64]cache.Status, 2)
	l := upstream.NewLane(1, 64)
	p := upstream.NewPump(s, func() int64 { return 100 },
		upstream.Observer{Deliver: func(b *upstream.Batch) {
			all := map[uint64]cache.Status{}
			for i := range b.Ops {
				all[b.Ops[i].Token] = b.Results[i].Status
			}
			got <- all
		}, Failed: func(err error) { t.Error(err) }})
	defer p.Close()
	renewal := func(token uint64, until int64) upstream.Op {
		return upstream.Op{Kind: cache.OpRenew, Key: fmt.Sprint(token), Token: token, Until: until}
	}
	l.Push(renewal(1, 100), renewal(2, 101), renewal(3, 50), renewal(4, cache.Forever))
	p.RunPatient(l)
	l.Kick()
	if tokens := <-s.asked; !slices.Equal(tokens, []uint64{2, 4}) {
		t.Errorf("the store was asked about %v", tokens)
	}
	want := map[uint64]cache.Status{1: cache.Unknown, 2: cache.Done, 3: cache.Unknown, 4: cache.Done}
	if all := <-got; !maps.Equal(all, want) {
		t.Errorf("the results are %v", all)
	}
	l.Push(renewal(5, 99))
	l.Kick()
	if all := <-got; len(all) != 1 || all[5] != cache.Unknown || len(s.asked) > 0 {
		t.Errorf("the results are %v", all)
	}
}
