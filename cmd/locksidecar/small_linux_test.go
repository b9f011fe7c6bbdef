package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/locksidecar/locksidecar/upstream/testserver"
)

// The limits of the released program, and of an idle daemon. Private memory is all memory that the
// program's file does not back, so that the kernel cannot drop it.
const (
	maxProgram  = 22_000_000
	maxReduced  = 17 << 20 // without etcd and OpenTelemetry
	maxResident = 20 << 20
	maxPrivate  = 7 << 20
)

// program returns the path of the program as built by make build and by the packages.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("LOCKSIDECAR_BIN"); path != "" {
		return path
	}
	return buildProgram(t, "")
}

func buildProgram(t *testing.T, tags string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "locksidecar")
	build := exec.Command("./build.sh", path)
	build.Env = append(os.Environ(), "TAGS="+tags)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func checkSize(t *testing.T, path string, limit int64) {
	t.Helper()
	s, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if s.Size() > limit {
		t.Errorf("the program has %d bytes; the limit is %d", s.Size(), limit)
	}
}

func TestTheReducedProgramIsSmall(t *testing.T) {
	checkSize(t, buildProgram(t, "noetcd,nootel"), maxReduced)
}

// memory returns one figure of a process's memory, in bytes.
func memory(t *testing.T, pid int, name string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + `:\s+(\d+) kB$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no %s in %s", name, text)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

func TestTheProgramAndAnIdleDaemonAreSmall(t *testing.T) {
	path := program(t)
	checkSize(t, path, maxProgram)
	for _, store := range []string{"memory:", testserver.StartRedis(t).URL()} {
		h := bareHost(t)
		h.daemon = launch(t, h.dir, h.env, path, "serve", "--upstream", store)
		h.ready()
		pid := h.daemon.cmd.Process.Pid
		var resident, private int
		eventually(t, "a daemon on "+store+" is small", func() bool {
			resident, private = memory(t, pid, "VmRSS"), memory(t, pid, "RssAnon")
			return resident <= maxResident && private <= maxPrivate
		})
		t.Logf("%s: %d KiB resident, of which %d KiB are private", store, resident>>10, private>>10)
	}
}
