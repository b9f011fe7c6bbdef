package redlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// server is a Redis in memory and in virtual time, according to the contract. Grants end by
// themselves, and a restart forgets them. Requests that were sent while the server was stopped are
// carried out afterwards, in any order.
type server struct {
	name  string
	skew  time.Duration // of its clock
	aged  time.Duration // how long it does not vote after a restart
	start time.Time     // of the simulation

	mu      sync.Mutex
	locks   map[string]*simLock
	counter uint64
	began   time.Time // of its present run
	resume  time.Time // it is stopped until then
	gone    bool      // it has ended
	runs    int       // the number of its runs
}

// simLock has the holders of a key: one writer or some readers.
type simLock struct {
	writer string
	wEnds  time.Time
	number uint64
	reads  map[string]simRead
}

type simRead struct {
	ends   time.Time
	owner  string
	number uint64
}

// link is one instance's connection to one server.
type link struct {
	srv      *server
	instance string
	rnd      *rand.Rand
	mu       *sync.Mutex // of rnd
	faults   faults
	wg       *sync.WaitGroup
}

// faults has the probabilities of faults on the links, in percent.
type faults struct {
	lost, unanswered, slow int
}

func (l *link) roll() (lost, unanswered bool, there, back time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := func() time.Duration {
		if l.rnd.IntN(100) < l.faults.slow {
			return time.Duration(l.rnd.Int64N(int64(300 * time.Millisecond)))
		}
		return time.Duration(l.rnd.Int64N(int64(2 * time.Millisecond)))
	}
	return l.rnd.IntN(100) < l.faults.lost, l.rnd.IntN(100) < l.faults.unanswered, d(), d()
}

func (l *link) Apply(ctx context.Context, ops []upstream.Op, results []upstream.Result) error {
	lost, unanswered, there, back := l.roll()
	answers := make(chan []upstream.Result, 1)
	ops = append([]upstream.Op(nil), ops...)
	if !l.srv.reachable() { // nothing can be sent
		for i := range results {
			results[i] = upstream.Result{Status: cache.Refused, Left: -1,
				Err: fmt.Errorf("no connection to %s", l.srv.name)}
		}
		return upstream.ErrDown
	}
	l.srv.mu.Lock()
	run := l.srv.runs
	l.srv.mu.Unlock()
	if !lost {
		l.wg.Go(func() {
			time.Sleep(there)
			rs := l.srv.carryOut(l.instance, run, ops)
			time.Sleep(back)
			if !unanswered && rs != nil {
				answers <- rs
			}
		})
	}
	select {
	case rs := <-answers:
		copy(results, rs)
		if rs[0].Status == cache.Refused {
			return fmt.Errorf("%w: %w", upstream.ErrDown, rs[0].Err)
		}
		return nil
	case <-ctx.Done():
		for i := range results {
			results[i] = upstream.Result{Left: -1, Err: fmt.Errorf("no answer from %s: %w",
				l.srv.name, ctx.Err())}
		}
		return fmt.Errorf("%w: %w", upstream.ErrDown, ctx.Err())
	}
}

func (s *server) reachable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.gone
}

// carryOut carries out a batch once the server is not stopped. It returns nil if the server has
// restarted since.
func (s *server) carryOut(instance string, run int, ops []upstream.Op) []upstream.Result {
	for {
		s.mu.Lock()
		wait := time.Until(s.resume)
		if wait <= 0 {
			break
		}
		s.mu.Unlock()
		time.Sleep(wait)
	}
	defer s.mu.Unlock()
	if s.gone || s.runs != run {
		return nil
	}
	rs := make([]upstream.Result, len(ops))
	for i := range ops {
		if time.Since(s.began) < s.aged && s.runs > 0 {
			rs[i] = upstream.Result{Status: cache.Refused, Left: -1, Err: fmt.Errorf("%s is young", s.name)}
		} else {
			rs[i] = s.one(instance, &ops[i])
		}
	}
	return rs
}

// base returns a new base: see lua/reserve.lua.
func (s *server) base(floor uint64) uint64 {
	clock := uint64((time.Since(s.start) + s.skew + time.Hour) / time.Microsecond)
	s.counter = max(s.counter+1, floor+1, clock)
	return s.counter
}

