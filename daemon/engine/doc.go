// Package engine implements one host's lock service without sockets, files, goroutines or a clock
// of its own. Its input is the bytes that sessions send; its output is bytes for sessions and ops
// for stores. It reads the time from the clock that it was given, and its caller calls Tick when it
// is due. The simulator in engine/sim runs hosts of engines in virtual time. Package daemon adds
// sockets, pumps to the stores and a timer.
//
// # The path of a request
//
// An acquire of a lock passes through these files, in this order. A reader needs no others, except
// for the fields of a lease (cache/table.go) and the words in the package comment of cache. The
// functions that the path calls in other files do what their names and the comments at the calls
// say. Acquires of permits are in cache/semaphore.go.
//
//  1. daemon/conn.go (read, handle) reads bytes from the socket.
//  2. request.go (ReceiveUpTo, handle, acquire) cuts a frame, decodes it with package protocol, and
//     makes the checks that need no table.
//  3. shard.go (lockKey) locks the shard of the key and finds its route.
//  4. cache/acquire.go (Acquire) answers re-entries, and refuses acquires that cannot succeed.
//  5. cache/queue.go (enqueue) queues the request.
//  6. cache/advance.go (advance) has the queue served, and decides on the next request to the
//     store.
//  7. cache/grant.go (serveQueue, grant) gives holds to the waiters that may hold now.
//  8. session.go (send) encodes the answer into the outbox of its session. In shard.go,
//     carryOutAndUnlock calls it and unlocks the shard, and finish then has the outbox written, by
//     Flush in daemon/conn.go.
//
// A release has cache/release.go (Release) and cache/holds.go (end) in place of 4 and 5.
//
// Where this host needs the store, carryOutAndUnlock also puts an op into a lane. Its path
// continues:
//
//  9. upstream/lane.go (Push, Next) forms batches.
//  10. upstream/pump.go (work, apply) sends them and receives their results.
//  11. upstream/store.go is the contract that the drivers implement.
//  12. cache/store.go (Result) changes the lease. For this the pump calls Engine.Deliver in
//     shard.go, which daemon/stores.go has passed to it. Then 6 to 8 follow.
//
// The embedded store answers within carryOutAndUnlock (ApplyInline). A multi-acquire continues when
// its requests for single keys have been answered: finish calls their internalReply.
//
// # Snapshots
//
// A snapshot (snapshot.go, snapshotsession.go) has the whole state of an engine, as bytes. A
// process that takes over continues from it. A new field of a session, a lease, a hold or a waiter
// has to be added to the snapshot. A test fails otherwise, and the simulator takes over all the
// time.
//
// # Lock order
//
// Outermost first:
//
//  1. Engine.routing
//  2. Engine.scanning
//  3. the mutex of a shard; only Engine.follow holds more than one at a time
//  4. one of these: the outbox of a session, and then a multi-acquire; a lane; the renewal schedule
//  5. Engine.mu, which guards lists
//
// No other mutex is taken while StoreLane.mu or classes.mu is held. Package upstream takes Pump.mu
// before the mutex of a lane, and no mutex of this package while it holds Pump.mu. No mutex is held
// during I/O.
package engine
