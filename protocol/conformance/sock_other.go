//go:build !linux

package conformance

import "net"

// sendPieces writes b byte by byte. The other side may read several bytes at once.
func sendPieces(nc *net.UnixConn, b []byte) {
	for i := range b {
		if _, err := nc.Write(b[i : i+1]); err != nil {
			return
		}
	}
}

// inheritable always returns false, because other systems do not show the descriptors of a process.
func inheritable(*net.UnixConn) (bool, error) { return false, nil }
