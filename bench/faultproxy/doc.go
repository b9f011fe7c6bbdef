// Package faultproxy is a proxy between a client and a server in tests, on TCP or on Unix sockets.
// It does to their connections what networks do: it delays, throttles, stalls, drops or refuses,
// also in one direction only. A fault can be switched on and off at any time. It affects open
// connections at once, or with the bytes that are due within two milliseconds.
//
// Bytes are delayed as on a long line: each leaves one delay after it arrived, however many are on
// the way. Their order stays the same. Delays are accurate to about a tenth of a millisecond on
// Linux, and to one elsewhere.
//
// A Proxy owns one goroutine that accepts, and for each connection one that dials and four that
// carry bytes. Close ends them all and waits for them.
//
// Lock order: Proxy.mu is never held with another mutex. Nothing blocks while it is held.
package faultproxy
