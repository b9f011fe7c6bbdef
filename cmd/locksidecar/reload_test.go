package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// reloads writes the configuration, makes the daemon read it, and waits until the daemon logs the
// event with the words.
func (h *host) reloads(file, yaml, event string, words ...string) {
	h.t.Helper()
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		h.t.Fatal(err)
	}
	before := len(h.daemon.err.String())
	h.daemon.signal(syscall.SIGHUP)
	eventually(h.t, "the daemon says "+event, func() bool {
		log := h.daemon.err.String()[before:]
		return strings.Contains(log, `"event":"`+event+`"`)
	})
	log := h.daemon.err.String()[before:]
	for _, w := range words {
		if !strings.Contains(log, w) {
			h.t.Errorf("it does not say %q:\n%s", w, log)
		}
	}
}

func TestReload(t *testing.T) {
	server := testserver.StartRedis(t)
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("max_wait: 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	p := h.lock(nil, "echo up; read x; exit 0")
	p.line()

	// A file with faults changes nothing, and the log names the faults.
	h.reloads(file, "max_wait: 1\n", "reload_refused", "needs a unit")
	h.reloads(file, "upstream: redis://127.0.0.1:1\n", "reload_refused", "connection refused")
	h.reloads(file, "socket_mode: 0600\n", "reload_refused", "changing it to", "needs a restart")
	h.reloads(file, "namespaces:\n  a: {store: eu}\n", "reload_refused", `there is no store`)
	if n, _ := h.holders(); n != 1 {
		t.Fatalf("%d holders", n)
	}

	// The file adds a store, and changes other fields. Holds stay.
	h.reloads(file, "stores:\n  eu: {upstream: '"+server.URL()+
		"'}\nnamespaces:\n  a: {store: eu, ttl: 5s}\nlog: {level: debug}\n", "reloaded")
	a := h.run("lock", "a", "--", "sh", "-c", "echo up; read x; exit 0")
	a.line()
	if server.Do("EXISTS", "lock:a") != int64(1) {
		t.Error("it is not in the new store")
	}
	stored := h.run("locks", "--store")
	if out := stored.rest(); !strings.Contains(out, "lock:a") || !strings.Contains(out, "this host") {
		t.Errorf("the list of what the stores know:\n%s", out)
	}
	stored.ends(0)
	server.Do("SET", "lock:plain", "somebody", "PX", 600_000)
	stored = h.run("locks", "--store", "-o", "json", "plain")
	if out := stored.rest(); !strings.Contains(out, `"whose": "foreign"`) {
		t.Errorf("a plain locker's:\n%s", out)
	}
	stored.ends(0)

	// The file has only one store again. The daemon stops using the other store once its holds are
	// released.
	h.reloads(file, "", "reloaded", "store_changed")
	a.letGo()
	a.ends(0)
	eventually(t, "the store is left", func() bool {
		return strings.Contains(h.daemon.err.String(), `"event":"store_left"`)
	})
	p.letGo()
	p.ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}
