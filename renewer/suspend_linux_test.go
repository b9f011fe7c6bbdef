package renewer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/cache"
)

// slept is how long the machine has been suspended, as the child of this test sees it. The boot
// clock of the child's time namespace is ahead by this time.
const slept = 11 * 24 * time.Hour

// A suspend advances the boot clock and no other clock, and leases end during a suspend. In a child
// whose boot clock is ahead, Boottime and the timer have to use that clock.
func TestTheClockCountsSuspends(t *testing.T) {
	if os.Getenv("LOCKSIDECAR_SLEPT") != "" {
		fmt.Println(Boottime(), woken(t)-Boottime() < int64(time.Hour))
		return
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		t.Skip("unshare of util-linux is not there")
	}
	args := []string{"--time", "--boottime", fmt.Sprint(int(slept.Seconds())), "--", os.Args[0],
		"-test.run=TestTheClockCountsSuspends", "-test.v"}
	if os.Geteuid() != 0 {
		args = append([]string{"--map-root-user"}, args...)
	}
	if out, err := exec.Command(unshare, append(args[:len(args)-3:len(args)-3],
		"true")...).CombinedOutput(); err != nil {
		t.Skipf("no time namespaces here: %s%v", out, err)
	}
	// a timer of another clock would never ring
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, unshare, args...)
	cmd.Env = append(os.Environ(), "LOCKSIDECAR_SLEPT=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	var read int64
	var rang bool
	if _, err := fmt.Sscanf(firstNumber(string(out)), "%d %t", &read, &rang); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	if ahead := time.Duration(read - Boottime()); ahead < slept-time.Hour || !rang {
		t.Errorf("a machine that has slept for %v reads %v more; its timer rings: %v", slept,
			ahead.Round(time.Second), rang)
	}
}

// firstNumber is out from the first line on that begins with a digit.
func firstNumber(out string) string {
	for i := range out {
		if _, err := strconv.Atoi(out[i : i+1]); err == nil && (i == 0 || out[i-1] == '\n') {
			return out[i:]
		}
	}
	return ""
}

// woken has a timer ring, and is when it has.
func woken(t *testing.T) int64 {
	fired := make(chan int64)
	tm, err := NewTimer(func() int64 {
		fired <- Boottime()
		return cache.Forever
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tm.Close()
	tm.Wake(Boottime() + int64(20*time.Millisecond))
	return <-fired
}
