package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Kubernetes replaces a symbolic link in the middle of the path.
func TestWatchReloadsAConfigurationThatHasChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	publish := func(name, yaml string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(filepath.Join(dir, name, "c.yaml"), []byte(yaml), 0o600)
		if err == nil {
			err = os.Symlink(name, filepath.Join(dir, "new"))
		}
		if err == nil {
			err = os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	publish("first", "max_wait: 1s\n")
	h := newHost(t, "--config", filepath.Join(dir, "data", "c.yaml"), "--watch")
	p := h.lock(nil, "echo up; read x; exit 0")
	p.line()
	for _, c := range []struct{ name, yaml, says string }{
		{"second", "max_wait: 1\n", `"event":"reload_refused"`},
		{"third", "max_wait: 2s\n", `"event":"reloaded"`},
	} {
		publish(c.name, c.yaml)
		eventually(t, "the daemon says "+c.says, func() bool {
			return strings.Contains(h.daemon.err.String(), c.says)
		})
	}
	if n, _ := h.holders(); n != 1 {
		t.Errorf("%d holders", n)
	}
	p.letGo()
	p.ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	if n := strings.Count(h.daemon.err.String(), `"event":"reloaded"`); n != 1 {
		t.Errorf("%d reloads for one change", n)
	}
}
