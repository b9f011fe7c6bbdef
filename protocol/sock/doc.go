// Package sock provides a connected stream socket that costs less than Go's own when messages are
// small and frequent.
//
// A Conn wakes a thread only if there is something to read. Go's network poller waits for a socket
// to become readable and to become writable, always both. A Unix socket becomes writable whenever
// the other side has read, so each message wakes a thread of its sender for nothing. Here Go's
// poller sees only an epoll descriptor that belongs to the Conn and waits for it to become
// readable. (An epoll descriptor can itself be waited for.) While the socket is full, a Write uses
// a second epoll descriptor.
//
// Reads and writes never block, so they do not announce a system call to Go's scheduler. The
// scheduler would wake its monitor thread, which sleeps while the process is idle, at the first
// message of each burst.
//
// On systems other than Linux a Conn is the connection of package net. The package imports nothing
// else from this module, so that every layer may use it.
package sock
