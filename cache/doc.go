// Package cache is the heart of the daemon: the lock table, a pure state
// machine. An event and the time go in, effects come out. It does no I/O, reads
// no clock, starts no goroutine and calls nobody back, so that a whole host, or a
// hundred of them, can be simulated from a seed.
//
// A Table holds the keys of one shard. It is not safe for concurrent use: the
// caller has a mutex around it, and queues the effects, in order, before it
// gives the mutex back.
//
// For each key the table knows the lease (this host's one lease upstream), the
// holds of local owners behind it, the FIFO of local waiters, and what has still
// to be settled with the store. Every event ends in advance, which looks at all
// of that and asks the store for the next thing, at most one at a time a key.
package cache
