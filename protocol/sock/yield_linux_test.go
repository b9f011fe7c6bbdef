package sock_test

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/protocol/sock"
)

// A goroutine on the only thread that never waits, but calls Yield, lets another goroutine notice
// within two calls that there is something to read.
func TestYieldAsksThePoller(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "eventfd")
	var heard atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		var b [8]byte
		for {
			if _, err := f.Read(b[:]); err != nil {
				return
			}
			heard.Add(1)
		}
	})
	sock.Yield() // so that the goroutine waits
	one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	for n := range int64(100) {
		if _, err := unix.Write(fd, one); err != nil {
			t.Fatal(err)
		}
		sock.Yield()
		sock.Yield() // once in 61 times the scheduler runs the goroutine that yields first
		if got := heard.Load(); got != n+1 {
			t.Fatalf("after %d it has heard of %d", n+1, got)
		}
	}
	_ = f.Close()
	wg.Wait()
}

// Many goroutines may yield at the same time.
func TestManyYield(t *testing.T) {
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 100 {
				sock.Yield()
			}
		})
	}
	wg.Wait()
}
