package redlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redlock"
)

// simMaxTTL is the longest TTL of the simulation.
const simMaxTTL = 4 * time.Second

// sim is one run from a seed, with some servers and some instances that acquire a few keys.
type sim struct {
	t     *testing.T
	seed  uint64
	rnd   *rand.Rand
	srvs  []*server
	world sync.WaitGroup // requests in flight
	rmu   sync.Mutex     // of the links' rnd

	mu     sync.Mutex
	held   map[string][]*tenure // by key
	writer map[string]uint64    // the highest base of an exclusive grant, by key
	all    map[string]uint64
	counts map[string]int
	failed bool
	trace  bool // one seed alone is run
}

// tenure is the time for which an instance believes that it holds a key.
type tenure struct {
	who   string
	mode  cache.Mode
	until time.Time
}

func TestNobodyHoldsBesideAnotherAndBasesRise(t *testing.T) {
	from, to := uint64(0), uint64(seeds)
	if s := os.Getenv("REDLOCK_SEEDS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		to = n
	}
	if s := os.Getenv("REDLOCK_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		from, to = n, n+1
	}
	counts := map[string]int{}
	for seed := from; seed < to && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			s := newSim(t, seed)
			s.trace = to == from+1
			s.run()
			for k, n := range s.counts {
				counts[k] += n
			}
		})
	}
	t.Log(counts)
	for _, what := range []string{"granted", "renewed", "rebased", "downgraded", "released", "unknown",
		"busy", "restart", "pause"} {
		if counts[what] == 0 && to-from > 50 {
			t.Errorf("nothing was ever %s", what)
		}
	}
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 2)), held: map[string][]*tenure{},
		writer: map[string]uint64{}, all: map[string]uint64{}, counts: map[string]int{}}
	n := 3 + 2*s.rnd.IntN(2)
	for i := range n {
		s.srvs = append(s.srvs, &server{name: fmt.Sprint("n", i), start: time.Now(),
			began: time.Now().Add(-time.Hour),
			locks: map[string]*simLock{}, skew: time.Duration(s.rnd.Int64N(int64(simMaxTTL - 100*time.Millisecond)))})
	}
	return s
}

func (s *sim) run() {
	f := faults{lost: s.rnd.IntN(5), unanswered: s.rnd.IntN(5), slow: s.rnd.IntN(30)}
	done := make(chan struct{})
	var wg, bad sync.WaitGroup
	bad.Go(func() { s.misfortune(done, rand.New(rand.NewPCG(s.seed, 3))) })
	for i := range 3 {
		rnd := rand.New(rand.NewPCG(s.seed, uint64(10+i)))
		wg.Go(func() { s.instance(fmt.Sprint("i", i), f, rnd) })
	}
	wg.Wait()
	close(done)
	bad.Wait()
	s.world.Wait()
}

// misfortune stops servers, and restarts them without their data.
func (s *sim) misfortune(done chan struct{}, rnd *rand.Rand) {
	for {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(rnd.Int64N(int64(15*time.Second) / int64(len(s.srvs))))):
		}
		srv := s.srvs[rnd.IntN(len(s.srvs))]
		switch rnd.IntN(3) {
		case 0:
			s.count("pause")
			srv.pause(time.Duration(rnd.Int64N(int64(5 * time.Second))))
		case 1:
			s.count("restart")
			srv.vanish()
			time.Sleep(time.Duration(rnd.Int64N(int64(50 * time.Millisecond))))
			srv.restart(simMaxTTL)
		}
	}
}

func (s *sim) count(what string) {
	s.mu.Lock()
	s.counts[what]++
	s.mu.Unlock()
}

// instance is one daemon, which acquires keys one after the other, as the lock table does.
func (s *sim) instance(name string, f faults, rnd *rand.Rand) {
	cfg, err := redlock.Parse("redlock://a,b,c,d,e?timeout=100ms&max_ttl=" + simMaxTTL.String())
	if err != nil {
		s.t.Error(err)
		return
	}
	cfg.URL.Hosts = cfg.URL.Hosts[:len(s.srvs)]
	i := 0
	redlock.WithSeed(s.seed)(&cfg)
	st, err := redlock.OpenLazy(cfg, func(redlock.Member) (upstream.Store, error) {
		i++
		return &link{srv: s.srvs[i-1], instance: name,
			rnd: rand.New(rand.NewPCG(s.seed, uint64(100*i)+uint64(name[1]))), mu: &s.rmu, faults: f,
			wg: &s.world}, nil
	})
	if err != nil {
		s.t.Error(err)
		return
	}
	d := &daemon{sim: s, name: name, store: st, rnd: rnd}
	for range 12 {
		d.turn()
	}
	if err := st.Close(); err != nil {
		s.t.Error(err)
	}
}

// daemon is the user of a store. It counts deadlines from the send.
type daemon struct {
	*sim
	name  string
	store *redlock.Store
	rnd   *rand.Rand
	token uint64
	floor uint64
}

func (d *daemon) apply(op upstream.Op) (r upstream.Result, sent time.Time) {
	op.Floor = d.floor
	sent = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), d.store.Info().Timeout)
	defer cancel()
	res := make([]upstream.Result, 1)
	_ = d.store.Apply(ctx, []upstream.Op{op}, res)
	d.floor = max(d.floor, res[0].Base)
	if d.trace {
		d.t.Logf("%v to %v: %s %v %v %s token %d ttl %v: %v base %d (%v)", sent.Sub(d.srvs[0].start),
			time.Since(d.srvs[0].start), d.name, op.Kind, op.Mode, op.Key, op.Token,
			op.TTL, res[0].Status, res[0].Base, res[0].Err)
	}
	return res[0], sent
}

