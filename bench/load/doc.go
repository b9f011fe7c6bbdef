// Package load has the work of the benchmarks' worker processes. It can send frames to a server
// with a fixed number in flight, hand off one key in a chain of processes, and acquire and release
// with many callers.
//
// The loads for the daemon and for the bare echo server use the same code with different bytes, so
// that the client's side costs the same for both. These loads encode the protocol by hand; only the
// pairs use the client.
package load
