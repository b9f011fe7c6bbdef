// Package daemon runs the lock service as a process: it listens, keeps connections, runs the
// stores of an engine and its timer, and takes over from another process. Package engine decides
// everything about locks.
//
// Goroutines: each connection has one reader, one reaper that ends its session, and, while the
// client reads slowly, one writer (conn.go). Others belong to the pumps and the upkeep of the
// stores, the timer, the peer watcher, the admin listener and the audit log. Serve owns them all
// and returns when they have ended.
//
// In a takeover another process, the successor, continues to serve (package takeover). The serving
// daemon freezes (freeze.go), and passes on its sockets and a snapshot of its whole state
// (takeover_linux.go). The successor restores them (inherit_linux.go).
//
// Lock order, outermost first:
//
//  1. Daemon.transferring: held during a takeover, a reload, the close of a store and the end of
//     the daemon, so that at most one of them is in progress.
//  2. Daemon.freezing: held for writing from freeze to thaw, for reading during a forced unlock.
//  3. A connection's handling; the asking and then the gate of a store's upkeep, and its pump's
//     notifying; the timer's gate. Each is held while events of its origin are handled. Freeze
//     takes the locks of the stores and of the timer. Drain takes each connection's handling once,
//     to wait for the request that is being handled.
//  4. The locks of the engine, in the order that its package comment gives.
//
// Daemon.mu and storeSet.mu guard lists. Only Engine.mu is ever taken under storeSet.mu. Of these
// locks, a goroutine may hold only 1 to 3 during I/O or while it waits for another goroutine. The
// other goroutine must not need them.
package daemon
