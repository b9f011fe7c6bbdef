package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// state returns the letter of a process's state in /proc, or 0 if there is no such process.
func state(pid int) byte {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[0]
}

// When the daemon is killed, the connection ends, and the lock is lost with it.
func TestLostWithTheDaemon(t *testing.T) {
	h := newHost(t)
	p := h.lock(nil, "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done")
	p.line()
	h.daemon.signal(syscall.SIGKILL)
	if got := p.line(); got != "told" {
		t.Errorf("read %q", got)
	}
	p.ends(79)
	if s := p.err.String(); !strings.Contains(s, "the lock k is lost (no connection to the daemon)") {
		t.Errorf("said %q", s)
	}
}

// If one of several keys is lost, the lock is lost, and the message names that key.
func TestLostOneOfSeveralInTheStore(t *testing.T) {
	r := testserver.StartRedis(t)
	h := newHost(t, "--upstream", r.URL())
	p := h.lock([]string{"--ttl", "1s", "a", "b"},
		"trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done")
	p.line()
	if n := r.Do("DEL", "lock:b"); n != int64(1) {
		t.Fatalf("deleted %v keys", n)
	}
	if got := p.line(); got != "told" {
		t.Errorf("read %q", got)
	}
	p.ends(79)
	if s := p.err.String(); !strings.Contains(s, "the lock b is lost (the store no longer has it: gone)") {
		t.Errorf("said %q", s)
	}
}

// A frozen daemon states no further validity, so the lock is lost.
func TestLostToAFrozenDaemon(t *testing.T) {
	h := newHost(t, "--upstream", testserver.StartRedis(t).URL())
	p := h.lock([]string{"--ttl", "500ms"}, "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done")
	p.line()
	h.daemon.signal(syscall.SIGSTOP)
	defer h.daemon.signal(syscall.SIGCONT)
	if got := p.line(); got != "told" {
		t.Errorf("read %q", got)
	}
	p.ends(79)
	if s := p.err.String(); !strings.Contains(s, "its validity is over") {
		t.Errorf("said %q", s)
	}
}

// A program that tries to acquire a lock at a frozen daemon does not hang, either.
func TestAFrozenDaemonIsAsGoodAsNone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.daemon.signal(syscall.SIGSTOP)
	defer h.daemon.signal(syscall.SIGCONT)
	p := h.lock([]string{"-n"}, "echo ran")
	q := h.run("health")
	p.ends(69)
	q.ends(69)
	if s := p.err.String(); !strings.Contains(s, "does not answer") {
		t.Errorf("said %q", s)
	}
}

// The store no longer has the token of the lease. The daemon learns that from a renewal, and pushes
// the loss.
func TestLostInTheStore(t *testing.T) {
	r := testserver.StartRedis(t)
	h := newHost(t, "--upstream", r.URL())
	p := h.lock([]string{"--ttl", "1s"}, "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done")
	p.line()
	if n := r.Do("DEL", "lock:k"); n != int64(1) {
		t.Fatalf("deleted %v keys", n)
	}
	if got := p.line(); got != "told" {
		t.Errorf("read %q", got)
	}
	p.ends(79)
	if s := p.err.String(); !strings.Contains(s, "lost (the store no longer has it: gone)") {
		t.Errorf("said %q", s)
	}
}

// A daemon that is told to end lets holders finish, and tells them how long they have. After the
// drain time it ends the remaining holds.
func TestLostToAnEndingDaemon(t *testing.T) {
	h := newHost(t, "--drain", "300ms")
	p := h.lock(nil, "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.01; done")
	p.line()
	h.daemon.signal(syscall.SIGTERM)
	if got := p.line(); got != "told" {
		t.Errorf("read %q", got)
	}
	p.ends(79)
	h.daemon.ends(0)
	if s := p.err.String(); !strings.Contains(s,
		"the daemon is stopping; the lock k ends in 300ms") {
		t.Errorf("said %q", s)
	}
}

func TestAHolderMayFinishWhileTheDaemonDrains(t *testing.T) {
	h := newHost(t, "--drain", "1m")
	p := h.lock(nil, "echo up; read x; exit 4")
	p.line()
	waiter := h.lock(nil, "echo ran")
	h.waitFor(1, 1)
	h.daemon.signal(syscall.SIGTERM)
	waiter.ends(69) // no acquire is granted any more
	late := h.run("lock", "other", "--", "true")
	late.ends(69)
	health := h.run("health")
	health.ends(69)
	p.letGo()
	p.ends(4)
	h.daemon.ends(0)
}

// A command that ignores SIGTERM is killed after --kill-after, and so are the processes that it has
// started.
func TestKillAfter(t *testing.T) {
	h := newHost(t)
	p := h.lock([]string{"--kill-after", "50ms"}, `trap "" TERM
		sh -c 'echo $$; exec sleep 60' &
		while :; do wait; done`)
	left := p.number()
	h.daemon.signal(syscall.SIGKILL)
	p.ends(79)
	if runs(left) {
		t.Error("the grandchild lives on")
	}
}

