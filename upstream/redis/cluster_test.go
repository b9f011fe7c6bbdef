package redis_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/redis"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

func onCluster(t *testing.T, c *testserver.RedisCluster, query string) *peer {
	t.Helper()
	return &peer{T: t, Store: openStore(t, c.URL()+"?"+query)}
}

func TestSiblingsStandInTheLocksSlotWhateverItsBraces(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 0)
	for i, prefix := range []string{"lock:", "", "{", "{t}", "a}{b"} {
		p, q := onCluster(t, c, "prefix="+prefix), onCluster(t, c, "prefix="+prefix)
		for _, key := range []string{"k", "{", "}", "{}", "{a}", "x{a}y", "}{", "{{a}}", "{}{a}",
			"a}b{c}d", "ä{ö}"} {
			key += fmt.Sprint(i) // keys with different prefixes can have the same name
			p.take(key+"r", cache.Shared)
			q.want(q.do(cache.OpJoin, cache.Exclusive, key+"r", q.token()), cache.Queued)
			p.take(key, cache.Exclusive)
		}
	}
	// Each node checks that a name is in one of its own slots. Each slot with a lock has one fence.
	slots := map[int]int{}
	for _, name := range c.Keys() {
		if strings.HasSuffix(name, ":fence") {
			slots[c.Slot(name)]++
		} else if _, ok := slots[c.Slot(name)]; !ok {
			slots[c.Slot(name)] += 0
		}
	}
	for slot, fences := range slots {
		if fences != 1 {
			t.Errorf("slot %d has %d fences", slot, fences)
		}
	}
}

func TestFencesOfAClusterStay(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 0)
	p := onCluster(t, c, "")
	const day = 24 * 3_600_000_000 // µs
	slot := c.Slot("{k}")
	name, owner := redis.FenceName(slot), c.Owner(slot)
	last, n := uint64(0), 0
	take := func(floor uint64, want cache.Status) {
		t.Helper()
		n++
		r := p.apply(upstream.Op{Kind: cache.OpTry, Key: fmt.Sprint("{k}", n), Token: p.token(),
			TTL: long, Floor: floor})[0]
		if p.want(r, want); want == cache.Granted && r.Base <= max(floor, last) {
			t.Errorf("base %d after %d, with floor %d", r.Base, last, floor)
		}
		last = max(last, r.Base)
		if ttl := owner.Do("PTTL", name); ttl != int64(-1) {
			t.Errorf("the counter at base %d ends in %v ms", last, ttl)
		}
	}
	for range 3 {
		take(0, cache.Granted)
	}
	for _, ahead := range []uint64{1, day / 4, day, 0, 5 * day} {
		take(last+ahead, cache.Granted)
		take(0, cache.Granted)
	}
	// A counter that would expire, is behind, or is not a number is replaced.
	for _, v := range []any{last, last - 9*day, "what", cache.MaxBase - 1} {
		owner.Do("SET", name, v, "EX", 3600)
		if v == cache.MaxBase-1 {
			owner.Do("PERSIST", name)
			take(0, cache.Refused)
		} else {
			take(0, cache.Granted)
		}
	}
}

func (p *peer) apply(ops ...upstream.Op) []cache.Result {
	p.Helper()
	res := make([]cache.Result, len(ops))
	_ = p.Apply(p.Context(), ops, res)
	return res
}

func TestASlotThatHasMovedIsFollowed(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, 0)
	p, q := onCluster(t, c, ""), onCluster(t, c, "")
	a, base := p.take("{t}a", cache.Exclusive)
	b, _ := p.take("{t}b", cache.Shared)
	w := q.token()
	q.want(q.do(cache.OpJoin, cache.Exclusive, "{t}a", w), cache.Queued)
	slot := c.Slot("{t}")
	for i := range 4 {
		to := c.Nodes[(i+1)%3]
		if to == c.Owner(slot) {
			continue
		}
		c.Move(slot, to)
		r := p.apply(upstream.Op{Kind: cache.OpRenew, Key: "{t}a", Token: a, TTL: long},
			upstream.Op{Kind: cache.OpRenew, Mode: cache.Shared, Key: "{t}b", Token: b, TTL: long},
			upstream.Op{Kind: cache.OpTry, Key: "elsewhere", Token: p.token(), TTL: long})
		p.want(r[0], cache.Done)
		p.want(r[1], cache.Done)
		p.want(r[2], cache.Granted)
		if !r[0].Contended {
			t.Error("the queue has not moved with it")
		}
		q.want(q.do(cache.OpJoin, cache.Exclusive, "{t}a", w), cache.Queued)
	}
	p.want(p.do(cache.OpRelease, 0, "{t}a", a), cache.Done)
	r := q.do(cache.OpJoin, cache.Exclusive, "{t}a", w)
	q.want(r, cache.Granted)
	if r.Base <= base {
		t.Errorf("base %d after %d", r.Base, base)
	}
}

