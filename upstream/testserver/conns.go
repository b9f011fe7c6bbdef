package testserver

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Connections returns the number of TCP connections that this process has to addr, which is on
// 127.0.0.1, according to the kernel.
func Connections(t testing.TB, addr string) (n int) {
	t.Helper()
	const established = "01"
	to := netip.MustParseAddrPort(addr)
	remote := fmt.Sprintf("0100007F:%04X", to.Port())
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Skipf("no list of connections here: %v", err)
	}
	ours := make(map[string]bool)
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if what, err := os.Readlink(fd); err == nil {
			ours[what] = true
		}
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[2] == remote && f[3] == established &&
			ours["socket:["+f[9]+"]"] {
			n++
		}
	}
	return n
}
