//go:build !linux

package conformance

import "net"

// sendPieces writes b byte by byte; how the other side reads them is up to it.
func sendPieces(nc *net.UnixConn, b []byte) {
	for i := range b {
		if _, err := nc.Write(b[i : i+1]); err != nil {
			return
		}
	}
}

// inheritable always returns false: other systems do not show a process's descriptors.
func inheritable(*net.UnixConn) (bool, error) { return false, nil }
