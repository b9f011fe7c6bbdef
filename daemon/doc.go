// Package daemon is the shell around the lock table: it listens, keeps sessions,
// turns requests into events and carries out their effects.
//
// Engine is everything that needs neither a socket nor a goroutine: bytes of a
// session go in, bytes for sessions and ops for the store come out, and the time
// is asked of a clock that it was given. The simulator runs hosts of engines.
// Daemon puts the sockets, the pumps to the store and the timer around it.
//
// Goroutines: one reader a connection and, while a client is slow to read, one
// writer; the pump's, the timer's and the peer watch's. Serve owns them all and
// returns when they have ended.
//
// A takeover (takeover_linux.go) has another process go on: the daemon comes to a stand
// (freeze.go), and passes on an image of all that it knows (estate_linux.go, image.go) with its
// sockets; the other one takes it in (inherit_linux.go). What is added to a session, a lease, a hold
// or a waiter has to be added to the image too: the simulator passes its engines on all the time.
//
// Lock order, outermost first:
//
//  1. Daemon.handing: held during a takeover, a reload, the close of a store and the end of the daemon,
//     so that at most one of them is in progress.
//  2. Daemon.freezing: held for writing from freeze to thaw, for reading during a forced unlock.
//  3. A connection's handling; a store's sweeping, and its pump's gate and telling; the timer's gate. Each
//     is held while events of its origin are handled. Freeze takes those of the stores and of the timer.
//     Drain waits for those of the connections.
//  4. Engine.routing.
//  5. A shard's mutex.
//  6. One mutex of a session's outbox, a lane or the renewal schedule. An outbox's is taken before that of a
//     multi-acquire.
//
// Daemon.mu, stores.mu and Engine.mu guard lists. Only Engine.mu is ever taken under stores.mu. A goroutine
// may hold only the locks 1 to 3 during I/O or while it waits for another goroutine, and none that the other
// one needs.
package daemon
