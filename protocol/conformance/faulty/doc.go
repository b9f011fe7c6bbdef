// Package faulty is a small client that can be given one fault at a time. It is written from
// PROTOCOL.md alone, without package protocol. The tests of the conformance runner drive it:
// without a fault it passes every scenario, and each fault makes at least one scenario fail.
// Nothing else uses it.
//
// A Client has one connection at a time. Client.mu guards everything; the connection's reader holds
// it for each frame. A connection has two goroutines, the reader and the watchdog; the adapter has
// one for each command. All of them end with the process.
package faulty
