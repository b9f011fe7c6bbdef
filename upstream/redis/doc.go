// Package redis is the store on Redis: one server (over TCP, TLS or a Unix socket), a master that
// sentinels name, or a cluster.
//
// # Files
//
// The files by layer, in reading order. No layer depends on a later one.
//
//	config and connection  config.go, errors.go, redact.go, slot.go (names and slots), script.go,
//	                       dial.go, check.go and uptime.go (checks of a connection), node.go,
//	                       subscription.go, sentinel.go, cluster.go, clustermap.go
//	wire and batch         batch.go, pipeline.go, wait.go, results.go
//	lock rules             lua/ (fast.lua, then a script for each kind of op)
//	permits                lua/permit*.lua, lua/semaphore.lua
//	watch                  watch.go, publish.go, questions.go
//	list                   list.go, list_permits.go, registry.go
//	store                  store.go, the Store
//
// # Layout
//
// An exclusive lock is the plain string <prefix><key> = token with a PX, the layout of any "SET key
// token NX PX" locker, so that each keeps the other out. A token is the instance id of the daemon's
// Store (22 characters), a dot, and the lease's number in base 36. While readers hold the lock, its
// value is the constant "locksidecar:readers", which ends with the last of them.
//
// The siblings of a lock are in its slot:
//
//	locksidecar:{tag}:readers:<prefix><key>  sorted set of tokens by the ends of their leases
//	locksidecar:{tag}:queue:<prefix><key>    sorted set of waiting tokens by their places
//	locksidecar:{tag}:waiters:<prefix><key>  the same tokens by the ends of their short leases
//	locksidecar:{tag}:queued                 exists while any token queues in the slot
//	locksidecar:{tag}:fence                  the last fence base of the slot; if a q follows it,
//	                                         tokens may be queueing
//
// Each daemon has an entry with its host, version and process, which expires by itself. In a
// cluster it is in the slot of the instance id:
//
//	locksidecar:{tag}:daemon:<instance>      JSON; see upstream.Registration
//
// A semaphore of that key consists of siblings alone, and is independent of the lock:
//
//	locksidecar:{tag}:permits:<prefix><key>        sorted set of tokens by the ends of their permits
//	locksidecar:{tag}:permitqueue:<prefix><key>    sorted set of waiting tokens by their places
//	locksidecar:{tag}:permitwaiters:<prefix><key>  the same tokens by the ends of their short leases
//	locksidecar:{tag}:permithosts:<prefix><key>    the same tokens by name, and thus by instance
//
// A place is a multiple of 16384. The rest of the score is the number of permits that the waiting
// token expects the semaphore to have. It is at most 16383; larger numbers count as that for hints
// and for Contended, but not for grants. All four keys disappear with their last element, or
// expire.
//
// Without a cluster the tag is empty. In a cluster it is the slot's tag, from a table of the first
// tag of each slot (slot.go), so that siblings share the slot of <prefix><key>. That slot follows
// Redis's own rule, hash tags included. After a move from one server to a cluster, the locks are
// still there, but not their siblings: let all leases end first. Each slot has its own fence and
// queued mark; without a cluster there is one of each. Fences never expire, because a clock that
// was ahead for a while would end them early. They take about 100 bytes for each slot in use, 2 MB
// for all 16384.
//
// All other keys expire. A base is max(last + 1, floor + 1, server's clock in µs), so that fences
// do not fall if the fence key is lost. The floor is at least the present time on the clocks of the
// servers seen before (upstream.FenceClock). An acquire writes the fence. Its old value tells the
// acquire whether to check for the queued mark. The q is written before the mark, and the first
// acquire that finds no mark removes the q. If the key of a lock has another type, it counts as a
// foreign lock, and the op is Busy. Prefix and key may not form a name that begins with
// "locksidecar:". All times are the server's.
//
// Each host receives the hints for it on a channel of its own, locksidecar:hint:<instance>. A hint
// is a letter and the name of a lock: f (it may be free), w (it is contended) or t (another host
// tried it). For a semaphore it is F, the waiting token's number, a space and the name, or W and
// the name. Daemons ignore unknown letters. In a cluster the channel is a sharded one, at the node
// that serves the slot of the channel's name. There the scripts return the receivers instead of
// publishing, and the daemon publishes. Hints may be lost; correctness does not depend on them. On
// the same channels a daemon asks another one how long it has held a lock, with the letter A, and
// receives the answer with the letter a (questions.go). No script takes part.
//
// # Calls
//
// A batch is one pipeline of script calls for each node. A call is for one kind of op, one slot and
// up to 128 keys. Calls that free keys come first, and the pipelines are sent to all nodes at once.
// The first part of a script (lua/) handles the usual case with the fewest commands: SET NX PX for
// a key, or one MGET and one DEL for all. The second part handles the remaining keys. A script
// returns a number, or only the exceptions. A failed op does not affect its neighbors. If the locks
// of a batch are scattered over a cluster's slots, each is a call of its own. The cost of a call is
// its arguments, its commands, and the values that Lua creates, so the first parts create no
// functions.
//
// Permits too cost one script call for each slot and 128 ops, for any number of semaphores. To take
// a permit costs one ZADD and, once for each semaphore and call, a ZCARD and a PEXPIRE. The script
// removes expired permits only if none seem to be left. All commands are O(log n) in the permits
// held and in the queue. Those that read several tokens, to find the hosts to tell, read at most
// 100, once for each semaphore and call. As many waiters are told as permits have come free, each
// about its own token. The first in the queue tells the hosts that hold permits that it waits, each
// time it asks, out of 100 random permits. The other hosts learn it when they renew.
//
// An op is Refused only if nothing was done: no byte of the node's pipeline was sent because there
// was no connection, or the server's error proves it. Everything else without a reply is Unknown.
// The numbers of a daemon's tokens rise with time. An acquire takes over what a smaller number of
// its own instance has left behind, and one that is carried out late finds the larger number and is
// busy. This does not apply to permits, of which an instance has many at a time.
//
// The pipelines and the map of slots are ours. go-redis's ClusterClient sends a whole pipeline
// again if its first command fails with LOADING or the connection is cut, even if parts of it were
// carried out. We send again only a single call whose reply proves that it was not carried out:
// after NOSCRIPT together with the scripts, after MOVED to the node that it names. ASK and TRYAGAIN
// mean that the slot is moving to another node, and that siblings may be at either node. Then each
// renewal and release is sent by itself. Its script uses only what the lock's own key or the set of
// a semaphore's permits proves, creates nothing (moving.lua, permitmoving.lua), and follows ASK.
// Ops that need siblings wait up to 60 ms and are then refused.
//
// With wait_replicas=N, WAIT N is in the same pipeline, after all calls that grant or extend
// leases; with wait_aof=local, N or local,N, it is WAITAOF. If too few acknowledgements arrive
// within wait_timeout (half of timeout unless given), a grant, renewal or downgrade is Unknown.
// Releases do not wait. An acknowledgement of a replica does not promise that this replica becomes
// the master.
//
// # When things go wrong
//
//	server restarted      ops in flight are Unknown, others Refused until it is back. Its
//	                      leases are gone: renewals are NotHeld. Fences continue to rise.
//	flushed               leases are gone: renewals are NotHeld. Fences continue to rise.
//	paused (SIGSTOP or    ops are Unknown after Timeout; without a connection they are
//	CLIENT PAUSE)         Refused. What was sent is carried out when the pause ends, in any
//	                      order. An acquire that is carried out after its own withdrawal holds the
//	                      key until its TTL ends or this host acquires the key again; one of a
//	                      permit until its TTL ends.
//	out of memory         acquires and joins are Refused; renewals, downgrades, releases and
//	                      withdrawals work.
//	a read-only replica   Open fails. If it becomes a replica later, ops are Refused, and
//	                      connections are made anew.
//	script cache flushed  the next op takes one more round trip.
//	password changed      open connections continue to work; new ones fail and ops are Refused with
//	                      an error that names the settings, until password_file has the new one.
//	may evict             Open fails, unless allow_eviction=true. Behind OpenLazy: Refused.
//	foreign type at key   Busy, for as long as it exists. At a semaphore's set: Refused.
//	foreign plain locker  kept out by exclusive and by shared leases, and keeps both out. It
//	                      bypasses the queue, and its release sends no hint, so waiters poll.
//	wrong kind of server  Open fails and names the right scheme; behind OpenLazy Refused.
//	clock jumps ahead     leases that it jumps over end at the server. Other hosts can acquire their
//	                      keys before the holders' deadlines have passed.
//	clock jumps back      leases last longer at the server by as much. Fences rise either way.
//	failover              writes that had not reached the new master are lost: a lock can get a
//	                      second holder. A daemon that has seen the old master gives larger
//	                      fences, even if the new master's clock is behind. A daemon that never
//	                      saw the old master (started or restarted since) can give smaller ones
//	                      for as long as the clocks differ. Where the old master's fences were
//	                      ahead of its clock (raised by fence_epoch or another store's bases, or
//	                      the clock was set back), the new ones are above all that this daemon
//	                      has seen, but not above those of other hosts. The same applies to a
//	                      server that was restarted or flushed. Ops are Refused or Unknown until
//	                      the new master is found.
//	sentinels disagree    the latest by its epoch counts. Sentinels that lag do not lead back to an
//	                      old master, which may claim to be one for some seconds more.
//	no sentinel answers   existing connections continue to work; without one, ops are Refused.
//	a cluster's node is   ops on its slots are Unknown, then Refused without asking it until
//	silent or gone        it answers a probe or others serve them; other nodes are not affected.
//	slot is moving        see above.
//	slot without a node   ops on it are Refused.
//	too few replicas      Open fails; later there is a warning, and nothing is granted or renewed.
//	too old for WAITAOF   (before 7.2) Open fails with wait_aof.
//
// The store is down (upstream.ErrDown) if no server of a batch answered and can write, and, in a
// cluster, no other master is known to.
//
// # Ownership
//
// Each Store has a goroutine that listens for hints, and one that publishes. With Sentinel, one for
// each sentinel listens for a new master. In a cluster, one refreshes the map, and each probe of a
// silent node has one. Batches for several nodes use further goroutines, which are kept for later
// batches. Close ends all of them and waits.
//
// There are at most four connections to a node, three for batches and one for hints, and as many to
// a sentinel. Lock order: cluster.refreshing before cluster.mu, sentinel.mu, and the mutex of what
// was last logged. No two others are held together, and only refreshing is held during I/O.
package redis
