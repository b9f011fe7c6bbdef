package conformance

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// sendPieces writes b byte by byte, each when the other side has read the one
// before, so that it does read them one by one.
func sendPieces(nc *net.UnixConn, b []byte) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return
	}
	for i := range b {
		if _, err := nc.Write(b[i : i+1]); err != nil {
			return
		}
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Microsecond) {
			unread := 0
			if raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }) != nil || err != nil || unread == 0 {
				break
			}
		}
	}
}
