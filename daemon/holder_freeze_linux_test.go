package daemon_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// Hosts that do not answer hold keys that clients of this host wait for. A view asks them. The takeover does not
// wait for their answers.
func TestATakeoverDoesNotWaitForAnswersOfOtherHosts(t *testing.T) {
	server := testserver.StartRedis(t)
	h := named(t, server, "web-1", nil)
	const keys = 8
	holdSilently(t, server, keys)
	c := h.dial(client.Options{})
	for i := range keys {
		h.queue(c, fmt.Sprint("k", i), uint64(i), time.Minute)
	}
	time.Sleep(time.Second)                                             // the requests to the store are answered
	acquire(t, c, client.AcquireArgs{Key: "own", TTL: 5 * time.Second}) // a freeze may take half a second
	viewed := make(chan struct{})
	go func() {
		defer close(viewed)
		begin := time.Now()
		v := h.view(daemon.ViewQuery{})
		n := 0
		for _, w := range v.Waiters {
			if w.Holder != nil {
				n++
			}
		}
		t.Logf("the view took %v, and names %d holders of %d", time.Since(begin), n, len(v.Waiters))
	}()
	time.Sleep(100 * time.Millisecond)
	begin := time.Now()
	if err := h.d.Bequeath(func([]int) error { return errKeep }); !errors.Is(err, errKeep) {
		t.Error(err)
	}
	if took := time.Since(begin); took > 500*time.Millisecond {
		t.Errorf("clients stood still for %v", took)
	}
	<-viewed
}
