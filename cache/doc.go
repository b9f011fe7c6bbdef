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
// # Words
//
//   - A hold is one owner's possession of a key; a lease can serve many holds. An owner is a
//     session and a number that its client has chosen. A handoff gives a hold to the next local
//     owner without a request to the store.
//   - A fence is the number that a holder gets, larger for each later holder: the base that the
//     store has given to the lease, and the number of the handoff. A floor is a base that a new
//     base has to exceed.
//   - A token is the secret under which the store knows a lease. A request is unresolved while the
//     table does not know whether the store has carried it out. A token that the store may still
//     have to drop is a pending release.
//   - A key is contended while another host waits for it. An idle lease, without holds, may linger
//     on this host in case it is needed again.
//   - A try is an acquire that does not wait. A short-lived queue entry lets a try end the
//     lingering on another host.
//   - The stated validity is the time up to which the daemon has told a client that its hold is
//     valid. A key is closed while a former holder may still rely on it: this host grants it to
//     nobody.
//   - A forced hold was lost by a forced unlock, or at the end of a drain, and keeps its key
//     closed. A hold with a keep becomes detached when its owner releases it early or is gone, and
//     keeps its key closed, too.
//   - A degraded hold was granted by this host alone, during an outage of the store.
//   - A pair is a store that consists of two, while keys move between them. A lease has moved if a
//     reload has routed its key to another store.
//   - A generation is the number of an op, by which the table recognizes the answer.
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
// The interface, to be read first:
//
//	op.go         requests to stores, and their results
//	effects.go    sessions, and the effects of an event
//	namespace.go  stores and policies
//	config.go     the configuration of a table, and its constants
//
// The core, in the order in which to read it:
//
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
// Helpers: timers.go, limits.go, failing.go, list.go, pool.go and coder.go; package heap.
//
// One feature each: linger.go, semaphore.go, outage.go, reroute.go, force.go, abandon.go,
// foundgone.go, floor.go, survey.go and detach.go.
//
// Reads: scan.go, rows.go, holders.go, waits.go, stats.go and inspect.go.
//
// snapshot.go and snapshotrest.go write the whole state for a takeover.
package cache