func (s *server) one(instance string, op *upstream.Op) upstream.Result {
	now := time.Now()
	l := s.locks[op.Key]
	if l == nil {
		l = &simLock{reads: map[string]simRead{}}
		s.locks[op.Key] = l
	}
	l.expire(now)
	me, ends := fmt.Sprint(instance, ".", op.Token), now.Add(op.TTL)
	r := upstream.Result{Left: -1}
	switch op.Kind {
	case cache.OpTry:
		if !l.take(me, instance, op, ends) {
			r.Status = cache.Busy
			return r
		}
		r.Status, r.Base = cache.Granted, s.base(op.Floor)
	case cache.OpRelease:
		if r.Status = cache.NotHeld; l.drop(me) {
			r.Status = cache.Done
		}
	case cache.OpRenew:
		if !l.extend(me, ends) {
			r.Status = cache.NotHeld
			return r
		}
		if r.Status = cache.Done; op.Rebase {
			r.Base = s.base(op.Floor)
		}
	case cache.OpDowngrade:
		if !l.extend(me, ends) {
			r.Status = cache.NotHeld
			return r
		}
		if l.writer == me {
			l.reads[me] = simRead{l.wEnds, instance, l.number}
			l.writer = ""
		}
		r.Status = cache.Done
	case cache.OpPeek:
		if r.Status = cache.Done; l.writer != "" || len(l.reads) > 0 {
			r.Status = cache.Busy
		}
	}
	return r
}

func (l *simLock) expire(now time.Time) {
	if l.writer != "" && !now.Before(l.wEnds) {
		l.writer = ""
	}
	for k, r := range l.reads {
		if !now.Before(r.ends) {
			delete(l.reads, k)
		}
	}
}

// take grants the key, and replaces the remains of smaller numbers of the same instance.
func (l *simLock) take(me, instance string, op *upstream.Op, ends time.Time) bool {
	if l.extend(me, ends) {
		return true
	}
	if l.writer != "" {
		if !ownOlder(l.writer, instance, l.number, op.Token) {
			return false
		}
		l.writer = ""
	}
	for k, r := range l.reads {
		if r.owner == instance && r.number < op.Token {
			delete(l.reads, k)
		} else if op.Mode == cache.Exclusive || r.owner == instance {
			return false
		}
	}
	if op.Mode == cache.Exclusive {
		l.writer, l.wEnds, l.number = me, ends, op.Token
	} else {
		l.reads[me] = simRead{ends, instance, op.Token}
	}
	return true
}

func ownOlder(writer, instance string, number, token uint64) bool {
	return writer == fmt.Sprint(instance, ".", number) && number < token
}

func (l *simLock) extend(me string, ends time.Time) bool {
	if l.writer == me {
		if ends.After(l.wEnds) {
			l.wEnds = ends
		}
		return true
	}
	r, ok := l.reads[me]
	if ok && ends.After(r.ends) {
		r.ends = ends
		l.reads[me] = r
	}
	return ok
}

func (l *simLock) drop(me string) bool {
	if l.writer == me {
		l.writer = ""
		return true
	}
	_, ok := l.reads[me]
	delete(l.reads, me)
	return ok
}

// restart makes the server forget everything, and not vote for a while.
func (s *server) restart(young time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aged = young
	s.locks, s.counter, s.began, s.resume, s.gone = map[string]*simLock{}, 0, time.Now(),
		time.Time{}, false
	s.runs++
}

func (s *server) vanish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
}

func (s *server) pause(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume = time.Now().Add(d)
}

func (l *link) Ping(context.Context) error {
	if !l.srv.reachable() {
		return upstream.ErrDown
	}
	return nil
}
func (l *link) Hints() <-chan upstream.Hint                { return nil }
func (l *link) Sessions() <-chan upstream.Session          { return nil }
func (l *link) Capabilities() (none upstream.Capabilities) { return none }
func (l *link) Info() upstream.Info                        { return upstream.Info{Name: "sim"} }
func (l *link) Close() error                               { return nil }
