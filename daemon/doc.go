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
// Lock order: a shard's mutex, then one of a session's outbox, a lane or the
// renewal schedule; an outbox's, then an acquire-many's. None of them is held
// during I/O.
package daemon
