package load

import (
	"encoding/json"
	"math"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/bench/harness"
	"github.com/locksidecar/locksidecar/protocol"
)

// TestMain makes this program usable as a worker and as a bare server.
func TestMain(m *testing.M) {
	harness.Main(Program)
	goleak.VerifyTestMain(m)
}

// measured runs a fleet. If nothing was done in the window, which may happen on a busy machine, it
// runs the fleet again.
func measured(t *testing.T, f harness.Fleet) *harness.Outcome {
	t.Helper()
	o, err := harness.UntilDone(t.Context(), f.Run)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestFramesAgainstTheEchoServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	echo, err := harness.StartServer(Echo, path)
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Stop()
	for _, args := range []FramesArgs{
		{Conns: 1, Depth: 1, Request: 30, Reply: 25, Thread: true},
		{Conns: 3, Depth: 32, Request: 30, Reply: 44},
	} {
		args.Addr, args.Kind = path, Echo
		o := measured(t, harness.Fleet{Load: "frames", Args: args, Procs: 2, Warm: 50 * time.Millisecond,
			Window: 300 * time.Millisecond,
			Watch:  harness.Watch{Server: echo.PID()}})
		if o.Errs > 0 || o.Hist.N() == 0 || len(o.PerCaller) != 2*args.Conns {
			t.Errorf("%d errors (%s), %d done by %d callers", o.Errs, o.LastErr, o.Hist.N(),
				len(o.PerCaller))
		}
		// The window may open or close between the count of a reply and the count of its bytes.
		want, between := float64(o.Hist.N())*float64(args.Reply),
			float64(2*2*args.Conns*args.Depth*args.Reply)
		if math.Abs(float64(o.Bytes)-want) > between {
			t.Errorf("%d replies have %d bytes, want %d for each", o.Hist.N(), o.Bytes, args.Reply)
		}
		if m := o.Metrics(); m["ops_s"] <= 0 || m["client_cpu_us_op"] < 0 {
			t.Errorf("%v", m)
		}
	}
}

func TestWorkerThatCannotStartSaysWhy(t *testing.T) {
	_, err := harness.Fleet{Load: "frames", Args: FramesArgs{Addr: "/nobody/here", Conns: 1, Depth: 1,
		Kind: Echo}, Procs: 1}.Run()
	if err == nil {
		t.Fatal("it ran")
	}
	if _, err = (harness.Fleet{Load: "no such", Procs: 1}).Run(); err == nil {
		t.Fatal("it ran")
	}
}

func TestRequestsOfOneKindAreOfOneSize(t *testing.T) {
	for _, kind := range []string{Reentry, Busy} {
		a := FramesArgs{Kind: kind}
		for _, id := range []uint64{1, 127} {
			if n := len(a.request(63, id)) - protocol.HeaderLen; n != RequestSize(kind) {
				t.Errorf("%s, id %d: %d bytes, not %d", kind, id, n, RequestSize(kind))
			}
		}
		a.Request, a.Kind = RequestSize(kind), Echo
		if n := len(a.request(0, 1)) - protocol.HeaderLen; n != RequestSize(kind) {
			t.Errorf("echo for %s: %d bytes", kind, n)
		}
	}
}

// TestWrongAnswersAreErrors checks that a load does not accept every answer as a success. Otherwise
// it would measure nothing.
func TestWrongAnswersAreErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Write(protocol.AppendError(nil, 1, protocol.Draining, "", 0))
		c.Read(make([]byte, 100))
	}()
	args, _ := json.Marshal(FramesArgs{Addr: path, Kind: Echo, Conns: 1, Depth: 1,
		Request: 10, Reply: 10})
	f := NewFrames()
	if _, err := f.Open(&harness.Spec{Args: args}); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Run(t.Context(), 0, new(harness.Rec)); err == nil {
		t.Error("draining passed for success")
	}
}
