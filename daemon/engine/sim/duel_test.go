package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream/redis"
)

// What is asked for in a duel, and how its two sides are compared.

// op is the next op of host n about key: a new one, one about what it has there,
// or an old one.
func (d *duel) op(n int, key string) cache.Op {
	if old := d.old[n]; len(old) > 0 && d.rnd.IntN(5) == 0 {
		if op := old[d.rnd.IntN(len(old))]; op.Key == key {
			return op
		}
	}
	op := cache.Op{Key: key, Mode: cache.Mode(d.rnd.IntN(2)),
		TTL: time.Duration(d.ttls[d.rnd.IntN(len(d.ttls))]) * time.Millisecond}
	kinds := []cache.OpKind{cache.OpTry, cache.OpTry, cache.OpJoin, cache.OpJoin,
		cache.OpJoin, cache.OpPeek}
	if mine := d.mine(n, key); len(mine) > 0 && d.rnd.IntN(3) > 0 {
		p := mine[d.rnd.IntN(len(mine))]
		op.Token, op.Mode = p.t.n, p.mode
		kinds = []cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpJoin, cache.OpRenew, cache.OpRenew,
			cache.OpDowngrade,
			cache.OpRelease, cache.OpRelease, cache.OpWithdraw}
	} else {
		d.last[n]++
		op.Token = d.last[n]
	}
	op.Kind = kinds[d.rnd.IntN(len(kinds))]
	op.Rebase = op.Kind == cache.OpRenew && d.rnd.IntN(3) == 0
	op.ShortLived = op.Kind == cache.OpJoin && d.rnd.IntN(3) == 0
	return op
}

// mine is what host n has at key, leases and places.
func (d *duel) mine(n int, key string) (mine []place) {
	k := d.model.keys[key]
	if k == nil {
		return nil
	}
	if k.kind == keyExclusive {
		mine = append(mine, place{k.token, cache.Exclusive})
	}
	for _, x := range k.readers {
		mine = append(mine, place{x.t, cache.Shared})
	}
	mine = append(mine, k.queue...)
	return slices.DeleteFunc(mine, func(p place) bool { return p.t.inst != uint32(n+1) })
}

// plainLocker locks, or gives back.
func (d *duel) plainLocker() bool {
	key, ttl := duelKeys[d.rnd.IntN(len(duelKeys))], d.ttls[d.rnd.IntN(len(d.ttls))]
	if d.full {
		return true // it would be refused
	}
	d.plain++
	n, t0 := d.plain, d.serverTime()
	got := d.srv.Do("SET", redis.DefaultPrefix+key, fmt.Sprintf("plain-%d", n), "NX", "PX", ttl) != nil
	gives := d.rnd.IntN(2) == 0
	if got && gives {
		d.srv.Do("DEL", redis.DefaultPrefix+key)
	}
	stands := d.look()
	if !d.passed(t0) {
		return false
	}
	want := d.model.foreignTake(key, n, ttl)
	if want && gives {
		d.model.foreignGive(key, n)
	}
	if !d.clear(t0) {
		return false
	}
	if got != want {
		d.t.Errorf("%s: a plain locker gets %s: %v, and the model says %v", d.what, key, got, want)
	}
	d.stands(stands)
	return true
}

// same compares one answer, its base apart.
func (d *duel) same(n int, op *cache.Op, got, want cache.Result) {
	asked := want.Status == cache.Busy || want.Status == cache.Queued // else it says nothing
	near := !asked || got.Left == want.Left || got.Left >= 0 && want.Left >= 0 &&
		d.near(got.Left/ms, want.Left/ms)
	if got.Status != want.Status || got.Contended != want.Contended || got.Mode != want.Mode ||
		(got.Base > 0) != (want.Base > 0) || !near {
		d.t.Errorf("%s: host %d's %v %v %s %d (ttl %v, rebase %v) is answered %+v, and the model says %+v; it knows %+v",
			d.what, n+1, op.Kind, op.Mode, op.Key, op.Token, op.TTL, op.Rebase, got, want,
			*d.model.keys[op.Key])
	}
}

