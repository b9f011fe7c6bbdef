// Package load is what worker processes of the benchmarks do: frames pumped at a
// server with a fixed number in flight, a chain of handoffs on one key, pairs of
// acquire and release by many callers.
//
// The loads against the daemon and against the bare echo server are the same code
// with other bytes, so that the client's side costs both the same. They speak the
// protocol by hand; only pairs uses the client.
package load
