package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/protocol/client"
)

// The program as another user runs it: file permissions, users and groups in the configuration, and
// its exit codes.
func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	h := bareHost(t)
	if err := os.Chmod(h.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	self, err := exec.LookPath("locksidecar")
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(h.dir, "locksidecar") // where everybody may run it
	if err := os.WriteFile(bin, b, 0o755); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(h.dir, "config.yaml")
	text := "socket_mode: 0660\nsocket_group: '3001'\nlimits: {max_user_holds: 1}\nnamespaces:\n" +
		"  'user:': {users: ['2001', root]}\n  'group:': {groups: ['3002']}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.serve("--config", config)
	as := func(uid, gid uint32, groups []uint32, args ...string) (int, string) {
		cmd := exec.Command(bin, args...)
		cmd.Dir, cmd.Env = "/", append(os.Environ(), h.env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid, Groups: groups}}
		out, _ := cmd.CombinedOutput()
		return cmd.ProcessState.ExitCode(), string(out)
	}
	lock := func(key string) []string { return []string{"lock", "-n", key, "--", "true"} }
	const denied = 77
	for _, x := range []struct {
		uid, gid uint32
		groups   []uint32
		key      string
		code     int
	}{
		{2001, 3001, nil, "any", 0},
		{2001, 3001, nil, "user:k", 0},
		{2002, 3001, nil, "user:k", denied},
		{2001, 3001, nil, "group:k", denied},
		{2001, 3001, []uint32{3002}, "group:k", 0},
		{2002, 3002, []uint32{3001}, "group:k", 0},
		{2002, 3002, nil, "any", denied}, // the socket's group keeps it out
		{0, 0, nil, "user:k", 0},
		{0, 0, nil, "group:k", denied},
	} {
		if code, out := as(x.uid, x.gid, x.groups, lock(x.key)...); code != x.code {
			t.Errorf("%+v: exit code %d\n%s", x, code, out)
		}
	}
	if code, out := as(2002, 3001, nil, "unlock", "--force", "any"); code == 0 || strings.Contains(out, "unlocked") {
		t.Errorf("somebody unlocks by force: %d, %s", code, out)
	}

	// A user who may not take over is told so, and not that there is no daemon or that it will hand over later.
	for gid, why := range map[uint32]string{
		3001: "only root and the daemon's own user may take over",
		3002: "this user (uid 2002) may not connect to " + h.socket + ".admin",
	} {
		if code, out := as(2002, gid, nil, "serve", "--takeover"); code != denied || !strings.Contains(out, why) || strings.Contains(out, "takeover_nobody") {
			t.Errorf("somebody takes over: exit code %d\n%s", code, out)
		}
	}

	// What a user has counts in the process that takes over, too, and no other user's does.
	held, err := client.Dial(t.Context(), h.socket, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	hold, err := held.Lock(t.Context(), client.AcquireArgs{Key: "held"})
	if err != nil {
		t.Fatal(err)
	}
	for _, took := range []bool{false, true} {
		if took {
			h.takenOver("--config", config)
		}
		if code, out := as(0, 0, nil, lock("more")...); code == 0 || !strings.Contains(out, "user's sessions hold") {
			t.Errorf("taken over: %v: exit code %d, %s", took, code, out)
		}
		if code, out := as(2001, 3001, nil, lock("other")...); code != 0 {
			t.Errorf("taken over: %v: exit code %d, %s", took, code, out)
		}
	}
	if err := hold.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if code, out := as(0, 0, nil, lock("more")...); code != 0 {
		t.Errorf("exit code %d, %s", code, out)
	}
}
