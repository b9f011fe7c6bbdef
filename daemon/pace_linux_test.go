package daemon_test

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// A takeover does not wait for a reader that waits, nor does the time for a hello count for it.
func TestTakeoverBesideOneWhoAsksTooFast(t *testing.T) {
	t.Parallel()
	h := start(t, nil, func(c *daemon.Config) { c.Limits.MaxSilent = time.Second })
	c, many := h.dial(client.Options{}), h.raw().hello()
	slow := serving(h.store)
	slow.Limits.MaxSilent = time.Second
	slow.Limits.Users.Rate = 1
	if err := h.d.Reload(slow); err != nil {
		t.Fatal(err)
	}
	inspectMany(t, c, 3)
	answered := make(chan error, 1)
	go func() {
		_, err := c.Inspect(t.Context(), "a")
		answered <- err
	}()
	eventually(t, "it waits", func() bool { return h.d.Totals().Throttled > 0 })
	keys := make([][]byte, 20)
	for i := range keys {
		keys[i] = []byte{'k', byte('a' + i)}
	}
	many.send(&protocol.Request{Op: protocol.OpAcquireMany, ID: 2, Keys: keys, TTL: 30_000})
	if m := many.next(); m.Code != protocol.OK {
		t.Fatalf("%+v", m)
	}
	// It counts as 20 requests and more, which is the time that the next one waits.
	many.send(&protocol.Request{Op: protocol.OpPing, ID: 3})
	fresh := make(chan error, 1)
	go func() { // its hello waits
		c, err := client.Dial(t.Context(), h.socket, client.Options{})
		if err == nil {
			err = c.Close()
		}
		fresh <- err
	}()
	eventually(t, "another waits", func() bool {
		return h.d.Totals().Throttled > int64(10*time.Second)
	})
	h.claim().Close()
	eventually(t, "it goes on, without limits", func() bool {
		return h.d.Reload(serving(h.store)) == nil
	})
	for _, end := range []chan error{answered, fresh} {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
	if m := many.next(); m.ID != 3 {
		t.Errorf("%+v", m)
	}
}
