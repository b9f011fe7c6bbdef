package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// A lock was acquired before its key was in two stores. Until it is released, the command status,
// the metric and the log of each reload report it.
func TestLocksThatAreAtAStoreThatTheirKeysHaveLeft(t *testing.T) {
	stores := "stores:\n  a: {upstream: '" + testserver.StartRedis(t).URL() + "'}\n  b: {upstream: '" +
		testserver.StartRedis(t).URL() + "'}\n"
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(stores+"namespaces:\n  'm:': {store: a}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	says := func(text, json string) {
		t.Helper()
		for _, x := range []struct{ output, want string }{{"text", text}, {"json", json}} {
			p := h.run("status", "-o", x.output)
			if out := p.rest(); !strings.Contains(out, x.want) {
				t.Errorf("status does not say %q:\n%s", x.want, out)
			}
			p.ends(0)
		}
	}
	const none = "every lock is at the store of its key"
	says(none, `"moved": []`)
	before := h.run("lock", "m:before", "--", "sh", "-c", "echo up; read x; exit 0")
	before.line()
	h.reloads(file, stores+"namespaces:\n  'm:': {store: a, both: b}\n", "reloaded",
		`"event":"locks_stay"`, `"locks":1`)
	after := h.run("lock", "m:after", "--", "sh", "-c", "echo up; read x; exit 0")
	after.line()
	says("1 still at store a (leaving), which their keys have left", `"locks": 1`)
	admin := newAdminClient(h.socket)
	defer admin.Close()
	r, err := admin.http.Get("http://localhost/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil || !strings.Contains(string(metrics),
		`locksidecar_moved_leases{store="a (leaving)"} 1`) {
		t.Errorf("the metric is missing: %v\n%s", err, metrics)
	}
	const alone = "namespaces:\n  'm:': {store: b}\n"
	h.reloads(file, stores+alone, "reload_refused",
		"1 locks are held in store a alone, the first of them m:before")
	before.letGo()
	before.ends(0)
	eventually(t, "no lock is left", func() bool {
		p := h.run("status")
		defer p.ends(0)
		return strings.Contains(p.rest(), none)
	})
	h.reloads(file, stores+alone, "reloaded")
	if log := h.daemon.err.String(); strings.Contains(log, `"event":"locks_exposed"`) {
		t.Errorf("a lock in both stores counts as exposed:\n%s", log)
	}

	// Without the field both, locks are exposed.
	h.reloads(file, stores+"namespaces:\n  'm:': {store: a}\n", "reloaded", `"event":"store_changed"`)
	exposed := h.run("lock", "m:exposed", "--", "sh", "-c", "echo up; read x; exit 0")
	exposed.line()
	h.reloads(file, stores+alone, "reloaded", `"event":"store_changed"`,
		`"event":"locks_exposed"`, `"locks":1`)
	exposed.letGo()
	exposed.ends(0)
	after.letGo()
	after.ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}

// Two hosts move keys to etcd in four rollouts, one after the other. A reload that leaves out a
// step, or has another fence_epoch, is refused.
func TestAMoveToEtcd(t *testing.T) {
	stores := "stores:\n  a: {upstream: '" + testserver.StartRedis(t).URL() +
		"'}\n  b: {upstream: 'etcd://" + testserver.StartEtcd(t).Addr() + "?" + patient + "'}\n"
	stage := []string{"store: a", "store: a, both: b",
		"store: a, both: b, fence_epoch: 4000000000000000", "store: b, fence_epoch: 4000000000000000"}
	yaml := func(fields string) string {
		return stores + "namespaces:\n  '': {store: b}\n  'm:': {" + fields + "}\n"
	}
	files, hosts := make([]string, 2), make([]*host, 2)
	for i := range hosts {
		files[i] = filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(files[i], []byte(yaml(stage[0])), 0o600); err != nil {
			t.Fatal(err)
		}
		hosts[i] = newHost(t, "--config", files[i])
	}
	last := 0
	locks := func(i int) {
		t.Helper()
		p := hosts[i].run("lock", "-w", "60s", "m:k", "--", "sh", "-c", "echo $LOCKSIDECAR_FENCE")
		fence := p.number()
		p.ends(0)
		if fence <= last {
			t.Errorf("fence %d after %d", fence, last)
		}
		last = fence
	}
	locks(0)
	hosts[0].reloads(files[0], yaml(stage[2]), "reloaded")
	early := hosts[0].run("lock", "-n", "m:k", "--", "true")
	early.ends(69)
	if msg := early.err.String(); !strings.Contains(msg,
		"no host has used both stores without fence_epoch") {
		t.Errorf("the refusal of a step that was left out: %s", msg)
	}
	for _, to := range stage[1:] {
		for i := range hosts {
			hosts[i].reloads(files[i], yaml(to), "reloaded")
			for n := range 4 {
				locks(n % 2)
			}
		}
		if to == stage[1] {
			hosts[0].reloads(files[0], yaml(stage[3]), "reload_refused",
				"the old store decides their fences")
		}
	}
	hosts[1].reloads(files[1], yaml("store: b, fence_epoch: 3000000000000000"), "reload_refused",
		"fence_epoch is 3000000000000000 here, and 4000000000000000 on hosts")
	for _, h := range hosts {
		h.daemon.signal(syscall.SIGTERM)
		h.daemon.ends(0)
	}
}

