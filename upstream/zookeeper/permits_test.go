package zookeeper_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// sem is a semaphore and one host that uses it.
type sem struct {
	*peer
	key   string
	limit uint32
}

func (s sem) op(kind cache.OpKind, token uint64) upstream.Op {
	return upstream.Op{Kind: kind, Mode: cache.Permit, Limit: s.limit, Key: s.key,
		Token: token, TTL: long}
}

func (s sem) do(kind cache.OpKind, token uint64) cache.Result {
	res, _ := s.apply(s.op(kind, token))
	return res[0]
}

// answered repeats an op until the server has answered it, as peer.answered does.
func (s sem) answered(kind cache.OpKind, token uint64) cache.Result {
	s.Helper()
	return s.peer.answered(func() cache.Result { return s.do(kind, token) })
}

// take takes n permits in one batch, which is repeated until the server has answered it.
func (s sem) take(n int) (tokens []uint64, bases []uint64) {
	s.Helper()
	ops := make([]upstream.Op, n)
	for i := range ops {
		ops[i] = s.op(cache.OpTry, s.token())
		tokens = append(tokens, ops[i].Token)
	}
	var res []cache.Result
	s.eventually("it is answered", func() bool {
		res, _ = s.apply(ops...)
		return !slices.ContainsFunc(res, func(r cache.Result) bool {
			return r.Status == cache.Refused || r.Status == cache.Unknown
		})
	})
	for _, r := range res {
		s.want(r, cache.Granted)
		bases = append(bases, r.Base)
	}
	return tokens, bases
}

// queue joins, and must have to wait.
func (s sem) queue() uint64 {
	s.Helper()
	token := s.token()
	s.want(s.answered(cache.OpJoin, token), cache.Queued)
	return token
}

// path returns the path of the semaphore's node below the chroot.
func (s sem) path() string { return "/.locksidecar/permits/" + s.key }

// told waits for a hint about a permit.
func (s sem) told(kind cache.HintKind, token uint64) {
	s.Helper()
	deadline := time.After(bound)
	for {
		select {
		case h := <-s.Hints():
			if h == (upstream.Hint{Kind: kind, Mode: cache.Permit, Key: s.key, Token: token}) {
				return
			}
		case <-deadline:
			s.Fatalf("hint %d about %s, %d never comes", kind, s.key, token)
		}
	}
}

func TestEachPermitOfABatchHasItsOwnBase(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p := newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	s, other := sem{p, "k", 200}, sem{p, "l", 200}
	lock, lockBase := p.take("k", cache.Exclusive)
	for range 2 { // the second time the semaphore's node exists
		tokens, bases := s.take(100)
		var ops []upstream.Op
		for range 40 { // of two semaphores, with something to release and a lock
			ops = append(ops, s.op(cache.OpJoin, s.token()), other.op(cache.OpTry, s.token()))
		}
		ops = append(ops, s.op(cache.OpRelease, tokens[0]),
			upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint("lock", tokens[0]), Token: p.token(), TTL: long})
		res, err := p.apply(ops...)
		of := map[string]map[uint64]bool{"k": {}, "l": {}}
		for _, b := range bases {
			of["k"][b] = true
		}
		for i, r := range res[:80] {
			if r.Status != cache.Granted || of[ops[i].Key][r.Base] {
				t.Fatalf("%s is %v (%v) with base %d", ops[i].Key, r.Status, err, r.Base)
			}
			of[ops[i].Key][r.Base] = true
		}
		p.want(res[80], cache.Done)
		p.want(res[81], cache.Granted)
		if len(of["k"]) != 140 {
			t.Errorf("140 permits have %d bases", len(of["k"]))
		}
		for _, name := range children(t, srv, s.path()) {
			if _, stat, err := srv.Admin().Get(s.path() + "/" + name); err != nil ||
				!of["k"][uint64(stat.Czxid)] {
				t.Errorf("%s was made at %d, which is nobody's base (%v)", name, stat.Czxid, err)
			}
		}
		n, err := p.Sweep(t.Context(), func(_ string, token uint64) bool { return token == lock })
		if n != 180 || err != nil { // all but what was released
			t.Errorf("%d are swept (%v)", n, err)
		}
	}
	if r := p.want(p.try("k", lock), cache.Granted); r.Base != lockBase {
		t.Errorf("the lock has base %d after %d", r.Base, lockBase)
	}
}