// half is a cluster in which the slot of {t} is moving from one node to another.
type half struct {
	*testserver.RedisCluster
	slot     int
	from, to *testserver.Redis
}

func begin(t *testing.T) *half {
	c := testserver.StartRedisCluster(t, 2, 0)
	return &half{RedisCluster: c, slot: c.Slot("{t}")}
}

func (h *half) start() {
	h.to = h.Nodes[0]
	if h.Owner(h.slot) == h.to {
		h.to = h.Nodes[1]
	}
	h.from = h.BeginMove(h.slot, h.to)
}

// sibling returns the full name of a sibling.
func (h *half) sibling(t *testing.T, kind string) string {
	for _, n := range h.Keys() {
		if h.Slot(n) == h.slot && strings.Contains(n, "}:"+kind) {
			return n
		}
	}
	t.Fatalf("there is no %s", kind)
	return ""
}

func TestHoldersKeepTheirLocksWhileTheSlotIsOnItsWay(t *testing.T) {
	t.Parallel()
	h := begin(t)
	p, q := onCluster(t, h.RedisCluster, "timeout=5s"), onCluster(t, h.RedisCluster, "")
	ex, base := p.take("{t}ex", cache.Exclusive)
	sh, _ := p.take("{t}sh", cache.Shared)
	sh2, _ := q.take("{t}sh", cache.Shared)
	gone, _ := p.take("{t}gone", cache.Exclusive)
	h.start()
	renew := func(want, wantShared cache.Status) {
		t.Helper()
		r := p.apply(upstream.Op{Kind: cache.OpRenew, Key: "{t}ex", Token: ex, TTL: long},
			upstream.Op{Kind: cache.OpRenew, Mode: cache.Shared, Key: "{t}sh", Token: sh, TTL: long})
		p.want(r[0], want)
		p.want(r[1], wantShared)
		q.want(q.do(cache.OpRenew, cache.Shared, "{t}sh", sh2), wantShared)
	}
	free := func() {
		t.Helper()
		// Ops that need the siblings have to wait. No key is made on either node.
		for _, kind := range []cache.OpKind{cache.OpTry, cache.OpJoin} {
			r := q.do(kind, cache.Exclusive, "{t}new", q.token())
			q.want(r, cache.Refused)
			if !errors.Is(r.Err, redis.ErrRefused) || errors.Is(r.Err, upstream.ErrDown) {
				t.Errorf("the reason is %v", r.Err)
			}
		}
		q.take("elsewhere"+fmt.Sprint(q.last), cache.Exclusive)
	}
	renew(cache.Done, cache.Done)
	free()
	h.MoveKeys(h.slot, h.from, h.to, "lock:{t}ex")
	renew(cache.Done, cache.Done)
	h.MoveKeys(h.slot, h.from, h.to, "lock:{t}sh") // but not the set of its readers
	renew(cache.Done, cache.Refused)
	h.MoveKeys(h.slot, h.from, h.to, h.sibling(t, "readers:"))
	renew(cache.Done, cache.Done)
	free()
	p.want(p.do(cache.OpRelease, 0, "{t}gone", gone), cache.Done)
	p.want(p.do(cache.OpRelease, 0, "{t}ex", ex), cache.Done)
	r := p.do(cache.OpRenew, 0, "{t}ex", ex)
	if r.Status != cache.NotHeld && r.Status != cache.Refused {
		t.Errorf("renewed after its release it is %v", r.Status)
	}
	h.MoveKeys(h.slot, h.from, h.to)
	h.EndMove(h.slot, h.from, h.to)
	q.want(q.do(cache.OpRenew, cache.Shared, "{t}sh", sh2), cache.Done)
	p.want(p.do(cache.OpRelease, cache.Shared, "{t}sh", sh), cache.Done)
	q.want(q.do(cache.OpRelease, cache.Shared, "{t}sh", sh2), cache.Done)
	for _, key := range []string{"{t}ex", "{t}sh", "{t}gone", "{t}new"} {
		if _, next := q.take(key, cache.Exclusive); next <= base {
			t.Errorf("base %d after %d", next, base)
		}
	}
}

// Other readers still hold the lock, so its key and the entry of the ended lease exist.
func TestALeaseThatHasEndedIsNotRenewedOnItsWay(t *testing.T) {
	t.Parallel()
	h := begin(t)
	p, q := onCluster(t, h.RedisCluster, ""), onCluster(t, h.RedisCluster, "")
	ended, _ := p.take("{t}", cache.Shared)
	held, _ := q.take("{t}", cache.Shared)
	h.start()
	member := p.Instance() + "." + strconv.FormatUint(ended, 36)
	const past = 1
	if n := h.from.Do("ZADD", h.sibling(t, "readers:"), "XX", "CH", past, member); n != int64(1) {
		t.Fatalf("%v leases were changed", n)
	}
	p.want(p.do(cache.OpRenew, cache.Shared, "{t}", ended), cache.NotHeld)
	q.want(q.do(cache.OpRenew, cache.Shared, "{t}", held), cache.Done)
}

