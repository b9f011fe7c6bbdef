package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// clockFile returns the file from which libfaketime reads the offset of a server's wall clock.
func (p *process) clockFile() string { return filepath.Join(p.dir, "clock") }

// setClock sets the server's wall clock to the true time plus d.
func (p *process) setClock(d time.Duration) {
	p.t.Helper()
	next := p.clockFile() + ".new"
	err := os.WriteFile(next, fmt.Appendf(nil, "%+f\n", d.Seconds()), 0o600)
	if err == nil {
		err = os.Rename(next, p.clockFile())
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// fakeClockEnv returns the environment of a server whose wall clock can be set. Its other clocks
// are not affected. behind names a library to load after libfaketime.
func (p *process) fakeClockEnv(behind string) []string {
	p.t.Helper()
	var lib string
	for _, glob := range []string{"/usr/lib/*/faketime/libfaketimeMT.so.1",
		"/usr/lib/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1"} {
		if found, _ := filepath.Glob(glob); len(found) > 0 {
			lib = found[0]
		}
	}
	if lib == "" {
		p.t.Fatal("libfaketimeMT.so.1 is needed for this test and was not found " +
			"(Debian, Ubuntu: apt-get install faketime)")
	}
	if _, err := os.Stat(p.clockFile()); err != nil {
		p.setClock(0)
	}
	return []string{"LD_PRELOAD=" + lib + behind, "FAKETIME_TIMESTAMP_FILE=" + p.clockFile(),
		"FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1"}
}
