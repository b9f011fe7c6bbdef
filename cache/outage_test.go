package cache

import "testing"

// A host that grants alone has nobody who could take a hold from it. What it has
// stated runs out all the same when it stands still: who asks then is told anew.
func TestAHoldGrantedAloneIsNotStatedPastItsDeadline(t *testing.T) {
	b := newBench(t, func(x *setup) { x.Local, x.LocalAfter = true, 1 })
	s := b.session()
	b.tab.StoreDown(b.ns.Store, nil, b.now, &b.out)
	b.now++
	m := b.only(b.acquire(s, "k", nil), MsgGranted, CodeOK)
	if !m.Degraded || m.Until != b.now+30*second {
		t.Fatalf("%+v", m)
	}
	says := func(what string, m Message) {
		t.Helper()
		if m.Until != b.now+30*second {
			t.Errorf("%s: valid for %d s", what, (m.Until-b.now)/second)
		}
	}
	b.now += 40 * second
	says("re-entry", b.only(b.acquire(s, "k", nil), MsgGranted, CodeOK))
	b.now += 40 * second
	m, _ = b.tab.Restate(s, []byte("k"), 0, 0, b.now, &b.out)
	says("restated", m)
	b.now += 40 * second
	b.id++
	b.tab.Downgrade(&Downgrade{Re: Request{Session: s, ID: b.id}, Key: []byte("k")}, b.now, &b.out)
	says("downgrade", b.only(b.take(), MsgGranted, CodeOK))
}
