package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Options says what a driver's store is not, or how to look into it.
type Options struct {
	// OneHost leaves out what takes several hosts: the store has only one.
	OneHost bool
	// NoQueue leaves out what takes a queue between hosts (Info.Queue is false).
	NoQueue bool
	// Counters leaves out that bases of different keys differ: not all keys have
	// the same counter.
	Counters bool
	// KeepsPlaces says that who queues keeps the key from others, if it comes free,
	// until it withdraws.
	KeepsPlaces bool
	// PolledHints says that the store finds its hints by looking, so that there is
	// no subscription to wait for.
	PolledHints bool
	// HeldUnknown has the modes of leases for which no other host can see since when they are held.
	HeldUnknown []cache.Mode
	// NewShortLived makes hosts that a test ends, as NewHost does. Their store session is over seconds after they are
	// closed. NewHost is used when nil. All other store sessions should outlast a machine that stalls.
	NewShortLived NewHost
	// Server is the server behind the stores, for the tests of its faults; they are
	// left out when nil.
	Server *Server
	// Residue lists what the store keeps of locks with prefix, and anything of its own that would
	// stay for ever. It is optional.
	Residue func(t testing.TB, prefix string) []string
}

// NewHost makes a store for one more host. Stores with the same prefix share
// their locks. The suite closes it.
type NewHost func(t testing.TB, prefix string) upstream.Store

// Run runs the suite.
func Run(t *testing.T, newHost NewHost, opts Options) {
	e := &env{newHost: newHost, opts: opts}
	if opts.Server != nil {
		// First: others lift fences far above the clock, by which they rise over a restart.
		for _, c := range faultTests {
			t.Run(c.name, func(t *testing.T) { c.run(e.world(t)) })
		}
	}
	permits := e.world(t).host().store.Info().Permits
	for _, group := range []struct {
		hosts   bool // takes several
		queue   bool // and a queue between them
		permits bool // and semaphores
		tests   []test
	}{{tests: leaseTests}, {tests: fenceTests}, {tests: batchTests}, {tests: modelTests},
		{hosts: true, tests: hostTests}, {hosts: true, tests: readerTests}, {hosts: true, queue: true, tests: queueTests},
		{hosts: true, tests: raceTests}, {hosts: true, tests: registryTests}, {hosts: true, tests: heldTests}, {permits: true, tests: permitTests},
		{hosts: true, permits: true, tests: permitHostTests},
		{hosts: true, queue: true, permits: true, tests: permitQueueTests}} {
		if group.hosts && opts.OneHost || group.queue && opts.NoQueue || group.permits && !permits {
			continue
		}
		for _, c := range group.tests {
			t.Run(c.name, func(t *testing.T) {
				c.run(e.world(t))
			})
		}
	}
}

type test struct {
	name string
	run  func(w *world)
}

type env struct {
	newHost NewHost
	opts    Options
	worlds  atomic.Int64
}

// skipUnless ends a test of what the store does not do.
func (w *world) skipUnless(does bool, what string) {
	w.Helper()
	if !does {
		w.Skip(what)
	}
}

// world is one test: some hosts that share their locks.
type world struct {
	*testing.T
	env    *env
	prefix string
}

func (e *env) world(t *testing.T) *world {
	return &world{T: t, env: e, prefix: fmt.Sprintf("w%d:", e.worlds.Add(1))}
}

const (
	long  = time.Minute            // a TTL that ends in no test
	short = 200 * time.Millisecond // one that does
	bound = 30 * time.Second       // for what comes soon: only reached when it never does
)

// host is one daemon's view: a store, and tokens that rise.
type host struct {
	*world
	store upstream.Store
	last  *atomic.Uint64
}

func (w *world) host() *host {
	w.Helper()
	return w.hostBy(w.env.newHost)
}

func (w *world) hostBy(newHost NewHost) *host {
	w.Helper()
	h := &host{world: w, store: newHost(w.T, w.prefix), last: new(atomic.Uint64)}
	w.Cleanup(h.end)
	return h
}

// end closes the host's store; what it holds stays held, to its deadline.
func (h *host) end() {
	h.Helper()
	if h.store == nil {
		return
	}
	if err := h.store.Close(); err != nil {
		h.Errorf("close: %v", err)
	}
	h.store = nil
}

// hosts makes n hosts. The test ends those whose indexes are shortLived.
func (w *world) hosts(n int, shortLived ...int) []*host {
	w.Helper()
	hs := make([]*host, n)
	for i := range hs {
		newHost := w.env.newHost
		if w.env.opts.NewShortLived != nil && slices.Contains(shortLived, i) {
			newHost = w.env.opts.NewShortLived
		}
		hs[i] = w.hostBy(newHost)
	}
	return hs
}

// upTo returns n hosts, or one if the store can have only one.
func (w *world) upTo(n int) []*host {
	w.Helper()
	if w.env.opts.OneHost {
		n = 1
	}
	return w.hosts(n)
}

func (h *host) token() uint64 { return h.last.Add(1) }

// ttls says that each lease ends by its own TTL in the store.
func (h *host) ttls() bool { return h.store.Info().Session == 0 }

// apply carries out a batch.
func (h *host) apply(ops ...cache.Op) []cache.Result {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	results := make([]cache.Result, len(ops))
	for i := range results {
		results[i].Status = 99 // a driver has to set every one
	}
	_ = h.store.Apply(ctx, ops, results)
	return results
}

