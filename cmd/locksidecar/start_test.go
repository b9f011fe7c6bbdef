package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// loading starts a Redis that answers LOADING during the whole test.
func loading(t testing.TB) (addr string) {
	t.Helper()
	srv := testserver.StartRedis(t, "--enable-debug-command", "yes",
		"--loading-process-events-interval-bytes", "1024")
	srv.Do("DEBUG", "POPULATE", 20_000, "key", 100)
	srv.Do("SAVE")
	srv.Do("CONFIG", "SET", "key-load-delay", 20_000) // microseconds
	admin, done := srv.Admin(), make(chan struct{})
	go func() {
		defer close(done)
		_ = admin.Do(context.Background(), "DEBUG", "RELOAD", "NOSAVE").Err() // it ends with the server
	}()
	t.Cleanup(func() { srv.Kill(); <-done })
	eventually(t, "it loads", func() bool {
		err := admin.Get(context.Background(), "key:1").Err()
		return err != nil && strings.HasPrefix(err.Error(), "LOADING")
	})
	return srv.Addr()
}

// A Redis that does not answer, or is still loading, counts as unreachable. If possible, the daemon
// starts without it, and a reload can add it.
func TestAStoreThatDoesNotAnswerAtTheStart(t *testing.T) {
	t.Parallel()
	mute, _ := silent(t)
	for name, addr := range map[string]string{"silent": mute, "loading": loading(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := bareHost(t)
			h.daemon = h.run("serve", "--log-format", "json", "--upstream", "redis://"+addr,
				"--outage", "local")
			eventually(t, "it serves", func() bool { return strings.Contains(h.daemon.err.String(), `"event":"serving"`) })
			p := h.lock([]string{"-w", "60s"}, "true")
			p.ends(0)
			if log := h.daemon.err.String(); !strings.Contains(log, `"event":"store_down"`) {
				t.Errorf("it does not say that the store is down:\n%s", log)
			}
			alone := bareHost(t).run("serve", "--upstream", "redis://"+addr)
			alone.ends(69)

			second := "stores:\n  r: {upstream: 'redis://" + addr + "'}\nnamespaces:\n  'x:': {store: r}\n"
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			h = newHost(t, "--config", file)
			h.reloads(file, second, "reloaded", "store_down")
			h.takenOver("--config", file)
			h.run("lock", "k", "--", "true").ends(0)
			h.run("lock", "x:k", "--", "true").ends(69)
			h.daemon.signal(syscall.SIGTERM)
			h.daemon.ends(0)
		})
	}
}

// If a server answers and refuses the daemon, the configuration is faulty.
func TestAStoreThatRefusesUsAtTheStart(t *testing.T) {
	srv := testserver.StartRedis(t, "--requirepass", "right")
	h := bareHost(t)
	h.env = append(h.env, "LOCKSIDECAR_PASSWORD=wrong")
	p := h.run("serve", "--upstream", srv.URL(), "--outage", "local")
	p.ends(69)
	if log := p.err.String(); !strings.Contains(log, "WRONGPASS") {
		t.Errorf("it does not say why:\n%s", log)
	}
}

// Keys leave the embedded store only with a restart. A reload that would open that store twice is
// refused.
func TestMovingFromTheEmbeddedStore(t *testing.T) {
	srv := testserver.StartRedis(t)
	stores := "stores:\n  r: {upstream: '" + srv.URL() + "'}\n"
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(stores), 0o600); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "--config", file)
	h.reloads(file, stores+"namespaces:\n  '': {both: r}\n", "reload_refused", "needs a restart")
	h.run("lock", "k", "--", "true").ends(0)
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
	h.serve("--config", file)
	h.run("lock", "k", "--", "true").ends(0)
	h.reloads(file, stores+"namespaces:\n  '': {store: r}\n", "reloaded")
	h.run("lock", "k", "--", "true").ends(0)
}

// startsWithoutAStoreOfAPair starts a daemon with a file of this text, in which the keys x: are in
// two stores, one of which is down. Another process takes over from the daemon once.
func startsWithoutAStoreOfAPair(t *testing.T, text string) (h *host, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h = bareHost(t)
	h.daemon = h.run("serve", "--log-format", "json", "--config", file)
	eventually(t, "it serves", func() bool { return strings.Contains(h.daemon.err.String(), `"event":"serving"`) })
	h.run("lock", "k", "--", "true").ends(0)
	h.run("lock", "x:k", "--", "true").ends(69)
	h.takenOver("--config", file)
	return h, file
}

