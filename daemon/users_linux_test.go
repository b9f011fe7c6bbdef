package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/daemon"
	"github.com/locksidecar/locksidecar/daemon/engine"
	"github.com/locksidecar/locksidecar/protocol"
	"github.com/locksidecar/locksidecar/protocol/client"
)

// person is somebody else on this host.
type person struct {
	uid, gid int
	groups   []int
}

// as runs f on a thread with this person's user and groups, which servers see when f connects to
// them. The thread ends with f.
func (p person) as(t testing.TB, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never given back
		groups := make([]uint32, len(p.groups)+1)
		groups[0] = uint32(p.gid)
		for i, g := range p.groups {
			groups[i+1] = uint32(g)
		}
		// Package syscall would change all threads.
		_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
			uintptr(unsafe.Pointer(&groups[0])), 0)
		if e == 0 {
			_, _, e = unix.RawSyscall(unix.SYS_SETRESGID, uintptr(p.gid), uintptr(p.gid), uintptr(p.gid))
		}
		if e == 0 {
			_, _, e = unix.RawSyscall(unix.SYS_SETRESUID, uintptr(p.uid), uintptr(p.uid), uintptr(p.uid))
		}
		if e != 0 {
			done <- e
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// forAll runs a daemon that everybody on this host may connect to.
func forAll(t *testing.T, change func(*daemon.Config)) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	h := start(t, nil, func(c *daemon.Config) {
		c.SocketMode = 0o666
		change(c)
	})
	for dir := filepath.Dir(h.socket); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

// dialAs connects as somebody.
func (h *host) dialAs(p person) (c *client.Client) {
	h.t.Helper()
	var err error
	p.as(h.t, func() { c, err = client.Dial(h.t.Context(), h.socket, client.Options{}) })
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (h *host) rawAs(p person) (r *raw) {
	h.t.Helper()
	p.as(h.t, func() { r = h.raw() })
	return r
}

// The kernel says who connects, and namespaces let in whom they name: by user, by group, and by
// any further group.
func TestNamespacesLetInWhomTheyName(t *testing.T) {
	h := forAll(t, func(c *daemon.Config) {
		c.Namespaces = []engine.Namespace{
			{Store: "store"},
			{Store: "store", Prefix: "users:", Users: []int{2001}},
			{Store: "store", Prefix: "groups:", Groups: []int{3001}},
			{Store: "store", Prefix: "both:", Users: []int{2001}, Groups: []int{3001}},
			{Store: "store", Prefix: "root:", Users: []int{0}},
		}
	})
	all := []string{"", "users:", "groups:", "both:", "root:"}
	for _, x := range []struct {
		person
		may string // a letter for each of all
	}{
		{person{uid: 2001, gid: 3000}, "yy.y."},
		{person{uid: 2002, gid: 3001}, "y.yy."},
		{person{uid: 2002, gid: 3000, groups: []int{17, 3001}}, "y.yy."},
		{person{uid: 3001, gid: 2001}, "y...."}, // users and groups are not mixed up
		{person{uid: 2001, gid: 3001}, "yyyy."},
		{person{uid: 65534, gid: 65534}, "y...."},
		{person{}, "y...y"}, // root is a user as others are
	} {
		c := h.dialAs(x.person)
		told := make(map[string]bool)
		for _, n := range c.Welcome().Namespaces {
			told[n.Prefix] = true
		}
		for i, prefix := range all {
			may := x.may[i] == 'y'
			if told[prefix] != may {
				t.Errorf("%+v is told of %q: %v", x.person, prefix, told[prefix])
			}
			key := fmt.Sprint(prefix, "key")
			g, err := c.Acquire(t.Context(), client.AcquireArgs{Key: key})
			if may && err != nil || !may && !errors.Is(err, client.ErrDenied) {
				t.Errorf("%+v asks for %q: %v", x.person, key, err)
			}
			if _, err := c.Inspect(t.Context(), key); may != (err == nil) {
				t.Errorf("%+v looks at %q: %v", x.person, key, err)
			}
			many := []string{"other", key}
			if gs, err := c.AcquireMany(t.Context(), many,
				client.AcquireArgs{Owner: 7}); may == errors.Is(err, client.ErrDenied) {
				t.Errorf("%+v asks for %q: %v", x.person, many, err)
			} else if err == nil {
				release(t, c, "other", 7, gs[0].Fence)
				release(t, c, key, 7, gs[1].Fence)
			}
			if may && err == nil {
				release(t, c, key, 0, g.Fence)
			}
		}
		_ = c.Close()
	}
	// What is held there only those see who may.
	holder, other := h.dialAs(person{uid: 2001, gid: 1}), h.dialAs(person{uid: 2002, gid: 1})
	g := acquire(t, holder, client.AcquireArgs{Key: "users:held"})
	for c, want := range map[*client.Client]int{holder: 1, other: 0} {
		if rows, _, err := c.List(t.Context(), "", "", 0); err != nil || len(rows) != want {
			t.Errorf("%v, %v; %d should be seen", rows, err, want)
		}
	}
	if _, err := other.Release(t.Context(), client.ReleaseArgs{Key: "users:held",
		Fence: g.Fence}); !errors.Is(err, client.ErrNotHeld) {
		t.Errorf("somebody else releases it: %v", err)
	}
}

// One user asks for 50,000 locks that are held, from six connections, and takes what else there is
// to take; the others' connections, holds and waits are theirs.
func TestAUserWhoWantsEverythingGetsHisShare(t *testing.T) {
	const conns, holds, waiters, asks = 6, 1000, 20_000, 50_000
	h := forAll(t, func(c *daemon.Config) {
		c.Limits.Users = engine.UserLimits{Conns: conns, Holds: holds, Waiters: waiters}
		c.Limits.MaxWaiters = asks // a connection's does not come first
	})
	greedy, modest := person{uid: 2001, gid: 2001}, person{uid: 2002, gid: 2002}
	other := h.dialAs(modest)
	g := acquire(t, other, client.AcquireArgs{Key: "wanted"})

	var all []*raw
	for range conns {
		all = append(all, h.rawAs(greedy).hello())
	}
	h.rawAs(greedy).fatal(protocol.Limit)

	// Waiting: each of the requests is either refused, which is said at once, or waits.
	refused := 0
	for i, r := range all {
		var b []byte
		for n := range asks / conns {
			b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpAcquire, ID: uint64(1000 + n),
				Owner: uint64(n), Key: []byte("wanted"), Wait: protocol.WaitAlways})
		}
		b = protocol.AppendRequest(b, &protocol.Request{Op: protocol.OpPing, ID: 2})
		go func() { _, _ = r.Write(b) }()
		for m := r.next(); m.ID != 2; m = r.next() {
			if m.ID < 1000 || m.Code != protocol.Limit {
				t.Fatalf("connection %d: %d is answered %v", i, m.ID, m.Code)
			}
			refused++
		}
	}
	if waits := asks/conns*conns - refused; waits != waiters {
		t.Errorf("%d wait", waits)
	}
	if s, err := other.Inspect(t.Context(), "wanted"); err != nil || s.Waiters != waiters {
		t.Errorf("%d wait: %v", s.Waiters, err)
	}

	// The user has as many waits as the limit allows, so further requests are refused.
	r := all[0]
	r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 3, Key: []byte("free")})
	if m := r.next(); m.Code != protocol.Limit {
		t.Errorf("it is answered %v", m.Code)
	}
	for _, r := range all {
		_ = r.Close()
	}
	eventually(t, "his waits have gone", func() bool {
		s, err := other.Inspect(t.Context(), "wanted")
		return err == nil && s.Waiters == 0
	})
	granted := 0
	for i := range 3 {
		r := h.rawAs(greedy).hello()
		for n := range uint64(500) {
			r.send(&protocol.Request{Op: protocol.OpAcquire, ID: 1000 + n,
				Key: fmt.Appendf(nil, "free-%d-%d", i, n)})
		}
		codes := r.answers(1000, 500)
		if granted += codes[protocol.OK]; codes[protocol.OK]+codes[protocol.Limit] != 500 {
			t.Errorf("%v", codes)
		}
	}
	if granted != holds {
		t.Errorf("he holds %d", granted)
	}

	// And the other one notices nothing.
	waits := waitFor(t, h.dialAs(modest), "wanted")
	for n := range 100 {
		acquire(t, other, client.AcquireArgs{Key: fmt.Sprint("mine", n)})
	}
	release(t, other, "wanted", 0, g.Fence)
	if err := <-waits; err != nil {
		t.Error(err)
	}
}