func TestTheListGoesOnFromLocksToPermits(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, o := newPeer(t, srv.URL()+"/l"), newPeer(t, srv.URL()+"/l")
	p.take("a", cache.Exclusive)
	o.take("b", cache.Shared)
	mine, other := sem{p, "a", 3}, sem{o, "a", 3}
	_, bases := mine.take(2)
	slices.Sort(bases) // the order within a batch is not promised
	_, more := other.take(1)
	other.queue()
	mine.queue()
	sem{o, "x/y", 1}.take(1)
	sem{o, "z", 1}.take(1)
	for _, limit := range []int{1, 2, 3, 10} {
		var got []string
		for cursor := ""; ; {
			locks, next, err := p.List(t.Context(), "", cursor, limit)
			if err != nil || len(locks) > limit {
				t.Fatal(locks, err)
			}
			for _, l := range locks {
				got = append(got, fmt.Sprint(l.Key, " ", l.Mode, " ", l.Mine, " ", l.Waiters))
				if l.Key == "a" && l.Mode == cache.Permit &&
					(l.Base != append(bases, more...)[len(got)-3] ||
						!strings.HasPrefix(l.Name, "/l/.locksidecar/permits/a/p-") &&
							!strings.HasPrefix(l.Name, "/l/.locksidecar/permits/a/t-") ||
						!strings.HasPrefix(l.Holder, "session 0x") || l.Left != -1) {
					t.Errorf("it is %+v", l)
				}
			}
			if cursor = next; cursor == "" {
				break
			}
		}
		want := "a exclusive true 0, b shared false 0, a permit true 2, a permit true 2, a permit false 2, x/y permit false 0, z permit false 0"
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("by %d they are %s", limit, s)
		}
	}
	if locks, _, err := p.List(t.Context(), "x", "", 10); err != nil || len(locks) != 1 ||
		locks[0].Key != "x/y" {
		t.Error(locks, err)
	}
}

