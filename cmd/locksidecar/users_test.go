package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/locksidecar/locksidecar/protocol/client"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// program copies the program to a path where every user may run it, and returns the path.
func (h *host) program() string {
	h.t.Helper()
	if err := os.Chmod(h.dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	self, err := exec.LookPath("locksidecar")
	if err != nil {
		h.t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		h.t.Fatal(err)
	}
	bin := filepath.Join(h.dir, "locksidecar")
	if err := os.WriteFile(bin, b, 0o755); err != nil {
		h.t.Fatal(err)
	}
	return bin
}

// A user who may not write at the path of the socket gets advice, whatever the store is.
func TestAPlaceForTheSocketThatIsNotOurs(t *testing.T) {
	h := bareHost(t)
	bin := h.program()
	for _, dir := range []string{"closed", "empty"} {
		if err := os.Mkdir(filepath.Join(h.dir, dir), 0o555); err != nil {
			t.Fatal(err)
		}
	}
	server := testserver.StartRedis(t)
	serve := func(socket, upstream string) string {
		t.Helper()
		args := []string{"serve", "--upstream", upstream}
		if socket != "" {
			args = append(args, "--socket", socket)
		}
		cmd := exec.Command(bin, args...)
		cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"),
			noRaceSleep[0] + "=" + noRaceSleep[1]}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 2001, Gid: 2001}}
		}
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitCannotMake {
			t.Errorf("%q, %s: exit code %d", socket, upstream, code)
		}
		return string(out)
	}
	const remedy = "permission denied; set LOCKSIDECAR_SOCKET, for the daemon and its clients, " +
		"to a path in a directory where you may write\n"
	missing, closed := filepath.Join(h.dir, "closed/none/s.sock"), filepath.Join(h.dir, "empty/s.sock")
	for _, c := range []struct{ socket, upstream, want string }{
		{missing, "memory:", "make the socket's directory: mkdir " + filepath.Dir(missing) +
			": " + remedy},
		{closed, "memory:", "lock the state file: open " + closed + ".state.lock: " + remedy},
		{missing, server.URL(), "socket cannot be made: " + missing + ": mkdir " + filepath.Dir(missing) +
			": " + remedy},
		{closed, server.URL(), "socket cannot be made: " + closed + ": open " + closed +
			".lock: " + remedy},
	} {
		if out := serve(c.socket, c.upstream); !strings.HasSuffix(out, c.want) {
			t.Errorf("%s, %s: %s", c.socket, c.upstream, out)
		}
	}
	// This is the default without XDG_RUNTIME_DIR, unless this machine lets that user write there.
	if _, err := os.Stat("/run/locksidecar"); errors.Is(err, fs.ErrNotExist) {
		if out := serve("", "memory:"); !strings.HasSuffix(out,
			"make the socket's directory: mkdir /run/locksidecar: "+remedy) {
			t.Error(out)
		}
	}
}

// Another user runs the program. The test checks file permissions, the users and groups of the
// configuration, and the exit codes.
func TestOtherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be somebody else")
	}
	h := bareHost(t)
	bin := h.program()
	config := filepath.Join(h.dir, "config.yaml")
	text := "socket_mode: 0660\nsocket_group: '3001'\nlimits: {max_user_holds: 1}\n" +
		"operators: {users: ['2003']}\nnamespaces:\n" +
		"  'user:': {users: ['2001', root]}\n  'group:': {groups: ['3002']}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.serve("--config", config)
	as := func(uid, gid uint32, groups []uint32, args ...string) (int, string) {
		cmd := exec.Command(bin, args...)
		cmd.Dir, cmd.Env = "/", append(os.Environ(), h.env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid,
			Groups: groups}}
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
	if code, out := as(2002, 3001, nil, "unlock", "--force", "any"); code == 0 ||
		strings.Contains(out, "unlocked") {
		t.Errorf("somebody unlocks by force: %d, %s", code, out)
	}

	// An operator need not be able to open the admin socket, which systemd keeps for root.
	if err := os.Chmod(h.socket+".admin", 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := as(2003, 3001, nil, "waiters"); code != denied ||
		!strings.Contains(out, "may not open the daemon's admin socket, "+h.socket+
			".admin; run this as root") {
		t.Errorf("a user lists waiters: %d, %s", code, out)
	}
	victim := h.run("lock", "user:forced", "--", "sh", "-c", "echo up; read x")
	victim.line()
	if code, out := as(2002, 3001, nil, "unlock", "--force", "user:forced"); code != denied ||
		!strings.Contains(out, "only root, the daemon's own user and operators may unlock "+
			"by force") {
		t.Errorf("somebody unlocks by force: %d, %s", code, out)
	}
	if code, out := as(2003, 3001, nil, "unlock", "--force", "user:forced"); code != 0 ||
		!strings.Contains(out, "user:forced: taken away; number of holds: 1") {
		t.Errorf("an operator unlocks by force: %d, %s", code, out)
	}
	if code, out := as(2003, 3001, nil, "unlock", "--force", "user:forced"); code != exitNotHeld {
		t.Errorf("nothing is left to unlock: %d, %s", code, out)
	}
	if err := os.Chmod(h.socket+".admin", 0o660); err != nil {
		t.Fatal(err)
	}

	// A user who may not take over is told so. The message does not say that there is no daemon, or
	// that the daemon will agree to a takeover later.
	for gid, why := range map[uint32]string{
		3001: "only root and the daemon's own user may take over",
		3002: "this user (uid 2002) may not connect to " + h.socket + ".admin",
	} {
		if code, out := as(2002, gid, nil, "serve", "--takeover"); code != denied ||
			!strings.Contains(out, why) || strings.Contains(out, "takeover_nobody") {
			t.Errorf("somebody takes over: exit code %d\n%s", code, out)
		}
	}

	// The process that takes over also counts what a user has, and does not mix up users.
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
		if code, out := as(0, 0, nil, lock("more")...); code == 0 ||
			!strings.Contains(out, "this user has reached the limit of held locks") {
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
