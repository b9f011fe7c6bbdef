package engine

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/protocol"
)

// Degraded holds have no fence, so a lost one looks like the next one of the same owner.
func TestAnAcquireManyThatHasLostADegradedHoldLeavesTheNextOne(t *testing.T) {
	b := newBeating(t)
	if err := b.e.Route([]Namespace{{TTL: 30 * time.Second, Local: true, LocalAfter: 1}},
		nil); err != nil {
		t.Fatal(err)
	}
	b.e.StoreDown(b.u, errors.New("cut off"))
	pass := func(d time.Duration) {
		b.now.Add(int64(d))
		b.e.Tick()
	}
	pass(time.Second)
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
	if ended, _ := b.e.Force("a", false, 0); len(ended) != 1 {
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
		t.Errorf("a failed acquire-many leaves %d holds, and not that of the later acquire", n)
	}
}