func TestReleasedOnItsWayASharedLockIsNotTornApart(t *testing.T) {
	t.Parallel()
	h := begin(t)
	p, q := onCluster(t, h.RedisCluster, ""), onCluster(t, h.RedisCluster, "")
	a, _ := p.take("{t}", cache.Shared)
	b, _ := q.take("{t}", cache.Shared)
	h.start()
	h.MoveKeys(h.slot, h.from, h.to, "lock:{t}")
	p.want(p.do(cache.OpRelease, cache.Shared, "{t}", a), cache.Refused)
	p.want(p.do(cache.OpWithdraw, cache.Shared, "{t}", a), cache.Refused)
	h.MoveKeys(h.slot, h.from, h.to)
	h.EndMove(h.slot, h.from, h.to)
	p.want(p.do(cache.OpRelease, cache.Shared, "{t}", a), cache.Done)
	p.want(p.do(cache.OpTry, cache.Exclusive, "{t}", p.token()), cache.Busy)
	q.want(q.do(cache.OpRelease, cache.Shared, "{t}", b), cache.Done)
	p.take("{t}", cache.Exclusive)
}

func TestAClusterThatIsNotOneIsRefused(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t)
	for url, says := range map[string]string{
		"redis+cluster://" + srv.Addr(): "redis://",
		"redis+cluster://127.0.0.1:1":   "refused",
	} {
		if _, err := openURL(t, url); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", url, err)
		}
	}
	// This is a single node without slots.
	one := testserver.StartRedis(t, "--cluster-enabled", "yes")
	if _, err := openURL(t, "redis+cluster://"+one.Addr()); !errors.Is(err, redis.ErrServer) ||
		!strings.Contains(err.Error(), "no slots") {
		t.Errorf("without slots: %v", err)
	}
	p := lazyPeer(t, "redis+cluster://"+one.Addr())
	p.want(p.do(cache.OpTry, 0, "k", p.token()), cache.Refused)
	one.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	p.eventually("it is noticed that it serves", func() bool {
		return p.do(cache.OpTry, 0, "k", p.token()).Status == cache.Granted
	})
}

func TestHintsFollowTheSlotOfTheirChannel(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 2, 0)
	p, q := onCluster(t, c, ""), onCluster(t, c, "")
	p.take("k", cache.Exclusive)
	slot := c.Slot("locksidecar:hint:" + p.Instance())
	for range 3 {
		to := c.Nodes[0]
		if c.Owner(slot) == to {
			to = c.Nodes[1]
		}
		c.Move(slot, to)
		for len(p.Hints()) > 0 {
			<-p.Hints()
		}
		p.eventually("hints arrive from the other node", func() bool {
			tok := q.token()
			q.want(q.do(cache.OpJoin, 0, "k", tok), cache.Queued)
			q.want(q.do(cache.OpWithdraw, 0, "k", tok), cache.Done)
			select {
			case h := <-p.Hints():
				return h == upstream.Hint{Kind: cache.HintContended, Key: "k"}
			default:
				return false
			}
		})
		if n := to.Do("PUBSUB", "SHARDCHANNELS").([]any); len(n) == 0 {
			t.Error("nobody listens there")
		}
	}
}

func TestSlotsAreTheServersOwn(t *testing.T) {
	t.Parallel()
	srv := testserver.StartRedis(t, "--cluster-enabled", "yes")
	srv.Do("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
	p := lazyPeer(t, "redis+cluster://"+srv.Addr()+"?prefix=")
	p.eventually("it works", func() bool { return p.do(cache.OpTry, 0, "first", p.token()).Status == cache.Granted })
	// If a sibling were in another slot than its lock, the server would reply CROSSSLOT.
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 30 {
		var ops []upstream.Op
		for len(ops) < 200 {
			key := make([]byte, 1+rnd.IntN(12))
			for i := range key {
				key[i] = "{}{}abc"[rnd.IntN(7)]
			}
			if !slices.ContainsFunc(ops, func(o upstream.Op) bool { return o.Key == string(key) }) {
				ops = append(ops, upstream.Op{Kind: cache.OpTry, Mode: cache.Mode(rnd.IntN(2)),
					Key: string(key), Token: p.token(), TTL: long})
			}
		}
		for i, r := range p.apply(ops...) {
			if p.want(r, cache.Granted); t.Failed() {
				t.Fatal(ops[i].Key)
			}
			ops[i].Kind = cache.OpRelease
		}
		for _, r := range p.apply(ops...) {
			p.want(r, cache.Done)
		}
	}
}
