package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// doctor finds a store that is down, and gives advice.
func TestDoctorFindsAStoreThatIsDown(t *testing.T) {
	h := bareHost(t)
	h.daemon = h.run("serve", "--upstream", "redis://127.0.0.1:1", "--outage", "local")
	var out string
	eventually(t, "the daemon answers", func() bool {
		p := h.run("doctor")
		b, err := io.ReadAll(p.out)
		if err != nil {
			t.Fatal(err)
		}
		p.ends(exitUnavailable)
		out = string(b)
		return strings.Contains(out, "ok       daemon")
	})
	if !strings.Contains(out, "failed   store") || !strings.Contains(out, "to do: restore the store") {
		t.Error(out)
	}
}

// Each store answers for its own namespaces.
func TestStatusAsksTheStoreOfEachNamespace(t *testing.T) {
	h := bareHost(t)
	h.configure("stores:\n  down: {upstream: 'redis://127.0.0.1:1'}\n" +
		"namespaces:\n  'a:': {store: down}\n  'b:': {ttl: 5s}\n")
	h.serve("--config", filepath.Join(h.dir, "c.yaml"))
	out, _ := h.output(exitUnavailable, "status")
	for _, want := range []string{
		`(?m)^store +embedded, linearizable; answers$`,
		`(?m)^store a: +redis, best-effort; does not answer: .*connection refused`,
		`(?m)^store b: +embedded, linearizable; answers$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("not %s:\n%s", want, out)
		}
	}
	out, _ = h.output(exitUnavailable, "status", "-o", "json")
	if !strings.Contains(out, `"ready": false`) || strings.Count(out, `"error": "`) != 2 {
		t.Error(out)
	}
	h.output(exitOK, "health") // it asks only the store of the keys without a namespace
}

// While the daemon drains, nothing is to be repaired.
func TestDoctorOfADaemonThatIsStopping(t *testing.T) {
	h := newHost(t)
	holder := h.lock(nil, "exec sleep 60")
	h.waitFor(1, 0)
	h.daemon.signal(syscall.SIGTERM)
	eventually(t, "the daemon drains", func() bool {
		out, _ := h.output(exitUnavailable, "doctor")
		return strings.Contains(out, "is stopping") &&
			strings.Contains(out, "to do: wait until it has ended, and start the next one")
	})
	holder.signal(syscall.SIGTERM)
	holder.ends(128 + int(syscall.SIGTERM))
}

// Nobody is told to join the group of root.
func TestAdviceAboutTheGroupOfASocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o660)); err != nil {
		t.Fatal(err)
	}
	for gid, want := range map[int]string{0: "set socket_mode and socket_group", 3001: "(gid 3001)"} {
		if err := os.Chown(path, -1, gid); err != nil {
			t.Skip(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if s := groupAdvice(info); !strings.Contains(s, want) {
			t.Errorf("group %d: %s", gid, s)
		}
	}
}
