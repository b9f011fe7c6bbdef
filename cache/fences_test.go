package cache

import (
	"math/rand/v2"
	"testing"
	"time"
)

// PROTOCOL.md, section 8, requires that no two holds of a session have the same key, owner and
// fence. The test runs random requests of two sessions, shared ones included.
func TestNoOwnerGetsAFenceTwice(t *testing.T) {
	type name struct {
		s            *Session
		owner, fence uint64
	}
	for seed := range uint64(300) {
		b := newBench(t, nil)
		r := rand.New(rand.NewPCG(seed, 1))
		sessions := []*Session{b.session(), b.session()}
		seen := map[name]bool{}
		var held []name
		asked := map[uint64]name{}
		base := uint64(100)
		note := func(ms []Message) {
			for _, m := range ms {
				n, acquired := asked[m.Re.ID]
				if m.Kind != MsgGranted || m.Count != 1 || !acquired {
					continue
				}
				n.fence = m.Fence
				if seen[n] {
					t.Fatalf("seed %d: owner %d of session %d gets fence %d twice", seed, n.owner,
						n.s.ID, n.fence)
				}
				seen[n] = true
				held = append(held, n)
			}
		}
		re := func(s *Session) Request {
			b.id++
			return Request{Session: s, ID: b.id}
		}
		for range 400 {
			switch k := r.IntN(20); {
			case k < 9:
				n := name{s: sessions[r.IntN(len(sessions))], owner: r.Uint64N(3)}
				asked[b.id+1] = n
				note(b.acquire(n.s, "k", func(q *Acquire) {
					q.Owner, q.Mode = n.owner, Shared
					if r.IntN(8) == 0 {
						q.Mode = Exclusive
					}
					if r.IntN(2) == 0 {
						q.Wait = 5 * second
					}
					q.Fixed = r.IntN(4) == 0
				}))
			case k < 15 && len(held) > 0:
				i := r.IntN(len(held))
				n := held[i]
				held = append(held[:i], held[i+1:]...)
				b.tab.Release(&Release{Re: re(n.s), Key: []byte("k"), Owner: n.owner,
					Fence: n.fence, All: true}, b.now, &b.out)
				note(b.take())
			case k == 15 && len(held) > 0:
				n := held[r.IntN(len(held))]
				b.tab.Downgrade(&Downgrade{Re: re(n.s), Key: []byte("k"), Owner: n.owner,
					Fence: n.fence}, b.now, &b.out)
				note(b.take())
			case k == 16:
				b.tab.Force("k", false, 0, b.now, &b.out)
				note(b.take())
			case k == 17 && len(held) > 0:
				n := held[r.IntN(len(held))]
				b.tab.Renew(&Renew{Re: re(n.s), Key: []byte("k"), Owner: n.owner, Fence: n.fence},
					b.now, &b.out)
				note(b.take())
			default:
				note(b.tick(time.Duration(r.IntN(12)) * time.Second))
			}
			for len(b.ops) > 0 && r.IntN(4) > 0 {
				op := b.ops[0]
				b.ops = b.ops[1:]
				res := Result{Status: Done}
				switch base += r.Uint64N(3) + 1; {
				case op.Kind == OpTry || op.Kind == OpJoin:
					res = Result{Status: Granted, Base: base}
				case op.Kind == OpRenew && op.Rebase:
					res = Result{Status: Done, Base: base}
				case op.Kind == OpRenew && r.IntN(10) == 0:
					res = Result{Status: NotHeld}
				}
				note(b.answer(op, res))
			}
		}
		if len(seen) < 10 {
			t.Fatalf("seed %d: only %d holds, too few for the test", seed, len(seen))
		}
	}
}
