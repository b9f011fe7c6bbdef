// Package sim is the simulator: whole daemons with their clients and stores, in
// virtual time, from one seed. It is the main test of what the daemon decides.
//
// # What is real
//
// daemon.Engine with everything below it, as the daemon itself runs it: the lock
// tables (cache.Table), the dispatch of requests, sessions and their outboxes,
// acquire-many, keepalives, draining; the renewals' schedule (renewer.Schedule); the
// batching (upstream.Lane); two stores at once (upstream/both, see pair.go); the codec
// (protocol), on both ends, through streams of bytes that may be cut anywhere. Each
// host of a run has an Engine of its own.
//
// # What is not
//
// Whatever blocks, sleeps or asks an operating system has a counterpart here,
// written to do the same in steps:
//
//   - daemon's sockets, readers and writers, its slow readers and the end of a
//     session that it ends itself (daemon/conn.go): conn.go;
//   - its drain (daemon/drain.go): host.drain. Signals, the lock file, taking over
//     a stale socket and the watch on peers' processes have none: a client that
//     dies is gone at once, or with its socket;
//   - upstream.Pump: flight.go; what the daemon has for each store: link.go;
//     renewer.Timer: host.wake;
//   - reloads (daemon.stores.change): conf.go writes configurations, reload.go has a daemon
//     take one up;
//   - takeovers (takeover.State): takeover.go, also by a process whose configuration differs;
//   - upstream/redis and its server: redis.go, redisqueue.go. TestModelIsRedis
//     carries out the same ops on this model and, through the driver, on a real
//     Redis. The driver's reading of errors is not simulated, nor is a server that
//     is read-only more than roughly: it refuses everything but a peek;
//   - upstream/embedded and its file: embedded.go. Its fence limit is not;
//   - a store whose leases live by the daemon's session: etcd.go, as upstream/etcd
//     and upstream/zookeeper are;
//   - their semaphores: permits.go.
//
// Clients are no library's: client.go, act.go and what reads replies are written
// from PROTOCOL.md, as a stranger would. Steps of one host do not run at the same
// time here; a step may go on with a clock reading that is out of date, but data
// races are the race detector's to find.
//
// # Running and replaying
//
//	go test ./daemon/engine/sim -run TestSeeds -v -args -seeds=1000 [-first=N] [-stop]
//	go test ./daemon/engine/sim -run 'TestSeed$' -v -args -seed=N [-lines=300]
//	daemon/engine/sim/mutants/run.sh
//	go test ./daemon/engine/sim -run TestStudy -v -args -study
//
// (make sim SEEDS=n; make mutants; STUDY.md has what the last one prints: up to 100 hosts,
// without faults, under loads that show what fairness and lingering come to.) The same
// seed is the same run, to the hash of its trace, on every machine. A failing seed is
// printed with the command that replays it, and with the last events of the key
// concerned. The mutants are faults planted in a copy of the tree, each of which has
// to be caught.
//
// # What is checked, in every run
//
//   - two holders: nobody believes that he holds a key while somebody believes it
//     whom that excludes, plain SET NX PX lockers included; and no more believe in
//     permits of a semaphore than there are. A client believes from
//     its reading of a grant to the stated validity, as moved on by grants and
//     keepalives, or until it gives the hold up or reads that it is lost;
//   - fence, fence order: rule 4 of the design, in the order in which holders begin; no
//     two permits have the same;
//   - fenced write, stale write: a resource that takes no smaller fence than it has
//     seen never refuses the present holder, nor takes an earlier holder's write
//     behind a later one's;
//   - past the deadline, a third of the TTL: rule 3, where the daemon speaks;
//   - order: nobody is let in before a waiter of the same host who came first and
//     whom that excludes;
//   - bounded: once a daemon knows that another host wants a key, it hands it over so
//     many times more and no more;
//   - access: nobody is let in, nor granted a degraded hold, against the configuration that the
//     host follows at that moment;
//   - silent: only a client that has sent nothing for so long loses a hold as silent, and it does
//     lose it, within seconds;
//   - limits: no session and no namespace gets more holds and waiters than it may;
//   - view: a view shows the holds of the host, and no others;
//   - dropped in use, reload: a reload drops no store under a holder, a bad one changes nothing,
//     and a good one succeeds;
//   - found gone: a hold that was released is called lost once at most, and only if a store has lost leases;
//   - audit: each hold begins once and ends once in the audit log, and nothing took longer than
//     the world is old;
//   - every wait ends: every request is answered within its wait and 30 s in which
//     nobody was stopped;
//   - nothing left: when all sessions have gone, tables, lanes, schedules and the
//     store are empty;
//   - forced: a hold that an operator ends is called lost, forced, and nothing else is;
//   - lost, lost once, lost in time, lost before grant, after lost: a loss has a
//     cause, and without faults there is none; it is told once, before anything
//     else shows it, behind the grant, and it is final;
//   - token: no daemon asks a store for a token that it has withdrawn or released there (tokens.go);
//   - grant, count, upgrade, stale fence, cancel, inspect, reply, one reply,
//     protocol: what PROTOCOL.md says of answers.
//
// Most runs have several stores and namespaces, and reloads. Holders exclude each other if
// their leases have a store in common, or if the same daemon has granted them, whatever the
// stores. Two daemons that follow different configurations promise no more
// (docs/operate/stores.md). The fences that one daemon grants rise over all reloads and takeovers,
// at each store whose bases can be raised. Fences of different daemons are compared only if their
// stores have one in common. In some runs namespaces are in two stores at once. In others all keys
// move from one store to another in the three rollouts of docs/operate/stores.md (move.go): there
// all holders exclude each other, and all fences of a key rise.
//
// TestChecksBite feeds each a history that must not be. What a best-effort store
// may do when it forgets leases or its clock leaps is waived, and counted: two
// holders, or fences out of order, between a lease from before the loss and one
// from after it, for as long as the former's validity was stated.
//
// # What goes wrong
//
// Daemons freeze (also between a decision and its sending), alone or with their clients when a
// machine is suspended, go on with an old clock reading, are killed, drain; hosts are cut off from
// the store, and clocks drift, each by up to 0.4 %. Requests to the store are lost, late, carried
// out twice; replies are lost or slow; connections break; hints are lost, late, doubled. The store
// pauses, has no memory, is read-only, restarts with and without its data, is flushed, has its
// clock set forward and back, ends sessions. Clients pause, die, leave, do not read, ask for much
// and do not read that, send requests that cannot be done, or what is no frame. Operators unlock
// what is held, and reload daemons with configurations that add, change and remove namespaces,
// stores and users. Clients send no heartbeats for a while, and acquire keys anew that they have
// lost. In some runs a host stands still when such a silence has lasted too long. Every kind is
// counted when it has its effect; with 500 seeds or more, TestSeeds fails for each that was not
// seen, and the same for every reply, push, reason and result (Counts.Missing, where the few
// exceptions have their reasons).
package sim
