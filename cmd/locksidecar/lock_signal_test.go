package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// A signal during the wait withdraws the acquire, and the exit code tells which signal it was.
func TestASignalEndsTheWait(t *testing.T) {
	h := newHost(t)
	holder := h.lock(nil, "echo up; read x")
	holder.line()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP,
		syscall.SIGQUIT} {
		p := h.lock(nil, "echo ran")
		h.waitFor(1, 1)
		p.signal(sig)
		p.ends(128 + int(sig))
		if s := p.rest(); s != "" {
			t.Errorf("%v: the command ran: %q", sig, s)
		}
		h.waitFor(1, 0)
	}
	holder.letGo()
	holder.ends(0)
	h.waitFor(0, 0)
}

// A waiter that is killed by SIGKILL leaves no acquire behind, either.
func TestAKilledWaiterIsWithdrawn(t *testing.T) {
	h := newHost(t)
	holder := h.lock(nil, "echo up; read x")
	holder.line()
	p := h.lock(nil, "echo ran")
	h.waitFor(1, 1)
	p.signal(syscall.SIGKILL)
	h.waitFor(1, 0)
	holder.letGo()
	holder.ends(0)
}

// The next waiter gets the lock when the command has ended, and not before.
func TestWaitersTakeTurns(t *testing.T) {
	h := newHost(t)
	holder := h.lock(nil, "echo up; read x; echo down")
	holder.line()
	next := h.lock([]string{"-w", "1m"}, "echo mine")
	h.waitFor(1, 1)
	holder.letGo()
	if got := holder.line(); got != "down" {
		t.Errorf("the holder says %q", got)
	}
	holder.ends(0)
	if got := next.line(); got != "mine" {
		t.Errorf("the next says %q", got)
	}
	next.ends(0)
	h.waitFor(0, 0)
}

// A signal that arrives while the command runs is passed to the command's whole group.
func TestSignalsAreForwarded(t *testing.T) {
	h := newHost(t)
	for _, sig := range []string{"TERM", "INT", "HUP", "QUIT", "USR1"} {
		p := h.lock(nil, fmt.Sprintf(`
			trap 'echo parent; exit 5' %[1]s
			sh -c 'trap "echo child; exit" %[1]s; echo up; while kill -0 $PPID; do sleep 0.01; done'`, sig))
		p.line()
		p.signal(signals[sig])
		if got := p.line() + " " + p.line(); got != "child parent" {
			t.Errorf("%s reached %q", sig, got)
		}
		p.ends(5)
		h.waitFor(0, 0)
	}
}

var signals = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT,
	"HUP":  syscall.SIGHUP,
	"QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1}

// SIGUSR2 makes a daemon start its successor. If the signal is sent to every process with the
// program's name, it ends no job, whether the job runs or still waits for its lock.
func TestASignalForTheDaemonEndsNoJob(t *testing.T) {
	h := newHost(t)
	p := h.lock(nil, "echo up; read x; exit 0")
	p.line()
	waits := h.lock(nil, "exit 0")
	h.waitFor(1, 1)
	p.signal(syscall.SIGUSR2)
	waits.signal(syscall.SIGUSR2)
	p.letGo()
	p.ends(0)
	waits.ends(0)
	h.waitFor(0, 0)
}

// If a signal n ends the command, the exit code is 128 + n.
func TestTheCodeOfACommandThatDiesOfASignal(t *testing.T) {
	h := newHost(t)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP,
		syscall.SIGUSR1} {
		p := h.lock(nil, "echo up; exec sleep 1000")
		p.line()
		p.signal(sig)
		p.ends(128 + int(sig))
	}
	h.waitFor(0, 0)
}

// nohup also applies to the command.
func TestAnIgnoredHangupStaysIgnored(t *testing.T) {
	h := newHost(t)
	p := launch(t, h.dir, h.env, "sh", "-c", `trap "" HUP; exec locksidecar lock k -- sh -c 'echo up; read x; echo on'`)
	p.line()
	p.signal(syscall.SIGHUP)
	p.letGo()
	if got := p.line(); got != "on" {
		t.Errorf("read %q", got)
	}
	p.ends(0)
}

// Stop and continue signals reach the command, and the lock stays held meanwhile. Without a
// terminal, lock itself is not stopped, so that it can watch the lock.
func TestStopAndContinue(t *testing.T) {
	h := newHost(t)
	p := h.lock(nil, "echo $$; read x; exit 6")
	pid := p.number()
	p.signal(syscall.SIGTSTP)
	eventually(t, "the command is stopped", func() bool { return state(pid) == 'T' })
	h.waitFor(1, 0)
	p.signal(syscall.SIGCONT)
	eventually(t, "the command goes on", func() bool { return state(pid) != 'T' })
	p.letGo()
	p.ends(6)
}

// However lock ends, the command does not outlive it.
func TestTheCommandDiesWithUs(t *testing.T) {
	h := newHost(t)
	p := h.lock(nil, "echo $$; trap '' TERM INT HUP; while :; do sleep 0.01; done")
	pid := p.number()
	p.signal(syscall.SIGKILL)
	eventually(t, "the command is dead", func() bool { return !runs(pid) })
	h.waitFor(0, 0)
}

func TestTheLockIsGivenBackWhileGrandchildrenLive(t *testing.T) {
	h := newHost(t)
	p := h.lock(nil, "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3")
	left := p.number()
	p.ends(3)
	defer syscall.Kill(left, syscall.SIGKILL)
	if !runs(left) {
		t.Fatal("the grandchild ended too, so this tests nothing")
	}
	h.waitFor(0, 0)
}

func TestTheCommandsNameIsListedAndItsArgumentsAreNot(t *testing.T) {
	h := newHost(t)
	p := h.run("lock", "k", "--", "sh", "-c", "echo up; read x # sesame")
	p.line()
	list := h.run("locks")
	list.ends(0)
	s := list.rest()
	if !strings.Contains(s, "locksidecar lock/sh") || strings.Contains(s, "sesame") {
		t.Errorf("the list is\n%s", s)
	}
	p.letGo()
	p.ends(0)
}
