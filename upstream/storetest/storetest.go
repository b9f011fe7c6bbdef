package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
)

// Options describes what a driver's store does not support, and how a test can inspect it.
type Options struct {
	// OneHost omits the tests with several hosts, because the store has only one.
	OneHost bool
	// NoQueue omits the tests of a queue between hosts (Info.Queue is false).
	NoQueue bool
	// Counters omits the check that bases of different keys differ, because not all keys share a
	// counter.
	Counters bool
	// KeepsPlaces means that a queued host keeps an available key from others until it withdraws.
	KeepsPlaces bool
	// PolledHints means that the store finds its hints by polling, so there is no subscription to
	// wait for.
	PolledHints bool
	// OneByOne runs tests one by one, because the store is made for few hosts that acquire permits
	// at the same time.
	OneByOne bool
	// HeldUnknown has the modes of leases for which no other host can see since when they are held.
	HeldUnknown []cache.Mode
	// NewShortLived makes hosts that a test ends, as NewHost does. Their store sessions end seconds
	// after they are closed. If it is nil, NewHost is used. All other store sessions should outlast
	// a machine that stalls.
	NewShortLived NewHost
	// Server is the server behind the stores, for the tests of its faults. They are omitted if it
	// is nil.
	Server *Server
	// Residue lists the state that the store keeps of locks with prefix, and anything else that it
	// would never remove. It is optional.
	Residue func(t testing.TB, prefix string) []string
}

// NewHost makes a store for one more host. Stores with the same prefix share their locks. The suite
// closes the store.
type NewHost func(t testing.TB, prefix string) upstream.Store

// Run runs the suite. Its tests run at the same time, each with its own prefix, except the tests
// that cause faults at the server. They begin after the test that calls Run has returned.
func Run(t *testing.T, newHost NewHost, opts Options) {
	e := &env{newHost: newHost, opts: opts}
	if opts.Server != nil {
		// These tests are first, because others raise fences far above the clock, and after a
		// restart fences follow the clock.
		for _, c := range faultTests {
			t.Run("faults: "+c.name, func(t *testing.T) { c.run(e.world(t)) })
		}
	}
	permits := e.world(t).host().store.Info().Permits
	for _, group := range []struct {
		name    string // begins the names of its tests, which -run selects
		hosts   bool   // needs several hosts
		queue   bool   // needs a queue between them
		permits bool   // needs semaphores
		tests   []test
	}{
		{name: "leases", tests: leaseTests},
		{name: "fences", tests: fenceTests},
		{name: "batch", tests: batchTests},
		{name: "model", tests: modelTests},
		{name: "hosts", hosts: true, tests: hostTests},
		{name: "readers", hosts: true, tests: readerTests},
		{name: "queue", hosts: true, queue: true, tests: queueTests},
		{name: "races", hosts: true, tests: raceTests},
		{name: "registry", hosts: true, tests: registryTests},
		{name: "held", hosts: true, tests: heldTests},
		{name: "permits", permits: true, tests: permitTests},
		{name: "permits", hosts: true, permits: true, tests: permitHostTests},
		{name: "permits", hosts: true, queue: true, permits: true, tests: permitQueueTests},
	} {
		if group.hosts && opts.OneHost || group.queue && opts.NoQueue || group.permits && !permits {
			continue
		}
		for _, c := range group.tests {
			t.Run(group.name+": "+c.name, func(t *testing.T) {
				if !opts.OneByOne {
					t.Parallel()
				}
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
	// held while Options.Residue runs: the servers' own connections are made at the first use
	residue sync.Mutex
}

// skipUnless skips a test of a feature that the store does not have.
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
	long  = time.Minute            // a TTL that does not end in any test
	short = 200 * time.Millisecond // a TTL that ends in a test
	bound = time.Minute            // for events that occur soon; only reached if they never do
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

// end closes the host's store. Its leases last until their deadlines.
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

// ttls reports whether each lease ends with its own TTL in the store.
func (h *host) ttls() bool { return h.store.Info().Session == 0 }

// apply carries out a batch.
func (h *host) apply(ops ...cache.Op) []cache.Result {
	h.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	results := make([]cache.Result, len(ops))
	for i := range results {
		results[i].Status = 99 // a driver must set every status
	}
	_ = h.store.Apply(ctx, ops, results)
	return results
}

func (h *host) do(
	kind cache.OpKind, mode cache.Mode, key string, token uint64, ttl time.Duration,
) cache.Result {
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

// joinBriefly makes a short-lived join, as a try does where leases linger.
func (h *host) joinBriefly(key string, token uint64) cache.Result {
	h.Helper()
	return h.apply(cache.Op{Kind: cache.OpJoin, ShortLived: true, Key: key,
		Token: token, TTL: long})[0]
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

// take is a try that must succeed. It returns the token and the base.
func (h *host) take(key string, mode cache.Mode) (token, base uint64) {
	h.Helper()
	token = h.token()
	r := h.do(cache.OpTry, mode, key, token, long)
	h.want(r, cache.Granted)
	return token, r.Base
}

// takeShort is takeFor with a TTL that ends soon.
func (h *host) takeShort(key string, mode cache.Mode) (token, base uint64) {
	h.Helper()
	return h.takeFor(key, mode, short)
}

// takeFor is take with this TTL. An answer is slow if the machine is busy. After a slow one,
// takeFor tries again with other tokens, because the remains of the earlier lease may keep the key
// busy for a while.
func (h *host) takeFor(key string, mode cache.Mode, ttl time.Duration) (token, base uint64) {
	h.Helper()
	late := false
	for end := time.Now().Add(bound); ; {
		token = h.token()
		begin := time.Now()
		r := h.do(cache.OpTry, mode, key, token, ttl)
		late = late || slow(begin, ttl)
		if r.Status == cache.Granted || !late || time.Now().After(end) {
			h.want(r, cache.Granted)
			return token, r.Base
		}
	}
}

// slow reports whether an op with this TTL, which began at begin, has taken so long that a store
// may refuse its lease.
func slow(begin time.Time, ttl time.Duration) bool { return time.Since(begin) >= ttl/2 }

// want fails the test unless r has the status st.
func (w *world) want(r cache.Result, st cache.Status) {
	w.Helper()
	Want(w.T, r, st)
}

// eventually polls until ok returns true, which it must.
func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	Eventually(w.T, bound, what, ok)
}

// hint waits for the next hint. It calls cause again each second until one comes, because places in
// a queue expire.
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
	h.Fatal("the hint does not arrive")
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
		if n := h.hint(cause); slices.Contains(kinds, n.Kind) &&
			n == (cache.Hint{Kind: n.Kind, Key: key}) {
			return
		}
	}
}

// listening waits until h receives hints. They are lost until its subscription is in effect.
func (h *host) listening(other *host) {
	h.Helper()
	h.skipUnless(h.store.Hints() != nil, "the store has no hints")
	h.hearsOf(other, func(cache.Hint) {})
	// Hints that are still in transit are about a key that no test uses.
}

// notHinted checks that h has not received such a hint about key. Then h would have received it
// before the hint that other causes now. A hint may arrive twice, so this is only for one without a
// cause so far.
func (h *host) notHinted(key string, kind cache.HintKind, other *host) {
	h.Helper()
	h.hearsOf(other, func(x cache.Hint) {
		if x == (cache.Hint{Kind: kind, Key: key}) {
			h.Fatalf("a hint for nothing: %v", x)
		}
	})
}

// hearsOf makes other wait for a key that h holds until h receives the hint. It calls saw with all
// hints before.
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
