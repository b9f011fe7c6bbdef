package redis_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/upstream"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// listens waits until p receives hints, and acquires the lock that heard needs.
func (p *peer) listens(by *peer) {
	p.Helper()
	tok, _ := p.take("listening", cache.Exclusive)
	p.eventually("hints arrive", func() bool {
		o := by.token()
		by.want(by.do(cache.OpJoin, 0, "listening", o), cache.Queued)
		by.want(by.do(cache.OpWithdraw, 0, "listening", o), cache.Done)
		return len(p.Hints()) > 0
	})
	p.want(p.do(cache.OpRelease, 0, "listening", tok), cache.Done)
	p.takePermits(p.Instance(), 1, 1)
}

// heard returns the hints that p has received since the last call, in order. It waits for all hints
// that earlier answers have caused.
func (p *peer) heard(by *peer) (hs []string) {
	p.Helper()
	by.want(by.permit(cache.OpJoin, p.Instance(), 1, 1<<40), cache.Queued)
	for {
		select {
		case h := <-p.Hints():
			switch {
			case h.Key == p.Instance():
				return hs
			case h.Key == "listening":
			case h.Mode != cache.Permit || h.Key != "k" || h.Kind == cache.HintContended && h.Token != 0:
				p.Errorf("a hint %v", h)
			case h.Kind == cache.HintContended:
				hs = append(hs, "wanted")
			default:
				hs = append(hs, fmt.Sprint("free ", h.Token))
			}
		case <-time.After(bound):
			p.Fatal("hints do not arrive")
		}
	}
}

func TestAsManyAreToldAsCanCome(t *testing.T) {
	srv := testserver.StartRedis(t)
	p, q, r := newPeer(t, srv, "waiter_lease=1m"), newPeer(t, srv, "waiter_lease=1m"),
		newPeer(t, srv, "waiter_lease=1m")
	p.listens(r)
	q.listens(r)
	r.listens(q)
	check := func(what string, ps, qs, rs []string) {
		t.Helper()
		for _, c := range []struct {
			at   *peer
			by   *peer
			want []string
		}{{p, r, ps}, {q, r, qs}, {r, q, rs}} {
			if got := c.at.heard(c.by); !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, not %v", what, got, c.want)
			}
		}
	}
	const limit = 10
	pHeld, qHeld := p.takePermits("k", limit, 5), q.takePermits("k", limit, 5)
	w := r.joinPermits("k", limit, 300)
	check("the first of many waits", []string{"wanted"}, []string{"wanted"}, nil)
	for range 2 { // the waiter is a holder's host, so its predecessor is told once in each call
		p.joinPermits("k", limit, 3)
	}
	check("a holder's host waits too", nil, nil, []string{"wanted", "wanted"})
	r.allPermits(w[:1], cache.OpJoin, cache.Queued)
	r.allPermits(w[1:], cache.OpJoin, cache.Queued)
	check("the first asks again", []string{"wanted"}, []string{"wanted"}, nil)
	free := func(from, to int) (hs []string) {
		for _, x := range w[from:to] {
			hs = append(hs, fmt.Sprint("free ", x.Token))
		}
		return hs
	}
	q.allPermits(qHeld[:3], cache.OpRelease, cache.Done)
	check("three are given back", nil, nil, free(0, 3))
	q.allPermits(qHeld[3:], cache.OpRelease, cache.Done)
	check("two more", nil, nil, free(3, 5))
	r.allPermits(w[:4], cache.OpJoin, cache.Granted)
	check("four come", nil, nil, nil)
	r.allPermits(w[4:5], cache.OpWithdraw, cache.Done)
	check("one changes its mind", nil, nil, free(5, 6))
	r.allPermits(w[100:200], cache.OpWithdraw, cache.Done)
	if hs := r.heard(q); len(hs) > 1 { // the hint may come again
		t.Errorf("far back they change theirs: %v", hs)
	}
	p.allPermits(pHeld, cache.OpRelease, cache.Done)
	check("all are given back", nil, nil, free(6, 11))
	rs := r.allPermits(w[5:11], cache.OpJoin, cache.Granted)
	if last := rs[len(rs)-1]; !last.Contended { // by p
		t.Error("nobody else waits")
	}
}

// joinPermits queues for n permits at once.
func (p *peer) joinPermits(key string, limit uint32, n int) (ops []upstream.Op) {
	p.Helper()
	for range n {
		ops = append(ops, permitOp(cache.OpJoin, key, limit, p.token()))
	}
	p.allPermits(ops, cache.OpJoin, cache.Queued)
	return ops
}

// claim is a token of one of the peers of semModel.
type claim struct {
	at    int
	token uint64
}

// semModel is the expected state of a semaphore.
type semModel struct {
	held  map[claim]bool
	queue []claim
	limit map[claim]uint32 // as the queued tokens named it
}

func (m *semModel) before(c claim) (n int, queued bool) {
	if i := slices.Index(m.queue, c); i >= 0 {
		return i, true
	}
	return len(m.queue), false
}