func (d *duel) near(a, b int64) bool { return max(a-b, b-a) <= d.slop+2 }

// bases compares the order of fence bases: with each other, with earlier ones,
// and with the floor.
func (d *duel) bases(got, want []cache.Result, floors [2]uint64) {
	top := floors
	for i := range got {
		g, w := got[i].Base, want[i].Base
		if g == 0 || w == 0 {
			continue
		}
		if g <= floors[0] || w <= floors[1] {
			d.t.Errorf("%s: base %d, and the floor was %d; the model gives %d above %d", d.what, g,
				floors[0], w, floors[1])
		}
		for j := range i {
			if o := got[j].Base; o > 0 && want[j].Base > 0 &&
				cmp.Compare(g, o) != cmp.Compare(w, want[j].Base) {
				d.t.Errorf("%s: bases %d and %d, and the model has the other order", d.what, o, g)
			}
		}
		top[0], top[1] = max(top[0], g), max(top[1], w)
	}
	if top != floors {
		d.floor = top
	}
}

func (d *duel) serverTime() int64 {
	t, err := d.srv.Admin().Time(d.t.Context()).Result()
	if err != nil {
		d.t.Fatal(err)
	}
	return t.UnixMicro()
}

// standing is what a real server has at a key.
type standing struct {
	value                   *goredis.StringCmd
	left                    *goredis.DurationCmd
	queue, waiters, readers *goredis.ZSliceCmd
}

func (d *duel) look() []standing {
	const beside = "locksidecar:{}:"
	p, all := d.srv.Admin().Pipeline(), make([]standing, len(duelKeys))
	for i, key := range duelKeys {
		key = redis.DefaultPrefix + key
		all[i] = standing{p.Get(d.t.Context(), key), p.PTTL(d.t.Context(), key),
			p.ZRangeWithScores(d.t.Context(), beside+"queue:"+key, 0, -1),
			p.ZRangeWithScores(d.t.Context(), beside+"waiters:"+key, 0, -1),
			p.ZRangeWithScores(d.t.Context(), beside+"readers:"+key, 0, -1)}
	}
	if _, err := p.Exec(d.t.Context()); err != nil && err != goredis.Nil {
		d.t.Fatal(err)
	}
	return all
}

// stands compares what stands at the keys.
func (d *duel) stands(all []standing) {
	s := &script{m: d.model, now: d.model.clock() / 1000}
	for i, name := range duelKeys {
		k, is := s.at(name), all[i]
		var x redisKey
		switch v := is.value.Val(); {
		case v == "":
		case v == "locksidecar:readers":
			x.kind = keyShared
			x.readers = d.members(is.readers.Val())
		case strings.HasPrefix(v, "plain-"):
			x.kind = keyForeign
			x.token.n, _ = strconv.ParseUint(v[len("plain-"):], 10, 64)
		default:
			x.kind, x.token = keyExclusive, d.token(v)
		}
		for _, w := range d.members(is.queue.Val()) {
			x.queue = append(x.queue, place{w.t, w.mode})
		}
		x.waiters = d.members(is.waiters.Val())
		ok := x.kind == k.kind && x.token == k.token && slices.Equal(x.queue, k.queue) &&
			d.sameEnds(x.waiters, k.waiters) &&
			(x.kind == keyFree || d.near(is.left.Val().Milliseconds(), k.exp-s.now)) &&
			(x.kind != keyShared || d.sameEnds(x.readers, k.readers))
		if !ok {
			d.t.Errorf("%s: at %s there is %+v for %v, and the model has %+v at %d", d.what, name, x,
				is.left.Val(), *k, s.now)
		}
	}
}

