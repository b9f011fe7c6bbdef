package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

const parentSocket = "LOCKSIDECAR_TEST_PARENT_SOCKET"

// TestParentProcess is not a test but a process of the test below. It acquires a lock, leaves its
// socket to a child and prints the child's number. It ends when its input does.
func TestParentProcess(t *testing.T) {
	socket := os.Getenv(parentSocket)
	if socket == "" {
		t.Skip("part of another test")
	}
	r := (&host{t: t, socket: socket}).raw().hello()
	r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 2, Key: []byte("k")})
	if m := r.next(); m.Code != protocol.OK {
		t.Fatal(m.Code)
	}
	f, err := r.File()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "1000")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	fmt.Println("child", child.Process.Pid)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// The end of the process is the end of its session, though a child that it has
// forked keeps the socket open.
func TestAForkedChildDoesNotKeepTheLocksOfItsParent(t *testing.T) {
	t.Parallel()
	h := start(t, nil, nil)
	parent := exec.Command(os.Args[0], "-test.run=^TestParentProcess$", "-test.v")
	parent.Env = append(os.Environ(), parentSocket+"="+h.socket)
	in, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	child := 0
	for lines := bufio.NewScanner(out); child == 0 && lines.Scan(); {
		if pid, ok := strings.CutPrefix(lines.Text(), "child "); ok {
			child, _ = strconv.Atoi(pid)
		}
	}
	if child == 0 {
		t.Fatalf("the parent has no child: %v", parent.Wait())
	}
	defer syscall.Kill(child, syscall.SIGKILL)

	c := h.dial(client.Options{})
	if s, err := c.Inspect(t.Context(), "k"); err != nil || s.Holders != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	_ = in.Close()
	if err := parent.Wait(); err != nil {
		t.Fatal(err)
	}
	g := acquire(t, c, client.AcquireArgs{Key: "k", Wait: bound})
	if err := syscall.Kill(child, 0); err != nil {
		t.Errorf("the child has gone too: %v", err)
	}
	release(t, c, "k", 0, g.Fence)
}
