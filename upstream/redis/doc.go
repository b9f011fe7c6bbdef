// Package redis is the store on Redis: one server (over TCP, TLS or a Unix
// socket), a master that sentinels name, or a cluster.
//
// # Layout
//
// An exclusive lock is the plain string <prefix><key> = token with a PX, as any
// "SET key token NX PX" locker has it, so that each keeps the other out. A token
// is the instance id of the daemon's Store (22 characters), a dot, and the lease's
// number in base 36. While readers hold the lock its value is the constant
// "locksidecar:readers", which ends with the last of them.
//
// Beside it there are, in the lock's own slot:
//
//	locksidecar:{tag}:readers:<prefix><key>  sorted set of tokens by the end of their leases
//	locksidecar:{tag}:queue:<prefix><key>    sorted set of waiting tokens by their place
//	locksidecar:{tag}:waiters:<prefix><key>  the same by the end of their own short leases
//	locksidecar:{tag}:queued                 stands while anybody queues for anything there
//	locksidecar:{tag}:fence                  the last fence base given out there; with a q
//	                                         behind it, somebody may be queueing
//
// Each daemon has an entry with its host, version and process, which expires by itself. In a
// cluster it is in the slot of the instance id:
//
//	locksidecar:{tag}:daemon:<instance>      JSON; see upstream.Registration
//
// A semaphore of that key has nothing but siblings, and nothing to do with the lock:
//
//	locksidecar:{tag}:permits:<prefix><key>        sorted set of tokens by the end of their permits
//	locksidecar:{tag}:permitqueue:<prefix><key>    sorted set of waiting tokens by their place
//	locksidecar:{tag}:permitwaiters:<prefix><key>  the same by the end of their own short leases
//	locksidecar:{tag}:permithosts:<prefix><key>    the same by their names, so by instance
//
// A place is a multiple of 16384, and beside it in the score stands how many permits
// the waiting token was told that there are (at most 16383, all above being the same
// for hints and wanted, though not for who gets one). All four go with the last that
// is in them, or expire.
//
// Without a cluster the tag is empty. In a cluster it is the slot's tag, from a table of
// the first tag of each slot (slot.go), so that siblings share the slot of <prefix><key>.
// That slot follows Redis's own rule, hash tags included. After a move from one server
// to a cluster the locks are still there, but none of the siblings: let all leases end
// first. Each slot has its own fence and queued mark; without a cluster there is one of
// each. Fences never expire, because a clock that was ahead for a while would end them
// early. They take about 100 bytes for each slot in use, 2 MB for all 16384.
//
// All other keys expire by themselves. A base is max(last + 1, floor + 1, server's
// clock in µs), so fences do not fall if the fence key is lost. The floor is at least
// the present time on the clocks of the servers seen before (upstream.FenceClock). An
// acquire writes the fence. The old value tells it whether to check for the queued mark:
// the q is written before the mark, and the first acquire that finds no mark removes the
// q. A lock's key of another type is a foreign lock, and the op is Busy. Prefix and keys
// may not form a name that begins with "locksidecar:". All times are the server's.
//
// What a host waits for is told to it, and to it alone, on the channel
// locksidecar:hint:<instance>: f, w or t and a lock's name when it may be free, is
// wanted or is tried for, F with the waiting token's number, a space and a semaphore's name, or W and
// the name. A daemon ignores letters that it does not know. In a cluster that is a sharded channel, at the node
// that serves the slot of the channel's name; there the scripts do not publish but
// return whom to tell, and the daemon publishes. Hints may be lost; nothing depends on
// them. On the same channels a daemon asks another one for how long it has held a lock,
// by the letter A, and is answered by the letter a (asks.go). No script takes part.
//
// # Calls
//
// A batch is one pipeline a node of script calls, one a kind of op, slot and 128
// keys, in the order of what frees keys first; the pipelines of several nodes go out
// at once. The scripts (lua/) have a first part that does what mostly happens with
// the fewest commands, SET NX PX a key, or one MGET and one DEL for all, and a second
// part for the keys for which that was not enough. They answer with a number, or with
// the exceptions only. An op that fails does not touch its neighbours. Scattered over a
// cluster's slots each lock is a call of its own, and what a call costs is its
// arguments, its commands, and what Lua makes anew: the first parts make no functions.
//
// A permit costs one script call a slot and 128 ops too, of as many semaphores or of
// one. Taking it is one ZADD and, once a semaphore and call, a ZCARD and a PEXPIRE;
// permits that have ended are looked for only when there seem to be none left. All is
// O(log n) in the permits held and in the queue; what looks at several tokens is
// bounded by 100 of them, once a semaphore and call: whom to tell. Of those who wait as
// many are told as there are permits that have come free, each of its own. The hosts
// that have permits are told that another waits by the first in the queue, as often as
// it asks, out of 100 permits at random; the others learn it as they renew.
//
// Refused is said only when nothing was done: no connection was had, so that no
// byte of the node's pipeline was sent, or the server's error proves it. All else that
// is not an answer is Unknown. Numbers of tokens rise with time in a daemon, and an
// acquire takes over what a smaller number of its own instance has left behind;
// one that comes late finds the larger number and is busy. Not so with permits, of
// which an instance has many: each token stands for itself.
//
// The pipelines, and the map of slots, are ours: go-redis's ClusterClient sends a
// whole pipeline again when its first command says LOADING or the connection is cut,
// whatever of it was carried out. We send again only the single call whose answer
// proves that it was not: NOSCRIPT after the scripts, MOVED to where it says. ASK and
// TRYAGAIN mean that the slot is on its way to another node, and that siblings may be
// on either side. Renewals and releases are then sent for each lock by itself, by a
// script that does only what the lock's own key proves, or the set of a semaphore's
// permits, and makes nothing (moving.lua, permitmoving.lua), and follow ASK; what
// needs siblings waits up to 60 ms and is refused.
//
// With wait_replicas=N, WAIT N stands in the same pipeline, behind all that gives
// a lease or a longer one; with wait_aof=local, N or local,N, WAITAOF. Too few
// acknowledgements within wait_timeout (half of timeout unless given) make a grant, a
// renewal or a downgrade Unknown; releases do not wait. That a replica has it is no
// promise that this replica becomes the master.
//
// # When things go wrong
//
//	server restarted      ops on the way are Unknown, others Refused until it is back. Its
//	                      leases are gone: renewals are NotHeld. Fences go on rising.
//	flushed               leases are gone: renewals are NotHeld. Fences go on rising.
//	paused (SIGSTOP or    ops are Unknown after Timeout; without a connection they are
//	CLIENT PAUSE)         Refused. What was sent is carried out when the pause ends, in any
//	                      order: an acquire that comes after its own withdrawal stands until
//	                      its TTL is over or this host asks for the key again; a permit's until
//	                      its TTL is over.
//	out of memory         acquires and joins are Refused; renewals, downgrades, releases and
//	                      withdrawals work.
//	a read-only replica   Open fails. One that becomes a replica later: ops are Refused, and
//	                      connections made anew.
//	script cache flushed  nobody notices: one more round trip.
//	password changed      open connections go on; new ones fail and ops are Refused, saying
//	                      which settings to look at, until password_file has the new one.
//	may evict             Open fails, unless allow_eviction=true. Behind OpenLazy: Refused.
//	foreign type at key   Busy, for as long as it stands there. At a semaphore's set: Refused.
//	foreign plain locker  kept out by exclusive and by shared leases, and keeps both out; it
//	                      knows of no queue, and its release tells nobody: poll.
//	wrong kind of server  Open fails and names the right scheme; behind OpenLazy Refused.
//	clock jumps ahead     leases that it jumps over end at the server: others are let in
//	                      while their holders still believe, for what they had left at most.
//	clock jumps back      leases outlive their holders by as much. Fences rise either way.
//	failover              writes that had not reached the new master are lost: a lock can get a
//	                      second holder. A daemon that has seen the old master gives larger
//	                      fences, even if the new master's clock is behind. A daemon that never
//	                      saw the old master (started or restarted since) can give smaller ones
//	                      for as long as the clocks differ. Where the old master's fences were
//	                      ahead of its clock (lifted by fence_epoch, or the clock was set back),
//	                      the new ones are above all that this daemon has seen, but not above
//	                      those of other hosts. Ops are Refused or Unknown until the new master
//	                      is found.
//	sentinels disagree    the latest by its epoch counts; that a few lag leads nobody back to
//	                      an old master, which may call itself one for some seconds more.
//	no sentinel answers   what is connected goes on; no new connections: Refused.
//	a cluster's node is   ops on its slots are Unknown, then Refused without asking it until
//	silent or gone        it answers a probe or others serve them; those of other nodes go on.
//	slot on its way       see above.
//	slot served by nobody ops on it are Refused.
//	too few replicas      Open fails; later a warning, and nothing is granted or renewed.
//	too old for WAITAOF   (before 7.2) Open fails with wait_aof.
//
// The store is down (upstream.ErrDown) when no server of a batch answered and can
// write, and of a cluster no other master is known to.
//
// # Ownership
//
// Each Store has a goroutine that listens for hints, and one that publishes; with
// Sentinel one a sentinel that listens for a new master; in a cluster one that follows the
// map, one for each probe of a silent node, and as many as pipelines were ever on their
// way at once beside their batches' own. Close ends them and waits.
// There are at most four connections a node, three for batches and one for hints, and
// as many a sentinel. Locks: cluster.looking before cluster.mu, sentinel.mu, and the
// one around what was last logged; no two others are held together, and none but
// looking during I/O.
package redis
