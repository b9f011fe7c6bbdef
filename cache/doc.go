// Package cache implements the lock table, a pure state machine. Its input is an event and the
// time; its output is effects. It does no I/O, reads no clock, starts no goroutine and calls
// nothing back, so a simulator can run many hosts from one seed.
//
// A Table holds the keys of one shard. It is not safe for concurrent use: the caller guards it
// with a mutex, and queues the effects, in order, before it unlocks the mutex.
//
// For each key the table has the lease, which is this host's claim at the store. It also has the
// holds that the lease serves, the queue of local waiters, and any unresolved request or pending
// release. An event that may change what a lease has to do ends with advance, which grants holds to
// waiters and then takes the next step of the lease. Re-entries, releases that only lower a count,
// and refused downgrades change nothing of the kind, and return without it. Besides renewals, a key
// has at most one request in flight.
//
// # States
//
// A lease is in one of five states. For each state, advance.go has one function that returns the
// next request to the store and the next wake-up. table.go has a struct with the fields of the
// state. These are the transitions:
//
//	none → asked        a waiter needs the lease
//	asked → held        the store has granted the lease
//	asked → none        another host has the key, or the store has refused the request
//	asked → releasing   the answer cannot be used, or no waiter needs the lease as requested
//	held → releasing    no owner holds the key and no waiter can get it, or the deadline has passed
//	held → none         the store no longer has the lease
//	releasing → none    the store has confirmed the release, or has dropped the lease by itself
//	releasing → closed  at a pair: one store has lost the lease, and its holders may not know yet
//	closed → releasing  at a pair: the validity that was stated to them is over
//	none → closed       the lease was abandoned or not taken over; its holders may not know yet
//	closed → none       the validity that was stated to them is over
//
// # Files
//
// The core, in the order in which to read it:
//
//	config.go    the configuration of a table, and its constants
//	table.go     the table, a lease with the fields of each state, and a hold
//	kind.go      locks, semaphores and permits, which share the lease
//	queue.go     the queue of a key; it alone knows the order in which waiters are served
//	acquire.go   acquires: answered at once, or queued
//	grant.go     grants to waiters from a lease that is held
//	holds.go     how a hold begins and ends
//	release.go   releases, downgrades and cancels of clients, and the end of a session
//	advance.go   the next step of a lease in each state
//	store.go     answers, hints and session news of stores
//	renew.go     renewals, and their answers
//
// The interface: op.go has requests to stores and their results, effects.go sessions and what an
// event leads to, and namespace.go stores and policies.
//
// Helpers: timers.go, limits.go, failing.go, list.go, pool.go and coder.go; package heap.
//
// One feature each: linger.go, semaphore.go, outage.go, reroute.go, force.go, abandon.go,
// foundgone.go, floor.go, survey.go and detach.go.
//
// Reads: scan.go, view.go, holders.go, waits.go, stats.go and inspect.go.
//
// snapshot.go and snapshotrest.go write the whole state for a takeover.
package cache
