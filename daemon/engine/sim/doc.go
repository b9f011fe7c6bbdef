// Package sim is the simulator. It runs whole daemons with their clients and stores in virtual
// time, from one seed. It is the main test of the decisions of the daemon.
//
// # What is real
//
// Each host of a run has an engine.Engine of its own, with everything below it, as the daemon runs
// it:
//
//   - the lock tables (cache.Table), the dispatch of requests, sessions and their outboxes,
//     multi-acquires, keepalives and draining;
//   - the schedule of renewals (renewer.Schedule), and the batching (upstream.Lane);
//   - two stores at once (upstream/both, see pair.go);
//   - the codec (protocol), on both ends, through streams of bytes that may be cut anywhere.
//
// # What is not real
//
// Code that blocks, sleeps or calls the operating system has a counterpart here, which does the
// same in steps:
//
//   - conn.go has the daemon's sockets, readers and writers, clients that read slowly, and sessions
//     that the daemon ends (daemon/conn.go);
//   - pace.go has the rate limit of users (daemon/turn.go);
//   - query.go runs queries of stores (storeSet.ask), which find nothing in the stores;
//   - host.drain is the daemon's drain (daemon/drain.go). Signals, the lock file, stale sockets and
//     the watch on peers' processes have no counterpart. A client that dies is gone at once, or
//     with its socket;
//   - flight.go is upstream.Pump, link.go has what the daemon has for each store, and host.wake is
//     renewer.Timer;
//   - conf.go writes configurations, and reload.go makes a daemon apply one (storeSet.change). In
//     some runs other events come between its steps (steps.go);
//   - takeover.go has takeovers (takeover.State), also by a process with another configuration;
//   - redis.go and redisqueue.go model upstream/redis and its server. TestModelIsRedis carries out
//     the same ops on this model and, with the driver, on a real Redis. The model does not have the
//     driver's reading of errors. Its read-only server is simple: it refuses everything but a peek;
//   - embedded.go models upstream/embedded and its file, but not its fence limit;
//   - etcd.go models stores whose leases depend on the daemon's store session, as upstream/etcd and
//     upstream/zookeeper do;
//   - permits.go has the semaphores of these stores.
//
// Clients use no client library. client.go, act.go and the code that reads replies follow
// PROTOCOL.md alone. The steps of one host do not run at the same time. A step may continue with a
// clock reading that is out of date, but only the race detector finds data races.
//
// # Running and replaying
//
//	go test ./daemon/engine/sim -run TestSeeds -v -args -seeds=1000 [-first=N] [-stop]
//	go test ./daemon/engine/sim -run 'TestSeed$' -v -args -seed=N [-lines=300]
//	daemon/engine/sim/mutants/run.sh
//	go test ./daemon/engine/sim -run TestStudy -v -args -study
//
// The make targets are make sim SEEDS=n and make mutants. STUDY.md has the output of the last
// command: up to 100 hosts, without faults, under loads that show the effects of fairness and
// lingering.
//
// The same seed gives the same run on every machine, with the same hash of its trace. A failing
// seed is printed with the command that replays it, and with the last events of the key concerned.
// The mutants are faults planted in a copy of the tree. The simulator has to find each of them.
//
// # What is checked, in every run
//
// A client believes in a hold from its reading of the grant to the stated validity, which later
// grants and keepalives extend. It no longer does so once it releases the hold or reads that the
// hold is lost. The names below are the names of the checks in failures.
//
//   - two holders: no two clients believe in holds that exclude each other. Plain SET NX PX lockers
//     count, too. No more clients believe in permits of a semaphore than it has;
//   - fence, fence order: rule 4 of the design, in the order in which holds begin. No two permits
//     have the same fence;
//   - fenced write, stale write: a resource takes no smaller fence than it has seen. It never
//     refuses the present holder, and takes no write of an earlier holder after a later holder's;
//   - past the deadline, a third of the TTL: rule 3, for all messages that the daemon sends;
//   - order: no request is granted before an earlier waiter of the same host that it excludes;
//   - busy: a try of several keys is not busy if one of them was free throughout;
//   - bounded: once a daemon knows that a key is contended, it makes only a limited number of
//     handoffs;
//   - access: no grant, degraded ones included, contradicts the configuration that the host follows
//     at that moment;
//   - silent: a client loses a hold as silent only if it has sent nothing for the whole heartbeat,
//     and then it loses the hold within seconds;
//   - limits: no session and no namespace exceeds its limits of holds and waiters;
//   - view: a view shows the holds of the host, and no others;
//   - dropped in use, reload: a reload drops no store that has a holder. A bad reload changes
//     nothing, and a good one succeeds;
//   - found gone: a released hold is reported as lost at most once, and only if a store has lost
//     leases;
//   - audit: each hold begins once and ends once in the audit log, and no duration is longer than
//     the run;
//   - every wait ends: every request is answered within its wait and 30 s, frozen time excluded;
//   - nothing left: when all sessions have ended, tables, lanes, schedules and the store are empty;
//   - forced: a hold that an operator ends is lost as forced, and no other hold is;
//   - one push: each quiet release that has to fail is reported once, and no other one is;
//   - lost, lost once, lost in time, lost before grant, after lost: a loss has a cause, so without
//     faults there is none. The client is told once, after the grant and before any other message
//     shows the loss. The loss is final;
//   - token: no daemon requests a token again that it has withdrawn or released (tokens.go);
//   - batch: no batch has two ops of a lock, or of a permit;
//   - grant, count, upgrade, stale fence, cancel, inspect, reply, one reply, protocol: the rules of
//     PROTOCOL.md for answers.
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
// TestChecksBite gives each check a history that violates it. A best-effort store may forget
// leases, or its clock may leap. Then two holders, or fences out of order, are waived and counted.
// One lease must be from before the loss and the other from after it, and the validity stated for
// the first one must not be over.
//
// # Faults
//
//   - Daemons: they freeze, also between a decision and its sending, alone or with their clients
//     when a machine is suspended. They continue with an old clock reading. They are killed, and
//     they drain.
//   - Network: hosts are cut off from the store. Requests to the store are lost, late or carried
//     out twice. Replies are lost or slow. Hints are lost, late or doubled. Connections break. Clocks
//     drift, each by up to 0.4 %.
//   - Stores: they pause, run out of memory, are read-only, restart with and without their data,
//     are flushed, have their clocks set forward and back, and end sessions.
//   - Clients: they pause, die, leave, do not read, and request much without reading the answers.
//     They send requests that cannot be carried out, and bytes that are no frame. They send no
//     heartbeats for a while, and acquire keys again that they have lost. In some runs a host is
//     frozen when such a silence has lasted too long.
//   - Operators: they unlock holds by force. They reload daemons with configurations that add,
//     change and remove namespaces, stores and users.
//
// Every kind of fault is counted when it has its effect, and so is every reply, push, reason and
// result. With 250 seeds or more, TestSeeds fails if one of them did not occur. Counts.Missing
// gives the reasons for the few exceptions.
package sim
