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
// Lock order: a shard's mutex, then one of a session's outbox, a lane or the
// renewal schedule; an outbox's, then an acquire-many's. None of them is held
// during I/O.
package daemon
