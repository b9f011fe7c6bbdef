package scenario

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/bench/load"
	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// built is the directory of the daemon that the tests have built.
var built string

// TestMain makes this program usable as a worker and as a bare server.
func TestMain(m *testing.M) {
	harness.Main(load.Program)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(built)
		os.Exit(code)
	}))
}

// daemonProgram returns the path of the daemon: the one that LOCKSIDECAR_BIN names, or one that it
// builds once.
var daemonProgram = sync.OnceValues(func() (path string, err error) {
	if path = os.Getenv("LOCKSIDECAR_BIN"); path != "" {
		_, err = os.Stat(path) // so that a cached result of the test depends on the program
		return path, err
	}
	if built, err = os.MkdirTemp("", "bench-bin-"); err != nil {
		return "", err
	}
	path = filepath.Join(built, "locksidecar")
	return path, buildReleased(context.Background(), "../..", path)
})

// shortEnv returns an environment with windows that are too short for results about speed. The test
// runs in parallel with others, because scenes mostly wait.
func shortEnv(t *testing.T) *Env {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the daemon")
	}
	t.Parallel()
	dir, err := os.MkdirTemp("", "bench-") // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &Env{
		Ctx: t.Context(), Root: "../..", Dir: dir, Short: true, Rounds: 1, Warm: 5 * time.Millisecond,
		Window: 30 * time.Millisecond,
		Soak:   ShortSoak, Report: &harness.Report{}, Logf: t.Logf,
		peersErr: exec.ErrNotFound, // the modules of the peers may be missing
	}
	if e.daemonBin, err = daemonProgram(); err != nil {
		t.Fatalf("build the daemon: %v", err)
	}
	if e.etcdBin, err = testserver.EtcdProgram(); err != nil {
		t.Fatalf("build etcd: %v", err)
	}
	return e
}
