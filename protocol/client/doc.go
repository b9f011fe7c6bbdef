// Package client is a client of the protocol for the command line, the tests and the benchmarks.
// A Client is one connection that many goroutines share, not a lock library with retries and
// reconnection.
//
// Any number of requests may be in flight. A caller that sends while no goroutine writes, writes
// all queued requests without blocking. It leaves the bytes that the socket does not accept to
// the writer goroutine. So no caller ever blocks in a write, and handlers on the reader goroutine
// may send requests.
//
// A Client owns two goroutines: the reader, which decodes every frame, ends calls and runs the
// handlers of Options, and the writer, which is idle unless the socket is full. Close ends both
// and waits for them.
//
// Lock order: Client.mu, then Hold.mu, then keepalives.mu. No handler, callback or system call
// runs under either.
package client
