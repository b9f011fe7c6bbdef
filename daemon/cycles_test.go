package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/renewer"
	"github.com/locksidecar/locksidecar/upstream/embedded"
)

// Owners, of one session or of several, that wait for each other in a ring are
// told of once; those who only wait are not.
func TestARingOfWaitsIsReported(t *testing.T) {
	t.Parallel()
	const short = 3 * time.Second // keepalives come often
	core, logs := observer.New(zap.WarnLevel)
	store, err := embedded.Open(embedded.Options{Clock: renewer.Boottime, Session: short})
	if err != nil {
		t.Fatal(err)
	}
	h := start(t, store, func(c *daemon.Config) { c.Log = zap.New(core) })
	a, b, c := h.dial(client.Options{Name: "a"}), h.dial(client.Options{Name: "b"}),
		h.dial(client.Options{Name: "c"})
	hold := func(c *client.Client, owner uint64, key string) {
		acquire(t, c, client.AcquireArgs{Key: key, Owner: owner, TTL: short})
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	waits := 0
	wait := func(c *client.Client, owner uint64, key string) {
		waits++
		go func() {
			_, err := c.Acquire(ctx, client.AcquireArgs{Key: key, Owner: owner, TTL: short,
				Wait: client.Forever})
			ended <- err
		}()
	}
	hold(a, 1, "k1")
	hold(a, 2, "k2")
	hold(b, 1, "k3")
	hold(c, 1, "free")
	wait(a, 1, "k2")
	wait(a, 2, "k3")
	wait(c, 9, "k1") // no part of it
	wait(c, 8, "free")
	wait(b, 1, "k1") // closes it
	told := func() []string {
		var all []string
		for _, e := range logs.FilterField(zap.String("event", "wait_cycle")).All() {
			all = append(all, fmt.Sprint(e.ContextMap()["waits"]))
		}
		return all
	}
	eventually(t, "it is told", func() bool { return len(told()) > 0 })
	cancel()
	for range waits {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	all := told()
	if len(all) != 1 || strings.Contains(all[0], "free") || !strings.Contains(all[0], "(b)") ||
		!slices.Equal(count(all[0], "k1", "k2", "k3"), []int{1, 1, 1}) {
		t.Errorf("told %q", all)
	}
	_, _, _ = a.Close(), b.Close(), c.Close()
}

func count(s string, parts ...string) (n []int) {
	for _, p := range parts {
		n = append(n, strings.Count(s, `"`+p+`"`))
	}
	return n
}
