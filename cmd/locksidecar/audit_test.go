package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// line is a line of the log.
type line struct {
	Event, Key, Mode, Code, Cause, Reason, Client string
	Fence, Owner, Session                         uint64
	PID, UID                                      int
	WaitMS                                        *float64 `json:"wait_ms"`
	HoldMS                                        *float64 `json:"hold_ms"`
}

// events returns the events of the log, in their order.
func (h *host) events() (all []line) {
	h.t.Helper()
	for text := range strings.Lines(h.daemon.err.String()) {
		var l line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			h.t.Fatalf("%s: %v", text, err)
		}
		all = append(all, l)
	}
	return all
}

func (h *host) of(client string, events ...string) (all []line) {
	for _, l := range h.events() {
		if strings.HasPrefix(l.Client, client) && slices.Contains(events, l.Event) {
			all = append(all, l)
		}
	}
	return all
}

func TestTheAuditHasEveryLockAndSession(t *testing.T) {
	h := newHost(t, "--log-audit")
	p := h.lock(nil, "echo up; read x; exit 0")
	p.line()
	h.lock([]string{"-n"}, "true").ends(75)
	p.letGo()
	p.ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	got := h.of("locksidecar lock", "session_begin", "acquired", "refused", "released", "session_end")
	var names []string
	for _, l := range got {
		names = append(names, l.Event)
	}
	want := []string{"session_begin", "acquired", "session_begin", "refused", "session_end",
		"released", "session_end"}
	if len(got) != len(want) {
		t.Fatalf("%v, want %v\n%s", names, want, h.daemon.err)
	}
	i := slices.IndexFunc(got, func(l line) bool { return l.Event == "acquired" })
	a := got[i]
	if a.Key != "k" || a.Mode != "exclusive" || a.Fence == 0 || a.PID == 0 || a.WaitMS == nil {
		t.Errorf("%+v", a)
	}
	i = slices.IndexFunc(got, func(l line) bool { return l.Event == "released" })
	if r := got[i]; r.Fence != a.Fence || r.Session != a.Session || r.Cause != "release" ||
		r.HoldMS == nil || *r.HoldMS <= 0 {
		t.Errorf("%+v", r)
	}
	i = slices.IndexFunc(got, func(l line) bool { return l.Event == "refused" })
	if r := got[i]; r.Code != "busy" || r.Key != "k" || r.Session == a.Session {
		t.Errorf("%+v", r)
	}
	if b := got[0]; b.UID != os.Getuid() {
		t.Errorf("%+v", b)
	}
}

// A reload turns the audit on and off. A log that hides keys also hides them in the audit.
func TestTheAuditFollowsTheFileAndHidesKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("")
	h := newHost(t, "--config", file)
	take := func(key string) { h.run("lock", key, "--", "true").ends(0) }
	reload := func(text string) {
		n := strings.Count(h.daemon.err.String(), `"reloaded"`)
		write(text)
		h.daemon.signal(syscall.SIGHUP)
		eventually(t, "it is reloaded", func() bool {
			return strings.Count(h.daemon.err.String(), `"reloaded"`) > n
		})
	}
	take("silent")
	reload("log: {audit: true, keys: hashed}\n")
	take("a-secret-name")
	reload("")
	take("silent")
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	got := h.of("locksidecar lock", "acquired")
	if len(got) != 1 || len(got[0].Key) != 16 {
		t.Errorf("%+v", got)
	}
	if text := h.daemon.err.String(); strings.Contains(text, "a-secret-name") ||
		strings.Contains(text, "silent") {
		t.Errorf("%s", text)
	}
}