// members returns the members of a sorted set, with their scores as ends.
func (d *duel) members(zs []goredis.Z) (all []reader) {
	for _, z := range zs {
		name, r := z.Member.(string), reader{ends: int64(z.Score)}
		if strings.Index(name, ".") != len(d.stores[0].Instance()) { // a waiter's: the mode comes first
			if name[0] == 's' {
				r.mode = cache.Shared
			}
			name = name[1:]
		}
		r.t = d.token(name)
		all = append(all, r)
	}
	return all
}

func (d *duel) token(s string) token {
	inst, n, _ := strings.Cut(s, ".")
	num, err := strconv.ParseUint(n, 36, 64)
	at := slices.IndexFunc(d.stores, func(o *redis.Store) bool { return o.Instance() == inst })
	if err != nil || at < 0 {
		d.t.Fatalf("%s: %q is not a token", d.what, s)
	}
	return token{uint32(at + 1), num}
}

// sameEnds compares members, in any order, and their ends.
func (d *duel) sameEnds(a, b []reader) bool {
	by := func(x, y reader) int {
		return cmp.Or(cmp.Compare(x.t.inst, y.t.inst), cmp.Compare(x.t.n, y.t.n),
			cmp.Compare(x.mode, y.mode))
	}
	a, b = slices.SortedFunc(slices.Values(a), by), slices.SortedFunc(slices.Values(b), by)
	return slices.EqualFunc(a, b, func(x, y reader) bool {
		return x.t == y.t && x.mode == y.mode && d.near(x.ends, y.ends)
	})
}

// permits carries out random ops about one semaphore on the model and on the real
// server, one by one, and compares answers and what stands there. No lease ends
// meanwhile.
func (d *duel) permits(seed uint64) {
	const limit, key = 3, "s"
	d.rnd, d.model = rand.New(rand.NewPCG(seed, 5)),
		newRedisModel(func() int64 { return d.now }, func(uint32, cache.HintKind, string) {})
	d.model.lease = d.lease
	d.srv.Do("FLUSHALL")
	var known []token
	for step := range 120 {
		op := cache.Op{Mode: cache.Permit, Limit: limit, Key: key,
			TTL: time.Duration(d.ttls[d.rnd.IntN(len(d.ttls))]) * time.Millisecond}
		op.Kind = []cache.OpKind{cache.OpTry, cache.OpTry, cache.OpJoin, cache.OpJoin, cache.OpRenew,
			cache.OpRelease, cache.OpRelease,
			cache.OpWithdraw, cache.OpPeek}[d.rnd.IntN(9)]
		n := d.rnd.IntN(len(d.stores))
		switch {
		case op.Kind == cache.OpPeek:
		case len(known) > 0 && d.rnd.IntN(4) > 0:
			t := known[len(known)-1-d.rnd.IntN(min(8, len(known)))]
			n, op.Token = int(t.inst)-1, t.n
		default:
			d.last[n]++
			op.Token = d.last[n]
			known = append(known, token{uint32(n + 1), op.Token})
		}
		var got, want [1]cache.Result
		if err := d.stores[n].Apply(d.t.Context(), []cache.Op{op}, got[:]); err != nil {
			d.t.Fatal(err)
		}
		d.now = d.serverTime()
		want[0].Left = -1
		d.model.run(uint32(n+1), []*cache.Op{&op}, []*cache.Result{&want[0]})
		g, w := got[0], want[0]
		said := g.Status == cache.Granted || g.Status == cache.Done // else nobody asks
		if g.Status != w.Status || said && g.Contended != w.Contended || (g.Base > 0) != (w.Base > 0) ||
			g.Status == cache.Busy && g.Mode != w.Mode && op.Kind == cache.OpPeek {
			d.t.Fatalf("seed %d, step %d: host %d's %v %d is answered %+v, and the model says %+v; it knows %+v",
				seed, step, n+1, op.Kind, op.Token, g, w, *d.model.permits[key])
		}
		d.ops++
	}
}