func (h *host) do(kind cache.OpKind, mode cache.Mode, key string, token uint64, ttl time.Duration) cache.Result {
	h.Helper()
	return h.apply(cache.Op{Kind: kind, Mode: mode, Key: key, Token: token, TTL: ttl})[0]
}

func (h *host) try(key string, token uint64) cache.Result {
	h.Helper()
	return h.do(cache.OpTry, cache.Exclusive, key, token, long)
}

func (h *host) tryShared(key string, token uint64) cache.Result {
	h.Helper()
	return h.do(cache.OpTry, cache.Shared, key, token, long)
}

func (h *host) join(key string, token uint64) cache.Result {
	h.Helper()
	return h.do(cache.OpJoin, cache.Exclusive, key, token, long)
}

// joinBriefly joins for a moment, as tries do where leases linger.
func (h *host) joinBriefly(key string, token uint64) cache.Result {
	h.Helper()
	return h.apply(cache.Op{Kind: cache.OpJoin, ShortLived: true, Key: key, Token: token, TTL: long})[0]
}

func (h *host) joinShared(key string, token uint64) cache.Result {
	h.Helper()
	return h.do(cache.OpJoin, cache.Shared, key, token, long)
}

func (h *host) release(key string, token uint64) cache.Result {
	h.Helper()
	return h.do(cache.OpRelease, cache.Exclusive, key, token, 0)
}

func (h *host) withdraw(key string, token uint64) cache.Result {
	h.Helper()
	return h.do(cache.OpWithdraw, cache.Exclusive, key, token, 0)
}

func (h *host) renew(key string, token uint64, ttl time.Duration) cache.Result {
	h.Helper()
	return h.do(cache.OpRenew, cache.Exclusive, key, token, ttl)
}

func (h *host) downgrade(key string, token uint64) cache.Result {
	h.Helper()
	return h.do(cache.OpDowngrade, cache.Exclusive, key, token, long)
}

func (h *host) peek(key string) cache.Result {
	h.Helper()
	return h.do(cache.OpPeek, cache.Exclusive, key, 0, 0)
}

// take is try that has to succeed; it returns the token and the base.
func (h *host) take(key string, mode cache.Mode) (token, base uint64) {
	h.Helper()
	token = h.token()
	r := h.do(cache.OpTry, mode, key, token, long)
	h.want(r, cache.Granted)
	return token, r.Base
}

// want fails the test unless r ended as st.
func (w *world) want(r cache.Result, st cache.Status) {
	w.Helper()
	if r.Status != st {
		w.Fatalf("it is %v (error %v), not %v", r.Status, r.Err, st)
	}
	if st == cache.Granted && (r.Base == 0 || r.Base > cache.MaxBase) {
		w.Fatalf("granted with base %d", r.Base)
	}
	if (st == cache.Refused || st == cache.Unknown) != (r.Err != nil) {
		w.Fatalf("%v comes with error %v", st, r.Err)
	}
}

// eventually polls until ok, which has to come true.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("it never comes true that %s", what)
		}
	}
}

// hint waits for the next hint. It calls cause again each second until one comes, because places in a
// queue expire.
func (h *host) hint(cause func()) cache.Hint {
	h.Helper()
	const each = time.Second
	for waited := time.Duration(0); waited < bound; waited += each {
		select {
		case x := <-h.store.Hints():
			return x
		case <-time.After(each):
			cause()
		}
	}
	h.Fatal("the hint never comes")
	return cache.Hint{}
}

// hinted waits for a hint of one of these kinds about key.
func (h *host) hinted(key string, kinds ...cache.HintKind) {
	h.Helper()
	h.hears(key, func() {}, kinds...)
}

// hears calls cause, which must cause a hint, and waits for a hint of one of these kinds about key.
func (h *host) hears(key string, cause func(), kinds ...cache.HintKind) {
	h.Helper()
	for cause(); ; {
		if n := h.hint(cause); slices.Contains(kinds, n.Kind) && n == (cache.Hint{Kind: n.Kind, Key: key}) {
			return
		}
	}
}

// listening makes sure that h hears hints, which are lost until its
// subscription stands.
func (h *host) listening(other *host) {
	h.Helper()
	h.skipUnless(h.store.Hints() != nil, "the store has no hints")
	h.hearsOf(other, func(cache.Hint) {})
	// Those still on their way are about a key which nobody asks about.
}

// notHinted checks that h has not heard such a hint about key, behind whose cause it
// hears of what other does now. A hint may come twice, so this is only for one that has
// no reason yet.
func (h *host) notHinted(key string, kind cache.HintKind, other *host) {
	h.Helper()
	h.hearsOf(other, func(x cache.Hint) {
		if x == (cache.Hint{Kind: kind, Key: key}) {
			h.Fatalf("a hint for nothing: %v", x)
		}
	})
}

// hearsOf has other want what h holds until h hears of it, and shows all hints before.
func (h *host) hearsOf(other *host, saw func(cache.Hint)) {
	h.Helper()
	t := h.token()
	key := fmt.Sprint("listening", t)
	heard := func() bool {
		for {
			select {
			case x := <-h.store.Hints():
				if saw(x); x.Key == key {
					return true
				}
			default:
				return false
			}
		}
	}
	if h.env.opts.PolledHints {
		heard()
		return
	}
	h.want(h.try(key, t), cache.Granted)
	h.eventually("hints arrive", func() bool {
		o := other.token()
		h.want(other.join(key, o), cache.Queued)
		h.want(other.withdraw(key, o), cache.Done)
		return heard()
	})
	h.want(h.release(key, t), cache.Done)
}
