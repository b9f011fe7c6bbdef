package cache

import "testing"

// A client's renewal is in flight when its hold is downgraded. The answer to a renewal of the exclusive lease
// means nothing any more, so the client is answered by a renewal of the shared one.
func TestAClientsRenewalIsAnsweredBehindADowngrade(t *testing.T) {
	for _, c := range []struct {
		name  string
		early *Result // the answer to the first renewal if it comes before that to the downgrade
	}{
		{"renewal last", nil},
		{"renewal first", &Result{Status: NotHeld}}, // the store had made the lease shared by then
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, nil)
			s := b.session()
			b.acquire(s, "k", func(q *Acquire) { q.Fixed = true }) // nothing else renews it
			f := b.granted(OpTry, 5)
			b.tab.Renew(&Renew{Re: Request{Session: s, ID: 98}, Key: []byte("k"), Fence: f}, b.now, &b.out)
			b.take()
			renewal := b.op(OpRenew)
			b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: 99}, Key: []byte("k"), Fence: f}, b.now, &b.out)
			b.only(b.take(), MsgGranted, CodeOK)
			downgrade := b.op(OpDowngrade)
			if c.early != nil {
				b.answer(renewal, *c.early)
			}
			b.answer(downgrade, Result{Status: Done})
			again := b.op(OpRenew)
			if c.early == nil {
				b.answer(renewal, Result{Status: Done})
			}
			if m := b.only(b.answer(again, Result{Status: Done}), MsgGranted, CodeOK); m.Re.ID != 98 {
				t.Errorf("request %d is answered", m.Re.ID)
			}
			if n := s.Asks.Load(); n != 0 {
				t.Errorf("%d answers are outstanding", n)
			}
		})
	}
}
