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
//  1. Daemon.handing: at most one of a takeover, a reload, the end of a store and the end of the daemon
//     is under way.
//  2. Daemon.still: held for writing from freeze to thaw, for reading during a forced unlock.
//  3. A connection's handling; a store's sweeping, gate and telling (in its pump); the timer's gate: held
//     while events of that origin are handled. Freeze takes those of the stores and the timer, and
//     drain waits for a connection's.
//  4. Engine.routing.
//  5. A shard's mutex.
//  6. One of a session's outbox, a lane or the renewal schedule; an outbox's before an acquire-many's.
//
// Daemon.mu, stores.mu and Engine.mu guard lists; only Engine.mu is ever taken under stores.mu. Goroutines
// are waited for under 1 to 3 alone, and never one that needs a lock that is held meanwhile. Nothing
// but 1 to 3 is held during I/O.
package daemon
