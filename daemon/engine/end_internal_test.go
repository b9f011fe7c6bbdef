package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/upstream/storetest"
)

// The end of a client's process ends its session while a request of it may be handled.
func TestASessionThatEndsDuringARequestKeepsNothing(t *testing.T) {
	e := testEngine(t)
	request := func(op protocol.Op) []byte { // of "first", which another session holds
		return protocol.AppendRequest(nil, &protocol.Request{Op: op, ID: uint64(op),
			Key: []byte("first"), Wait: protocol.WaitAlways, Target: uint64(protocol.OpAcquire)})
	}
	acquire, cancel := request(protocol.OpAcquire), request(protocol.OpCancel)
	for n := range storetest.Rounds(1000, 100_000) {
		s, _ := open(t, e)
		began, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			close(began)
			for s.Receive(acquire); !s.Ended(); s.Receive(acquire) {
				s.Receive(cancel)
			}
		}()
		<-began
		for range rand.N(10_000) {
			_ = s.Killed()
		}
		e.End(s)
		<-done
		if holds, waiters := s.Counts(); holds+waiters != 0 {
			t.Fatalf("round %d: a session that has ended has %d holds and %d waiters", n, holds, waiters)
		}
	}
}
