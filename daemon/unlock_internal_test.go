package daemon

import (
	"errors"
	"testing"

	"github.com/locksidecar/locksidecar/daemon/engine"
)

// After a takeover the other process has the hold.
func TestAnUnlockAfterATakeoverFails(t *testing.T) {
	d := &Daemon{transferred: make(chan struct{})}
	close(d.transferred)
	if _, err := d.Unlock("k", false, 0, engine.Unknown); !errors.Is(err, ErrTakenOver) {
		t.Error(err)
	}
}