// The command ends at SIGTERM. A grandchild that ignores it is killed after --kill-after, and not
// later.
func TestGrandchildrenGoToo(t *testing.T) {
	h := newHost(t)
	p := h.lock([]string{"--kill-after", "50ms"}, `
		sh -c 'trap "" TERM; echo $$; exec sleep 60' &
		wait`)
	left := p.number()
	h.daemon.signal(syscall.SIGKILL)
	p.ends(79)
	if runs(left) {
		t.Error("the grandchild lives on")
	}
}

// A stopped command is continued, so that it gets SIGTERM, and is killed as well.
func TestLostWhileTheCommandIsStopped(t *testing.T) {
	h := newHost(t)
	// The script is not a loop of commands: a shell that is just starting one may be blocked by the
	// stopped child, and is not stopped itself.
	p := h.lock(nil, "trap 'echo told; exit 0' TERM; sleep 1000 & echo $$; while :; do wait; done")
	pid := p.number()
	p.signal(syscall.SIGTSTP)
	eventually(t, "the command is stopped", func() bool { return state(pid) == 'T' })
	h.daemon.signal(syscall.SIGKILL)
	if got := p.line(); got != "told" {
		t.Errorf("read %q", got)
	}
	p.ends(79)
}

func TestOnLostKill(t *testing.T) {
	h := newHost(t)
	p := h.lock([]string{"--on-lost", "kill"}, `trap 'echo told' TERM
		sh -c 'trap "" TERM; echo $$; exec sleep 60' &
		while :; do wait; done`)
	left := p.number()
	h.daemon.signal(syscall.SIGKILL)
	p.ends(79)
	if s := p.rest(); s != "" {
		t.Errorf("read %q", s)
	}
	if runs(left) {
		t.Error("the grandchild lives on")
	}
}

func TestOnLostWarn(t *testing.T) {
	h := newHost(t)
	p := h.lock([]string{"--on-lost", "warn"}, "echo up; read x; exit 8")
	p.line()
	h.daemon.signal(syscall.SIGKILL)
	eventually(t, "it is said", func() bool { return strings.Contains(p.err.String(), "continues without it") })
	p.letGo()
	p.ends(8)
}

func TestQuietSaysNothingOfALoss(t *testing.T) {
	h := newHost(t)
	p := h.lock([]string{"-q"}, "echo up; exec sleep 1000")
	p.line()
	h.daemon.signal(syscall.SIGKILL)
	p.ends(79)
	if s := p.err.String(); s != "" {
		t.Errorf("said %q", s)
	}
}

// The daemons of two hosts on one Redis exclude each other.
func TestTwoHosts(t *testing.T) {
	r := testserver.StartRedis(t)
	a := newHost(t, "--upstream", r.URL())
	b := newHost(t, "--upstream", r.URL())
	p := a.lock(nil, "echo $LOCKSIDECAR_FENCE; read x")
	first := p.number()
	b.lock([]string{"-n"}, "echo ran").ends(75)
	next := b.lock([]string{"-w", "1m"}, "echo $LOCKSIDECAR_FENCE")
	b.waitFor(0, 1)
	p.letGo()
	p.ends(0)
	if second := next.number(); second <= first {
		t.Errorf("fences %d, then %d", first, second)
	}
	next.ends(0)
}

// A TTL that the store cannot keep is wrong usage, for the daemon as well.
func TestTooShortALease(t *testing.T) {
	r := testserver.StartRedis(t)
	h := newHost(t, "--upstream", r.URL())
	p := h.lock([]string{"--ttl", "20ms"}, "echo ran")
	p.ends(64)
	if s := p.err.String(); !strings.Contains(s, "shorter than the store's minimum") {
		t.Errorf("said %q", s)
	}
	q := h.run("serve", "--socket", h.socket+"2", "--upstream", r.URL(), "--ttl", "20ms")
	q.ends(64)
	if s := q.err.String(); !strings.Contains(s, "ttl (--ttl): 20ms is too short for this store") {
		t.Errorf("said %q", s)
	}
}

// When the store cannot be reached, a program that acquires a lock is told so in time.
func TestNoStore(t *testing.T) {
	r := testserver.StartRedis(t)
	h := newHost(t, "--upstream", r.URL())
	r.Kill()
	p := h.lock([]string{"-n"}, "echo ran")
	p.ends(69)
	q := h.run("health")
	q.ends(69)
	if s := q.err.String(); !strings.Contains(s, "unavailable") {
		t.Errorf("health said %q", s)
	}
	s := h.run("status")
	s.ends(69)
	if out := s.rest(); !strings.Contains(out, "does not answer") ||
		!strings.Contains(out, "running, version") {
		t.Errorf("status is\n%s", out)
	}
}

// Many programs run under one lock. No two run at the same time, and each of them gets its turn.
func TestOneAtATime(t *testing.T) {
	h := newHost(t)
	const n = 12
	var ps []*proc
	for range n {
		ps = append(ps, h.lock(nil, `mkdir inside || echo two inside; rmdir inside; echo done`))
	}
	for i, p := range ps {
		if got := p.line(); got != "done" {
			t.Errorf("%d: %s", i, got)
		}
		p.ends(0)
	}
	h.waitFor(0, 0)
}
