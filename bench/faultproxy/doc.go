// Package faultproxy stands between a client and a server in tests, on TCP or on
// Unix sockets, and does to their connections what networks do: delay, throttle,
// stall one way, swallow, cut, refuse. Every fault is switched while connections
// stand, and takes effect on them at once, or with the bytes that are due within two
// milliseconds.
//
// Bytes are delayed as on a long line: each leaves its delay after it came,
// however many are on the way. Their order stays. Delays are kept to a tenth of a
// millisecond or so on Linux, to one elsewhere.
//
// A Proxy owns an accepting goroutine and, for each connection, one that dials
// and four that carry bytes. Close ends them all and waits for them.
//
// Lock order: Proxy.mu alone; nothing blocks under it.
package faultproxy
