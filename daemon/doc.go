// Package daemon is the process around the lock service: it listens, keeps connections, runs the stores of an engine
// and its timer, and takes over from another process. Package engine decides everything about locks.
//
// Goroutines: one reader a connection and, while a client is slow to read, one
// writer; the pump's, the timer's and the peer watch's. Serve owns them all and
// returns when they have ended.
//
// A takeover (takeover_linux.go) has another process continue: the daemon freezes (freeze.go), and passes on its
// sockets and a snapshot of all that it knows (state_linux.go, and the engine's Snapshot). The other one takes it in
// (inherit_linux.go).
//
// Lock order, outermost first:
//
//  1. Daemon.transferring: held during a takeover, a reload, the close of a store and the end of the daemon,
//     so that at most one of them is in progress.
//  2. Daemon.freezing: held for writing from freeze to thaw, for reading during a forced unlock.
//  3. A connection's handling; a store's sweeping, and its pump's gate and telling; the timer's gate. Each
//     is held while events of its origin are handled. Freeze takes those of the stores and of the timer.
//     Drain waits for those of the connections.
//  4. The locks of the engine, in the order that its package comment gives.
//
// Daemon.mu and stores.mu guard lists. Only Engine.mu is ever taken under stores.mu. A goroutine
// may hold only the locks 1 to 3 during I/O or while it waits for another goroutine, and none that the other
// one needs.
package daemon
