// Package cache implements the lock table, a pure state machine. Its input is an event and the time; its
// output is effects. It does no I/O, reads no clock, starts no goroutine and calls nothing back, so a
// simulator can run many hosts from one seed.
//
// A Table holds the keys of one shard. It is not safe for concurrent use: the caller guards it with a
// mutex, and queues the effects, in order, before it unlocks the mutex.
//
// For each key the table has the lease (this host's claim at the store), the holds of local owners that
// it serves, the FIFO queue of local waiters, and any unresolved request or pending release. Every event
// ends with advance, which checks all of these and sends the next request to the store. Besides renewals,
// a key has at most one request in flight.
package cache