func (m *semModel) leave(c claim) {
	m.queue = slices.DeleteFunc(m.queue, func(x claim) bool { return x == c })
}

// wanted reports whether another peer than at waits and cannot have a permit, by the limit that the
// first token named.
func (m *semModel) wanted(at int) bool {
	for i, c := range m.queue {
		if c.at != at && len(m.held)+i >= int(m.limit[m.queue[0]]) {
			return true
		}
	}
	return false
}

// acquire returns the expected status of a try or a join.
func (m *semModel) acquire(c claim, limit uint32, join bool) cache.Status {
	before, queued := m.before(c)
	switch {
	case m.held[c] || len(m.held)+before < int(limit):
		m.held[c] = true
		m.leave(c)
		return cache.Granted
	case !join:
		m.leave(c)
		return cache.Busy
	case !queued:
		m.queue = append(m.queue, c)
	}
	m.limit[c] = limit
	return cache.Queued
}

func (m *semModel) release(c claim, kind cache.OpKind) cache.Status {
	_, queued := m.before(c)
	was := m.held[c] || queued
	delete(m.held, c)
	m.leave(c)
	if was || kind == cache.OpWithdraw {
		return cache.Done
	}
	return cache.NotHeld
}

// step carries out a batch on the model and on the store.
func (m *semModel) step(t *testing.T, ps []*peer, at int, ops []upstream.Op) {
	t.Helper()
	// A batch's releases come first, then renewals, then acquires, each in their order.
	order := func(op upstream.Op) int {
		switch op.Kind {
		case cache.OpRelease, cache.OpWithdraw:
			return 0
		case cache.OpRenew:
			return 1
		case cache.OpPeek:
			return 3
		}
		return 2
	}
	slices.SortStableFunc(ops, func(a, b upstream.Op) int { return order(a) - order(b) })
	rs := ps[at].apply(ops...)
	for i, op := range ops {
		c, r := claim{at, op.Token}, rs[i]
		want, wanted := cache.Done, false
		switch op.Kind {
		case cache.OpTry, cache.OpJoin:
			want = m.acquire(c, op.Limit, op.Kind == cache.OpJoin)
			wanted = m.wanted(at)
		case cache.OpRenew:
			if !m.held[c] {
				want = cache.NotHeld
			} else {
				wanted = m.wanted(at)
			}
		case cache.OpPeek:
			if len(m.held) > 0 {
				want = cache.Busy
			}
		default:
			want = m.release(c, op.Kind)
		}
		if r.Status != want || r.Contended != wanted || want == cache.Busy && op.Kind == cache.OpPeek &&
			r.Mode != cache.Permit {
			t.Fatalf("%v of %v with limit %d is %v (%v, wanted %v), not %v (wanted %v); held %v, queue %v",
				op.Kind, c, op.Limit, r.Status, r.Err, r.Contended,
				want, wanted, m.held, m.queue)
		}
		if (want == cache.Busy || want == cache.Queued) && len(m.held) > 0 != (r.Left > 0) ||
			r.Left > int64(long) {
			t.Fatalf("%v has %d left", want, r.Left)
		}
	}
}

func TestPermitsAreAsTheModelSays(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, url string, _ func(string, ...any)) {
		var ps []*peer
		for range 3 {
			ps = append(ps, &peer{T: t, Store: openStore(t, url+"?waiter_lease=1m&timeout=10s")})
		}
		for seed := range uint64(8) {
			rnd := rand.New(rand.NewPCG(seed, 5))
			key := fmt.Sprint("m", seed)
			m := &semModel{held: map[claim]bool{}, limit: map[claim]uint32{}}
			old := make([][]uint64, len(ps))
			for range 150 {
				at := rnd.IntN(len(ps))
				var ops []upstream.Op
				used := map[uint64]bool{}
				for range 1 + rnd.IntN(4) {
					op := permitOp([]cache.OpKind{cache.OpTry, cache.OpJoin, cache.OpJoin, cache.OpRenew,
						cache.OpRelease, cache.OpWithdraw,
						cache.OpPeek}[rnd.IntN(7)], key, 4, 0)
					if seed >= 4 { // the peers have different limits
						op.Limit += uint32(rnd.IntN(3))
					}
					if n := len(old[at]); n > 0 && rnd.IntN(3) > 0 {
						op.Token = old[at][max(0, n-1-rnd.IntN(8))]
					} else {
						op.Token = ps[at].token()
						old[at] = append(old[at], op.Token)
					}
					if used[op.Token] {
						continue
					}
					used[op.Token] = true
					if op.Kind == cache.OpPeek {
						op.Token = 0
					}
					ops = append(ops, op)
				}
				m.step(t, ps, at, ops)
			}
			var rest []claim
			for c := range m.held {
				rest = append(rest, c)
			}
			for _, c := range append(rest, m.queue...) {
				m.step(t, ps, c.at, []upstream.Op{permitOp(cache.OpRelease, key, 0, c.token)})
			}
			if l := ps[0].listAll(key, 10); len(l) != 0 {
				t.Errorf("there is left %v", l)
			}
		}
	})
}
