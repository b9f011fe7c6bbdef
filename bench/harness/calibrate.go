package harness

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// PingPong measures a round trip between two threads over a socket pair. It takes about a tenth of
// a second, or ends after limit. The time is mostly the cost of waking another CPU, which varies
// from minute to minute on a virtual machine.
func PingPong(limit time.Duration) (time.Duration, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fds[0])
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer unix.Close(fds[1])
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var b [64]byte
		for {
			n, err := unix.Read(fds[1], b[:])
			if n <= 0 || err != nil {
				return
			}
			unix.Write(fds[1], b[:n])
		}
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const most = 3000
	var b [64]byte
	begin, rounds := time.Now(), 0
	for ; rounds < most && (rounds == 0 || time.Since(begin) < limit); rounds++ {
		if _, err := unix.Write(fds[0], b[:48]); err != nil {
			return 0, err
		}
		if _, err := unix.Read(fds[0], b[:]); err != nil {
			return 0, err
		}
	}
	took := time.Since(begin) / time.Duration(rounds)
	unix.Shutdown(fds[0], unix.SHUT_RDWR)
	<-done
	return took, nil
}