func TestPermitsThatCannotBe(t *testing.T) {
	t.Parallel()
	// The server does not remove the empty semaphore.
	srv := testserver.StartZooKeeper(t, noServerRemoval)
	p := newPeer(t, srv.URL())
	none, one := sem{p, "k", 0}, sem{p, "k", 1}
	says(t, p.want(none.do(cache.OpTry, p.token()), cache.Refused).Err, "at least one permit")
	says(t, p.want(none.do(cache.OpJoin, p.token()), cache.Refused).Err, "at least one permit")
	tokens, _ := one.take(1)
	says(t, p.want(one.do(cache.OpDowngrade, tokens[0]), cache.Refused).Err, "cannot be downgraded")
	p.want(none.do(cache.OpRelease, tokens[0]), cache.Done) // a release needs no limit

	// Foreign nodes there hold nothing.
	c := srv.Admin()
	for _, name := range []string{"config", "lock-0000000000", "p-x"} {
		if _, err := c.Create(one.path()+"/"+name, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
	}
	one.take(1)
}

// Each release wakes the next waiter and no other, however the places are distributed over hosts.
func TestAReleaseWakesOneWhoWaitsForAPermit(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	var hosts []sem
	for range 4 {
		hosts = append(hosts, sem{newPeer(t, srv.URL()+"?session=30s&timeout=10s"), "a", 3})
	}
	held, _ := hosts[0].take(3)
	type waits struct {
		sem
		token uint64
	}
	var q []waits
	for _, i := range []int{1, 2, 2, 3, 1, 3, 3, 2} {
		q = append(q, waits{hosts[i], hosts[i].queue()})
	}
	others := func(who sem, kind cache.HintKind) {
		t.Helper()
		for _, h := range hosts {
			for len(h.Hints()) > 0 {
				if x := <-h.Hints(); x.Kind == kind && h.peer != who.peer {
					t.Errorf("token %d of another host is told to come", x.Token)
				}
			}
		}
	}
	others(hosts[1], cache.HintAvailable) // the next waiter gets a hint about the waiters behind it
	releaser := make(map[uint64]sem)
	for _, tok := range held {
		releaser[tok] = hosts[0]
	}
	tokens := held
	for _, w := range q {
		hosts[0].want(releaser[tokens[0]].do(cache.OpRelease, tokens[0]), cache.Done)
		w.told(cache.HintAvailable, w.token)
		others(w.sem, cache.HintAvailable)
		w.want(w.do(cache.OpJoin, w.token), cache.Granted)
		for len(w.Hints()) > 0 { // it may have been told twice
			<-w.Hints()
		}
		tokens = append(tokens[1:], w.token)
		releaser[w.token] = w.sem
		tokens[0], tokens[2] = tokens[2], tokens[0] // not always the oldest
		if n := watches(t, srv); n > 2*len(hosts)+2 {
			t.Errorf("there are %d watches", n)
		}
	}
}

// watches returns the number of watches at the server.
func watches(t testing.TB, srv *testserver.ZooKeeper) (n int) {
	t.Helper()
	said := srv.Say("wchs")
	if _, err := fmt.Sscanf(said[strings.Index(said, "Total watches:"):], "Total watches:%d",
		&n); err != nil {
		t.Fatal(said, err)
	}
	return n
}

func TestTheLimitIsWhatIsSaidLast(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, o := newPeer(t, srv.URL()), newPeer(t, srv.URL())
	two, three, one := sem{p, "a", 2}, sem{o, "a", 3}, sem{o, "a", 1}
	held, _ := two.take(2)
	q := two.queue()
	o.want(three.do(cache.OpTry, o.token()), cache.Busy) // it does not pass the waiter
	p.want(sem{p, "a", 3}.do(cache.OpJoin, q), cache.Granted)
	for _, tok := range append(held, q) { // the limit is lower, but no holder loses its permit
		p.want(sem{p, "a", 1}.do(cache.OpTry, tok), cache.Granted)
	}
	w := one.queue()
	for _, tok := range held {
		p.want(two.do(cache.OpRelease, tok), cache.Done)
		o.want(one.do(cache.OpJoin, w), cache.Queued)
	}
	p.want(two.do(cache.OpRelease, q), cache.Done)
	one.told(cache.HintAvailable, w)
	o.want(one.do(cache.OpJoin, w), cache.Granted)
}

// Several batches of one host with the same semaphore are in flight together, with renewals.
func TestBatchesOfOneSemaphoreTogether(t *testing.T) {
	t.Parallel()
	srv := testserver.StartZooKeeper(t)
	p, o := newPeer(t, srv.URL()+"?session=30s&timeout=10s"),
		newPeer(t, srv.URL()+"?session=30s&timeout=10s")
	mine := sem{p, "a", 12}
	keep, _ := mine.take(4)
	var mu sync.Mutex
	inside, bases := 4, map[uint64]bool{}
	var wg sync.WaitGroup
	work := func(s sem, tokens []uint64) {
		held := map[uint64]bool{}
		for range 30 {
			var ops []upstream.Op
			for i, tok := range tokens {
				if tok == 0 {
					mu.Lock()
					tokens[i] = s.token()
					mu.Unlock()
				}
				kind := cache.OpJoin
				if held[tokens[i]] {
					kind = cache.OpRelease
					mu.Lock()
					inside--
					mu.Unlock()
				}
				ops = append(ops, s.op(kind, tokens[i]))
			}
			res, err := s.apply(ops...)
			mu.Lock()
			for i, r := range res {
				switch {
				case ops[i].Kind == cache.OpRelease && r.Status == cache.Done:
					delete(held, tokens[i])
					tokens[i] = 0
				case r.Status == cache.Granted:
					held[tokens[i]] = true
					if inside++; inside > 12 || bases[r.Base] {
						t.Errorf("%d are inside; base %d", inside, r.Base)
					}
					bases[r.Base] = true
				case r.Status != cache.Queued:
					t.Errorf("%v is %v (%v)", ops[i].Kind, r.Status, err)
				}
			}
			mu.Unlock()
		}
		mu.Lock()
		inside -= len(held) // others get these while the rest are still in use
		mu.Unlock()
		for _, tok := range tokens {
			s.do(cache.OpWithdraw, tok)
		}
	}
	for range 2 {
		wg.Go(func() { work(mine, make([]uint64, 4)) })
		wg.Go(func() { work(sem{o, "a", 12}, make([]uint64, 3)) })
	}
	wg.Go(func() {
		for range 30 {
			res, err := p.apply(mine.op(cache.OpRenew, keep[0]), mine.op(cache.OpRenew, keep[1]),
				mine.op(cache.OpRenew, keep[2]), mine.op(cache.OpRenew, keep[3]))
			for _, r := range res {
				if r.Status != cache.Done {
					t.Errorf("it is %v (%v)", r.Status, err)
				}
			}
		}
	})
	wg.Wait()
	if left := children(t, srv, mine.path()); len(left) != 4 {
		t.Errorf("there are %d nodes: %v", len(left), left)
	}
}

func TestManyPermitsOfOneSemaphore(t *testing.T) {
	t.Parallel()
	const many = 1000
	srv := testserver.StartZooKeeper(t)
	p, o := newPeer(t, srv.URL()+"?session=40s&timeout=20s"),
		newPeer(t, srv.URL()+"?session=40s&timeout=20s")
	mine, other := sem{p, "a", many}, sem{o, "a", many}
	var held []uint64
	bases := map[uint64]bool{}
	for range many / 250 {
		tokens, bs := mine.take(250)
		held = append(held, tokens...)
		for _, b := range bs {
			bases[b] = true
		}
	}
	if len(bases) != many {
		t.Errorf("%d permits have %d bases", many, len(bases))
	}
	o.want(other.do(cache.OpTry, o.token()), cache.Busy)
	var renews []upstream.Op
	for _, tok := range held[:upstream.MaxBatch] {
		renews = append(renews, mine.op(cache.OpRenew, tok))
	}
	res, err := p.apply(renews...)
	for _, r := range res {
		if r.Status != cache.Done {
			t.Fatalf("it is %v (%v)", r.Status, err)
		}
	}
	q := other.queue()
	p.want(sem{p, "a", 1}.do(cache.OpPeek, 0), cache.Busy)
	listed, pages := map[string]bool{}, 0
	for cursor := ""; ; pages++ {
		locks, next, err := o.List(t.Context(), "a", cursor, 300)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range locks {
			if l.Key != "a" || l.Mode != cache.Permit || l.Mine || l.Foreign || l.Waiters != 1 ||
				!bases[l.Base] || listed[l.Name] {
				t.Fatalf("it is %+v", l)
			}
			listed[l.Name] = true
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if len(listed) != many || pages != 3 {
		t.Errorf("%d are listed on %d pages", len(listed), pages+1)
	}
	p.want(mine.do(cache.OpRelease, held[many/2]), cache.Done)
	other.told(cache.HintAvailable, q)
	o.want(other.do(cache.OpJoin, q), cache.Granted)
	o.want(other.do(cache.OpTry, o.token()), cache.Busy)
}
