// Package client speaks the protocol to a daemon: for the command line, the
// tests and the benchmarks. It is one connection shared by many goroutines, not
// a lock library with retries and reconnection.
//
// Any number of requests may be in flight. Whoever sends and finds nobody
// writing writes everything that has gathered, without blocking; what the socket
// does not take is left to the writer goroutine. So no caller ever hangs in a
// write, and a request may be sent from a handler on the reader goroutine.
//
// A Client owns two goroutines: the reader, which decodes every frame, ends
// calls and runs the handlers of Options, and the writer, which is idle unless
// the socket is full. Close ends both and waits for them.
//
// Lock order: Client.mu, then Hold.mu, then keepalives.mu. No handler, callback or system call runs
// under either.
package client