// Keys have moved to etcd, and their earlier Redis is switched off too early, while one host still
// has a lock in both stores. The lock is released in etcd nevertheless, so that other hosts get it,
// and is then forgotten.
func TestALockInTwoStoresIsReleasedThoughTheOldStoreIsOff(t *testing.T) {
	t.Parallel()
	old := testserver.StartRedis(t)
	stores := "stores:\n  a: {upstream: '" + old.URL() + "'}\n  b: {upstream: 'etcd://" +
		testserver.StartEtcd(t).Addr() + "?" + patient + "'}\n"
	yaml := func(fields string) string {
		return stores + "namespaces:\n  '': {store: b}\n  'm:': {ttl: " + lease + ", " + fields + "}\n"
	}
	files, hosts := make([]string, 2), make([]*host, 2)
	for i := range hosts {
		files[i] = filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(files[i], []byte(yaml("store: a, both: b")), 0o600); err != nil {
			t.Fatal(err)
		}
		hosts[i] = newHost(t, "--config", files[i])
	}
	for i, h := range hosts {
		h.reloads(files[i], yaml("store: a, both: b, fence_epoch: 4000000000000000"), "reloaded")
	}
	p := hosts[0].run("lock", "m:k", "--", "sh", "-c", "echo up; read x; exit 0")
	p.line()
	for i, h := range hosts {
		h.reloads(files[i], yaml("store: b, fence_epoch: 4000000000000000"), "reloaded")
	}
	old.Stop()
	eventually(t, "the first host notices that Redis is off", func() bool {
		return strings.Contains(hosts[0].daemon.err.String(), `"event":"store_down"`)
	})
	p.letGo()
	p.ends(0)
	q := hosts[1].run("lock", "-w", "60s", "m:k", "--", "true")
	q.ends(0)
	for _, h := range hosts {
		eventually(t, "no lock is left", func() bool {
			p := h.run("status")
			p.ends(0)
			return strings.Contains(p.rest(), "every lock is at the store of its key")
		})
		h.daemon.signal(syscall.SIGTERM)
		h.daemon.ends(0)
	}
}

