package config

import (
	"errors"
	"fmt"
)

// SocketVariable names the daemon's socket, for the daemon and its clients alike.
const SocketVariable = "LOCKSIDECAR_SOCKET"

const (
	socketName   = "locksidecar/locksidecar.sock"
	systemSocket = "/run/" + socketName
)

// DefaultSocket returns the default path of the socket: the system's for root, and for other
// users one under XDG_RUNTIME_DIR if that is set. It ignores SocketVariable.
func DefaultSocket(env Env, uid int) string {
	if dir := env.get("XDG_RUNTIME_DIR"); dir != "" && uid != 0 {
		return dir + "/" + socketName
	}
	return systemSocket
}

// ClientSocket returns the socket that a client command connects to: the given one, or else the one
// in SocketVariable, or else the default.
func ClientSocket(given string, env Env, uid int) string {
	if given != "" {
		return given
	}
	if v := env.get(SocketVariable); v != "" {
		return v
	}
	return DefaultSocket(env, uid)
}

// maxSocket is the longest path of the socket. It leaves room for ".admin" and ".new" in the path
// of a Unix socket, which has at most 108 bytes on Linux and 104 elsewhere. One of these is a zero
// byte.
const maxSocket = 93

// CheckSocket returns an error if path cannot be the path of a Unix socket.
func CheckSocket(path string) error {
	if path == "" {
		return errors.New("the path is empty")
	}
	if len(path) > maxSocket {
		return fmt.Errorf("the path has %d bytes; a Unix socket's may have %d",
			len(path), maxSocket)
	}
	return nil
}
