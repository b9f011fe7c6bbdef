package chaos

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// long makes short runs longer. make test-long sets it.
var long = os.Getenv("LOCKSIDECAR_TEST_LONG") != ""

var shortSeed = flag.Uint64("seed", 1, "the seed of the short run")

func TestMain(m *testing.M) {
	Main() // does not return in a process that was started as a worker
	goleak.VerifyTestMain(m)
}

// shortCells has some cells of each kind, which take less than two minutes: links, processes of all
// three targets, a takeover, a store that forgets, and one that never does.
var shortCells = []string{
	"embedded/kill/client/0.5",
	"redis/delay/store/1.5",
	"redis/reset/daemon/0.5",
	"redis/one-way/client/0.5",
	"redis/stop/daemon/1.5",
	"redis/kill/daemon/0.5",
	"redis/flush/store/0.5",
	"redis-aof/kill/store/0.5",
	"etcd/half-open/daemon/0.5",
	"etcd/takeover/daemon/0.5",
}

// settingOf returns the setting of a program, or of one that is built with flags.
func settingOf(t *testing.T, bin string, flags ...string) Setting {
	t.Helper()
	if bin == "" {
		bin = filepath.Join(t.TempDir(), "locksidecar")
		build := exec.Command("go", append(append([]string{"build", "-trimpath"}, flags...), "-o", bin,
			"./cmd/locksidecar")...)
		build.Dir = filepath.Join("..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the program: %v: %s", err, out)
		}
	}
	s, err := NewSetting(bin, os.Getenv("LOCKSIDECAR_TEST_PYTHON"),
		os.Getenv("LOCKSIDECAR_TEST_JAVA_WORKER"), filepath.Join(os.TempDir(), "chaos-kept"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The short run uses the same seed each time.
func TestShortRunHasNoViolations(t *testing.T) {
	if testing.Short() {
		t.Skip("-short")
	}
	s := settingOf(t, os.Getenv("LOCKSIDECAR_BIN"))
	t.Parallel() // together with the short storms
	s.Fires = 1
	if long {
		s.Fires = 3
	}
	for i, name := range shortCells {
		t.Run(name, func(t *testing.T) {
			c, err := ParseCell(name)
			if err != nil {
				t.Fatal(err)
			}
			r := Run(s, c, *shortSeed+uint64(i))
			t.Log(r.Tell())
			if len(r.Violations) > 0 {
				t.Fail()
			}
		})
	}
}
