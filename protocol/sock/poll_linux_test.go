package sock_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPollersWaitOnlyToRead examines all epolls of this process. The socket must be in exactly one,
// which must not wait for it to become writable.
func TestPollersWaitOnlyToRead(t *testing.T) {
	s, _ := pair(t, "unix")
	var fd int
	s.Control(func(n int) error { fd = n; return nil })
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil || len(infos) == 0 {
		t.Fatal(err)
	}
	found := 0
	for _, name := range infos {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the descriptor was closed meanwhile
		}
		for line := range strings.Lines(string(b)) {
			var n int
			var events uint32
			if k, _ := fmt.Sscanf(line, "tfd: %d events: %x", &n, &events); k == 2 && n == fd {
				if found++; events&unix.EPOLLOUT != 0 {
					t.Errorf("%s waits for %x", name, events)
				}
			}
		}
	}
	if found != 1 {
		t.Errorf("in %d epolls", found)
	}
}
