package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
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

// A store that a new configuration names cannot be reached at first. Nobody changes the file again.
func TestWatchRepeatsAReloadThatWasRefusedForAPassingReason(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t)
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file, "--watch")
	server.Stop()
	if err := os.WriteFile(file, []byte("upstream: "+server.URL()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	logs := func(event string) {
		t.Helper()
		eventually(t, "the daemon says "+event, func() bool {
			return strings.Contains(h.daemon.err.String(), `"event":"`+event+`"`)
		})
	}
	logs("reload_refused")
	server.Start()
	logs("reloaded")
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}
