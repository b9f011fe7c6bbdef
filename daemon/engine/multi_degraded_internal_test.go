package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
	"github.com/locksidecar/locksidecar/protocol"
)

// newCutOff returns an engine that grants degraded holds, and a function that lets time pass.
func newCutOff(t *testing.T) (b *beating, pass func(time.Duration)) {
	t.Helper()
	b = newBeating(t)
	if err := b.e.Route([]Namespace{{TTL: 30 * time.Second, Local: true, LocalAfter: 1}},
		nil); err != nil {
		t.Fatal(err)
	}
	b.e.StoreDown(b.u, errors.New("cut off"))
	pass = func(d time.Duration) {
		b.now.Add(int64(d))
		b.e.Tick()
	}
	pass(time.Second)
	return b, pass
}

// Degraded holds have no fence, so a lost one looks like the next one of the same owner.
func TestAnAcquireManyThatHasLostADegradedHoldLeavesTheNextOne(t *testing.T) {
	b, pass := newCutOff(t)
	acquire := func(s *Session, key string) {
		send(s, &protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte(key), Owner: 7,
			Wait: protocol.WaitAlways})
		pass(time.Millisecond)
	}
	other, _ := open(t, b.e)
	acquire(other, "b")
	send(b.s, &protocol.Request{Op: protocol.OpAcquireMany, ID: 6, Owner: 7,
		Keys: [][]byte{[]byte("a"), []byte("b")}, Wait: protocol.WaitAlways})
	pass(time.Millisecond)
	if b.s.Holds() != 1 || other.Holds() != 1 {
		t.Fatal(b.s.Holds(), other.Holds())
	}
	if ended, _ := b.e.Force("a", false, 0, Unknown); len(ended) != 1 {
		t.Fatal(ended)
	}
	acquire(b.s, "a")
	pass(time.Minute) // its owner may rely on the hold that was forced for up to its TTL
	if n := b.s.Holds(); n != 1 {
		t.Fatal(n)
	}
	send(other, &protocol.Request{Op: protocol.OpRelease, ID: 7, Key: []byte("b"), Owner: 7})
	pass(time.Millisecond)
	if n := b.s.Holds(); n != 1 {
		t.Errorf("a failed acquire-many leaves %d holds; it should leave the hold of the later acquire", n)
	}
}

// The loss of a degraded hold comes before the engine has passed the grant to the acquire-many.
func TestAnAcquireManyWhoseDegradedGrantIsLostAtOnceLeavesTheNextHold(t *testing.T) {
	b, pass := newCutOff(t)
	m := &multiAcquire{order: []int{0},
		several: several{s: b.s, id: 6, keys: [][]byte{[]byte("a")},
			ttls: []int64{int64(30 * time.Second)}, deadline: cache.Forever},
		grants: make([]protocol.Grant, 1), refusals: make([]refusal, 1), held: make([]bool, 1)}
	m.q = cache.Acquire{Owner: 7, Wait: cache.Forever,
		Re: cache.Request{Session: b.s.core, ID: 6, InternalReply: m}}
	b.s.addMulti(m)
	a := getFollowUp()
	m.ask(b.e, b.now.Load(), a)
	if b.s.Holds() != 1 || len(a.replies) != 1 {
		t.Fatal(b.s.Holds(), len(a.replies))
	}
	if ended, _ := b.e.Force("a", false, 0, Unknown); len(ended) != 1 {
		t.Fatal(ended)
	}
	pass(time.Minute)
	send(b.s, &protocol.Request{Op: protocol.OpAcquire, ID: 5, Key: []byte("a"), Owner: 7,
		Wait: protocol.WaitAlways})
	pass(time.Millisecond)
	if n := b.s.Holds(); n != 1 {
		t.Fatal(n)
	}
	m.lost = true // as if another key were lost, too
	b.e.finish(a, b.now.Load(), nil)
	if n := b.s.Holds(); n != 1 {
		t.Errorf("a failed acquire-many leaves %d holds; it should leave the hold of the later acquire", n)
	}
}