// A takeover happens between the rollouts of a move. The lock stays held, and fences continue to
// rise.
func TestATakeoverWhileKeysMoveToEtcd(t *testing.T) {
	yaml := "stores:\n  a: {upstream: '" + testserver.StartRedis(t).URL() +
		"'}\n  b: {upstream: 'etcd://" + testserver.StartEtcd(t).Addr() + "?" + patient +
		"'}\nnamespaces:\n  '': {ttl: " + lease + ", store: a, both: b"
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(yaml+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	last := 0
	for _, fields := range []string{"", ", fence_epoch: 4000000000000000"} {
		h.reloads(file, yaml+fields+"}\n", "reloaded")
		p := h.lock(nil, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
		held := p.number()
		h.takenOver("--config", file)
		q := h.lock(nil, "echo $LOCKSIDECAR_FENCE; read x; exit 0")
		h.waitFor(1, 1)
		p.letGo()
		p.ends(0)
		next := q.number()
		q.letGo()
		q.ends(0)
		if held <= last || next <= held {
			t.Errorf("fences %d and %d after %d", held, next, last)
		}
		last = next
	}
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}

// A Redis loses its counter, as in a failover, and a reload opens the Redis anew: alone, with other
// time limits, or with both. The daemon has seen a larger fence, so its fences continue to rise.
func TestFencesRiseIfAReloadMeetsAStoreThatHasLostItsCounter(t *testing.T) {
	server := testserver.StartRedis(t)
	url, etcd := server.URL(), testserver.StartEtcd(t).Addr()
	yaml := func(fields, query string) string {
		return "stores:\n  a: {upstream: '" + url + query + "'}\n  b: {upstream: 'etcd://" + etcd + "?" +
			patient + "'}\n" +
			"namespaces:\n  '': {store: a}\n  'm:': {store: a" + fields + "}\n"
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(yaml(", fence_epoch: 4000000000000000", "")),
		0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	last := 0
	locks := func(what string) {
		t.Helper()
		p := h.run("lock", "m:k", "--", "sh", "-c", "echo $LOCKSIDECAR_FENCE")
		fence := p.number()
		p.ends(0)
		if fence <= last {
			t.Errorf("%s: fence %d after %d", what, fence, last)
		}
		last = fence
	}
	locks("with an epoch")
	for _, next := range []struct{ what, fields, query string }{
		{"without the epoch, with both", ", both: b", ""},
		{"alone again", "", "?timeout=3s"},
		{"with another time limit", "", "?timeout=4s"},
		{"with both again", ", both: b", "?timeout=5s"},
	} {
		h.reloads(file, yaml(next.fields, next.query), "reloaded")
		server.Do("DEL", "locksidecar:{}:fence")
		locks(next.what)
	}
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}

// Keys move to another store in one step. The store that they leave was ahead of the clock.
func TestFencesRiseWhenKeysMoveAtOnce(t *testing.T) {
	a, b, etcd := testserver.StartRedis(t).URL(), testserver.StartRedis(t).URL(),
		testserver.StartEtcd(t).Addr()
	stores := "stores:\n  a: {upstream: '" + a + "'}\n  b: {upstream: '" + b +
		"'}\n  c: {upstream: 'etcd://" + etcd + "?" + patient + "'}\n"
	yaml := func(fields string) string {
		return stores + "namespaces:\n  '': {store: a}\n  'm:': {" + fields + "}\n"
	}
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(yaml("store: a, fence_epoch: 4000000000000000")),
		0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	locks := func() int {
		t.Helper()
		p := h.run("lock", "m:k", "--", "sh", "-c", "echo $LOCKSIDECAR_FENCE")
		defer p.ends(0)
		return p.number()
	}
	last := locks()
	for _, fields := range []string{"store: b", "store: a", "store: a, both: b", "store: b"} {
		h.reloads(file, yaml(fields), "reloaded")
		if n := locks(); n <= last {
			t.Errorf("%s: fence %d after %d", fields, n, last)
		} else {
			last = n
		}
	}

	// etcd decides its fences itself. They fall, and the log states which fence_epoch prevents that.
	h.reloads(file, yaml("store: c"), "reloaded", `"event":"fences_may_fall"`,
		fmt.Sprintf(`"base":%d`, last>>10))
	if n := locks(); n >= last {
		t.Errorf("fence %d at etcd after %d", n, last)
	}
	h.reloads(file, yaml("store: b"), "reloaded")
	if n := locks(); n <= last {
		t.Errorf("behind etcd: fence %d after %d", n, last)
	} else {
		last = n
	}
	before := len(h.daemon.err.String())
	h.reloads(file, yaml(fmt.Sprintf("store: c, fence_epoch: %d", last>>10)), "reloaded")
	if n := locks(); n <= last {
		t.Errorf("at etcd with fence_epoch: fence %d after %d", n, last)
	}
	if log := h.daemon.err.String()[before:]; strings.Contains(log, "fences_may_fall") {
		t.Errorf("fence_epoch is high enough:\n%s", log)
	}
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}