// pairWorks waits until keys x: can be locked.
func (h *host) pairWorks() {
	h.t.Helper()
	eventually(h.t, "the pair works", func() bool {
		p := h.run("lock", "-w", "5s", "x:k", "--", "true")
		<-p.done
		return exitCode(p.cmd.ProcessState) == 0
	})
}

// A daemon starts although one store of a pair is down, as it does without any other store. A
// reload does not begin such a move.
func TestAPairWithAStoreThatIsDown(t *testing.T) {
	up, down := testserver.StartRedis(t), testserver.StartRedis(t)
	stores := "stores:\n  old: {upstream: '" + up.URL() + "'}\n  new: {upstream: '" +
		down.URL() + "'}\n"
	moving := stores + "namespaces:\n  'x:': {store: old, both: new}\n"
	down.Kill()
	h, file := startsWithoutAStoreOfAPair(t, moving)
	down.Start()
	h.pairWorks()
	h.reloads(file, stores+"namespaces:\n  'x:': {store: old}\n", "reloaded")
	down.Kill()
	h.reloads(file, moving, "reload_refused", "connection refused")
}

// The new store of a pair, which has to be told of the pair's keys, is down when a daemon starts or
// takes over. The daemon tells the store before it grants the first lock. A reload that changes
// nothing about these keys does not need the store, either.
func TestAPairWhoseNewStoreCannotBeToldOfItsKeysYet(t *testing.T) {
	t.Parallel()
	up, down := testserver.StartRedis(t), testserver.StartEtcd(t)
	stores := "stores:\n  old: {upstream: '" + up.URL() + "'}\n  new: {upstream: 'etcd://" +
		down.Addr() + "'}\n"
	moving := stores + "namespaces:\n  'x:': {store: old, both: new}\n"
	down.Kill()
	h, file := startsWithoutAStoreOfAPair(t, moving)
	h.reloads(file, moving+"max_wait: 1h\n", "reloaded")
	down.Start()
	h.pairWorks()
	if err := os.WriteFile(file, []byte(stores+"namespaces:\n  'x:': {store: new}\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	next := bareHost(t).run("serve", "--config", file)
	next.ends(64)
	if log := next.err.String(); !strings.Contains(log, "the old store decides their fences") {
		t.Errorf("the new store was not told of the keys:\n%s", log)
	}
	down.Kill()
	h.reloads(file, moving, "reloaded")
	h.reloads(file, moving+"  'y:': {store: old, both: new}\n", "reload_refused")
}

// The old store of a pair is down when a daemon starts. The daemon tells the new store of the
// pair's keys nevertheless, because a host that would use the new store alone must not start
// meanwhile.
func TestAPairWhoseOldStoreIsDownTellsTheNewOneOfItsKeys(t *testing.T) {
	t.Parallel()
	down, up := testserver.StartRedis(t), testserver.StartEtcd(t)
	stores := "stores:\n  old: {upstream: '" + down.URL() + "'}\n  new: {upstream: 'etcd://" +
		up.Addr() + "'}\n"
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(yaml string) {
		if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(stores + "namespaces:\n  'x:': {store: old, both: new}\n")
	down.Kill()
	h := bareHost(t)
	h.daemon = h.run("serve", "--log-format", "json", "--config", file)
	eventually(t, "it serves", func() bool { return strings.Contains(h.daemon.err.String(), `"event":"serving"`) })
	write(stores + "namespaces:\n  'x:': {store: new}\n")
	next := bareHost(t).run("serve", "--config", file)
	next.ends(64)
	if log := next.err.String(); !strings.Contains(log, "the old store decides their fences") {
		t.Errorf("the new store was not told of the keys:\n%s", log)
	}
}

// The message names the fault if TLS is used on a port without it, or an admin port is in use.
func TestAPortOfTheWrongKind(t *testing.T) {
	srv := testserver.StartRedis(t)
	p := bareHost(t).run("serve", "--upstream", "rediss://"+srv.Addr())
	p.ends(69)
	if log := p.err.String(); !strings.Contains(log, "TLS handshake with "+srv.Addr()+": ") ||
		!strings.Contains(log, "(is it a TLS port?)") {
		t.Errorf("TLS to a plain port: %s", log)
	}
	h := bareHost(t)
	p = h.run("serve", "--admin-listen", srv.Addr())
	p.ends(73)
	if log := p.err.String(); !strings.Contains(log,
		"cannot listen on the address of admin_listen: listen tcp "+srv.Addr()+": ") ||
		!strings.Contains(log, "address already in use") ||
		strings.Contains(log, "socket cannot be made") {
		t.Errorf("an admin port in use: %s", log)
	}
	h.serve() // the daemon that did not start has left nothing behind
	h.daemon.signal(syscall.SIGTERM)
	h.daemon.ends(0)
}
