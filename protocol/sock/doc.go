// Package sock is a connected stream socket that costs its process less than Go's own where
// messages are small and many.
//
// It wakes only for what there is to read. Go's network poller waits for a socket to become
// readable and to become writable, always both, and a Unix socket becomes writable whenever the
// other side has read: each message wakes a thread of its sender for nothing. Here the poller
// sees only an epoll of the socket's own (epoll descriptors can be waited for like others), which
// waits to read; to write, one is made for as long as the socket is full.
//
// And its reads and writes do not tell Go's scheduler of a system call: they never block. The
// scheduler would wake its monitor, which has gone to sleep with the rest of an idle process, at
// the first of each message.
//
// On systems other than Linux a Conn is the net package's connection. The package imports
// nothing of ours, and every layer may use it.
package sock
