//go:build linux

package takeover_test

import (
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/locksidecar/locksidecar/daemon/admin"
	"github.com/locksidecar/locksidecar/daemon/takeover"
)

// Only a socket that is not there, or that nobody listens at, means that there is nobody to take
// over from.
func TestClaimWithoutADaemon(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: admin.Socket(stale), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	_ = ln.Close()
	for _, socket := range []string{stale, filepath.Join(dir, "none.sock")} {
		if _, err := takeover.Claim(t.Context(), socket, "successor"); !errors.Is(err,
			takeover.ErrNobody) {
			t.Errorf("%s: %v", socket, err)
		}
	}
	// Below a socket nothing can be: that this cannot be looked up says nothing of a daemon.
	_, err = takeover.Claim(t.Context(), admin.Socket(stale)+"/s", "successor")
	if err == nil || errors.Is(err, takeover.ErrNobody) {
		t.Errorf("a socket that cannot be reached: %v", err)
	}
}
