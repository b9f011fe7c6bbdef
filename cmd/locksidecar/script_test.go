package main

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestScripts runs the scripts in testdata/script, which use the command line as people do.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("LOCKSIDECAR_SOCKET", filepath.Join(e.WorkDir, "s.sock"))
			e.Setenv(noRaceSleep[0], noRaceSleep[1])
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "daemon": startDaemon, "stop-daemon": stopDaemon,
		},
		RequireExplicitExec: true,
	})
}

// exits CODE CMD… runs CMD, which must end with CODE.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE CMD…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var e *exec.ExitError
		if !errors.As(err, &e) {
			ts.Fatalf("%v", err)
		}
		got = exitCode(e.ProcessState)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

type background struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// daemons has the *background of each script, by the script's directory.
var daemons sync.Map

// daemon [ARG…] runs serve with ARGs in the background, until the end of the script or stop-daemon,
// and waits until the daemon is ready.
func startDaemon(ts *testscript.TestScript, _ bool, args []string) {
	cmd := exec.Command("locksidecar", append([]string{"serve"}, args...)...)
	cmd.Dir = ts.Getenv("WORK")
	socket := ts.Getenv("LOCKSIDECAR_SOCKET")
	cmd.Env = append(cmd.Environ(), "LOCKSIDECAR_SOCKET="+socket)
	var log bytes.Buffer // it is read when the daemon has ended
	cmd.Stderr = &log
	ts.Check(cmd.Start())
	done := make(chan struct{})
	go func() { cmd.Wait(); close(done) }()
	ts.Defer(func() { cmd.Process.Kill(); <-done })
	daemons.Store(ts.Getenv("WORK"), &background{cmd, done})
	for !answers(context.Background(), socket) {
		select {
		case <-done:
			ts.Fatalf("the daemon ended: %s", log.String())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// stop-daemon CODE sends SIGTERM to the daemon, which must end with CODE.
func stopDaemon(ts *testscript.TestScript, _ bool, args []string) {
	v, ok := daemons.Load(ts.Getenv("WORK"))
	if !ok || len(args) != 1 {
		ts.Fatalf("usage: stop-daemon CODE, after daemon")
	}
	d := v.(*background)
	ts.Check(d.cmd.Process.Signal(syscall.SIGTERM))
	<-d.done
	if got := strconv.Itoa(exitCode(d.cmd.ProcessState)); got != args[0] {
		ts.Fatalf("the daemon's exit code is %s, want %s", got, args[0])
	}
}
