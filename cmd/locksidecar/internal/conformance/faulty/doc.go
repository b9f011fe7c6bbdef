// Package faulty is a small client, written from PROTOCOL.md alone and without package protocol, that can be given
// one fault at a time. The tests of the conformance runner drive it: without a fault it passes every scenario, and
// each fault is found by one. Nothing else uses it.
//
// A Client has one connection at a time. Client.mu guards everything; the connection's reader holds it for each frame.
// Goroutines: of a connection, the reader and the watchdog; of the adapter, one for each command. All end with the
// process, which is this program's only user.
package faulty
