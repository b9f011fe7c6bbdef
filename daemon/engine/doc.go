// Package engine implements one host's lock service without sockets, files, goroutines or a clock of its own. Its
// input is the bytes that sessions send; its output is bytes for sessions and ops for stores. It reads the time from
// the clock that it was given, and its caller calls Tick when it is due. The simulator in engine/sim runs hosts of
// engines in virtual time. Package daemon adds sockets, pumps to the stores and a timer.
//
// A request passes through these files, in this order. Reading them in this order needs no others:
//
//  1. request.go (Session.Receive): cuts a frame, decodes it with package protocol, and checks what needs no table.
//  2. namespace.go: finds the namespace of the key and with it the store, and checks access.
//  3. engine.go (Engine.lockKey): locks the shard of the key.
//  4. package cache: the lock table of the shard decides, and returns effects.
//  5. engine.go (Engine.unlock): carries the effects out, in their order, before it unlocks the shard.
//  6. session.go (Engine.send): encodes the answer into the outbox of its session.
//  7. engine.go (Engine.finish): has the sessions with output flushed once no shard is locked.
//
// A request to a store continues in upstream/lane.go and upstream/pump.go to the driver. The result returns to
// Engine.Deliver, and from there to package cache (4).
//
// A snapshot (snapshot.go, snapshotsession.go) has the whole state of an engine, as bytes. A process that takes over
// continues from it. A field that is added to a session, a lease, a hold or a waiter has to be added to the snapshot,
// too: a test fails otherwise, and the simulator has takeovers all the time.
//
// Lock order, outermost first: Engine.routing; a shard's mutex; one mutex of a session's outbox, a lane or the renewal
// schedule. The mutex of an outbox is taken before the mutex of a multi-acquire. Only Engine.follow holds the mutexes of two
// shards. Engine.mu guards lists, and is taken last. No mutex is held during I/O.
package engine
