package conformance

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sendPieces writes b byte by byte. It writes each byte only after the other side has read the one
// before, so that the other side does read them one by one.
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
			if e := raw.Control(func(fd uintptr) {
				unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
			}); e != nil || err != nil || unread == 0 {
				break
			}
		}
	}
}

// inheritable reports whether the descriptor at the other end of a connection is not close-on-exec.
// The number of that descriptor is not known, so every Unix socket of that process counts, except
// its standard streams.
func inheritable(nc *net.UnixConn) (bool, error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return false, err
	}
	var peer *unix.Ucred
	e := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if e != nil || err != nil {
		return false, errors.Join(e, err)
	}
	table, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return false, err
	}
	inodes := map[string]bool{}
	for line := range strings.Lines(string(table)) {
		if col := strings.Fields(line); len(col) >= 7 {
			inodes["socket:["+col[6]+"]"] = true
		}
	}
	dir := fmt.Sprintf("/proc/%d/", peer.Pid)
	fds, err := os.ReadDir(dir + "fd")
	if err != nil {
		return false, err
	}
	for _, fd := range fds {
		if n, err := strconv.Atoi(fd.Name()); err != nil || n <= 2 {
			continue
		}
		if to, err := os.Readlink(dir + "fd/" + fd.Name()); err != nil || !inodes[to] {
			continue
		}
		info, err := os.ReadFile(dir + "fdinfo/" + fd.Name())
		if err != nil {
			continue // it was closed meanwhile
		}
		for line := range strings.Lines(string(info)) {
			if flags, ok := strings.CutPrefix(line, "flags:"); ok {
				if v, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64); err == nil &&
					v&unix.O_CLOEXEC == 0 {
					return true, nil
				}
			}
		}
	}
	return false, nil
}