// deadline returns the deadline as the lock table computes it.
func deadline(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(time.Duration(cache.LeaseDeadline(0, int64(ttl))))
}

func (d *daemon) sleep(most time.Duration) { time.Sleep(time.Duration(d.rnd.Int64N(int64(most)))) }

// turn acquires a key, holds it for a while, and releases it.
func (d *daemon) turn() {
	d.token++
	op := upstream.Op{Kind: cache.OpTry, Mode: cache.Mode(d.rnd.IntN(3) / 2),
		Key: string(rune('a' + d.rnd.IntN(2))), Token: d.token,
		TTL: time.Duration(d.rnd.Int64N(int64(simMaxTTL-500*time.Millisecond))) + 500*time.Millisecond}
	if d.rnd.IntN(2) == 0 {
		op.Kind = cache.OpJoin
	}
	r, sent := d.apply(op)
	for n := 0; r.Status != cache.Granted; n++ {
		d.tally(r.Status)
		d.sleep(200 * time.Millisecond)
		if op.Kind == cache.OpTry && r.Status != cache.Unknown {
			return
		}
		if op.Kind == cache.OpTry || n > 8 {
			op.Kind = cache.OpWithdraw
			d.settle(op)
			return
		}
		r, sent = d.apply(op)
	}
	d.tally(r.Status)
	t := &tenure{who: d.name, mode: op.Mode, until: deadline(sent, op.TTL)}
	if !d.enter(op.Key, t, r.Base) {
		op.Kind = cache.OpRelease
		d.settle(op)
		return
	}
	base := r.Base
	for d.rnd.IntN(5) > 0 {
		d.sleep(min(time.Second, max(time.Until(t.until), time.Millisecond)))
		if !d.keep(&op, t, &base) {
			break
		}
	}
	d.leave(op.Key, t)
	op.Kind, op.Rebase = cache.OpRelease, false
	d.settle(op)
}

// keep renews a lease. It returns false if the lease is lost.
func (d *daemon) keep(op *upstream.Op, t *tenure, base *uint64) bool {
	op.Kind, op.Rebase = cache.OpRenew, d.rnd.IntN(4) == 0
	if d.rnd.IntN(6) == 0 {
		op.Kind, op.Rebase = cache.OpDowngrade, false
		d.mu.Lock()
		t.mode, op.Mode = cache.Shared, cache.Shared // from now on; at the nodes soon
		d.mu.Unlock()
	}
	if !time.Now().Before(t.until) && d.rnd.IntN(4) > 0 {
		return false // usually noticed at once
	}
	r, sent := d.apply(*op)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch r.Status {
	case cache.Done:
		if until := deadline(sent, op.TTL); until.After(t.until) {
			t.until = until
		}
		if op.Kind == cache.OpDowngrade {
			d.counts["downgraded"]++
			return true
		}
		d.counts["renewed"]++
		if op.Rebase {
			d.counts["rebased"]++
			d.riseLocked(op.Key, t, r.Base, *base)
			*base = r.Base
		}
	case cache.NotHeld:
		d.counts["not held"]++
		return false
	default:
		d.counts["unknown"]++
	}
	return true
}

// settle releases a token until there is an answer, or until its TTL is over.
func (d *daemon) settle(op upstream.Op) {
	for end := time.Now().Add(2 * op.TTL); time.Now().Before(end); d.sleep(time.Second) {
		r, _ := d.apply(op)
		if r.Status == cache.Done || r.Status == cache.NotHeld {
			d.count("released")
			return
		}
		d.tally(r.Status)
	}
}

func (d *daemon) tally(st cache.Status) {
	switch st {
	case cache.Granted:
		d.count("granted")
	case cache.Busy, cache.Queued:
		d.count("busy")
	default:
		d.count("unknown")
	}
}

// enter returns false if the grant came too late.
func (d *daemon) enter(key string, t *tenure, base uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !time.Now().Before(t.until) {
		return false
	}
	d.conflictsLocked(key, t)
	d.riseLocked(key, t, base, 0)
	d.held[key] = append(d.held[key], t)
	return true
}

// conflictsLocked looks for another instance that believes that it holds key.
func (d *daemon) conflictsLocked(key string, t *tenure) {
	for _, o := range d.held[key] {
		if o != t && time.Now().Before(o.until) && (o.mode == cache.Exclusive ||
			t.mode == cache.Exclusive) {
			d.wrongLocked("%s holds %s in mode %v beside %s (%v)", t.who, key, t.mode, o.who, o.mode)
		}
	}
}

// riseLocked checks that a new base is above all earlier ones, except the holder's own.
func (d *daemon) riseLocked(key string, t *tenure, base, own uint64) {
	last := d.writer[key]
	if t.mode == cache.Exclusive {
		last = d.all[key]
	}
	last = max(last, own)
	if base <= last {
		d.wrongLocked("%s has base %d of %s after %d", t.who, base, key, last)
	}
	if t.mode == cache.Exclusive {
		d.writer[key] = max(d.writer[key], base)
	}
	d.all[key] = max(d.all[key], base)
}

func (d *daemon) leave(key string, t *tenure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(t.until) {
		d.conflictsLocked(key, t)
	}
	t.until = time.Now()
}

func (d *daemon) wrongLocked(format string, args ...any) {
	if !d.failed {
		d.t.Errorf("seed %d: "+format, append([]any{d.seed}, args...)...)
	}
	d.failed = true
}
