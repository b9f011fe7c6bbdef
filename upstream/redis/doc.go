// Package redis is the store on a Redis server: standalone, over TCP, TLS or a
// Unix socket. Sentinel and Cluster come later.
//
// # Layout
//
// An exclusive lock is the plain string <prefix><key> = token with a PX, as any
// "SET key token NX PX" locker has it, so that each keeps the other out. A token
// is the instance id of the daemon's Store (22 characters), a dot, and the grip's
// number in base 36. While readers hold the lock its value is the constant
// "locksidecar:readers", which ends with the last of them.
//
// Beside it there are, in the lock's own slot once there is a cluster (the tag
// between the braces is empty on a standalone server):
//
//	locksidecar:{}:readers:<prefix><key>  sorted set of tokens by the end of their leases
//	locksidecar:{}:queue:<prefix><key>    sorted set of waiting tokens by their place
//	locksidecar:{}:waiters:<prefix><key>  the same by the end of their own short leases
//	locksidecar:{}:queued                 stands while anybody queues for anything
//	locksidecar:{}:fence                  the last fence base given out
//
// All but the last expire by themselves; the fence is one key, whatever the
// number of locks. A base is max(last + 1, floor + 1, server's clock in µs), so
// losing the key does not make fences fall. A lock's key of another type is
// somebody else's lock: busy. Prefix and keys may not make a name that begins with
// "locksidecar:". All times are the server's.
//
// What a host waits for is told to it, and to it alone, on the channel
// locksidecar:hint:<instance>. Hints may be lost; nothing depends on them.
//
// # Calls
//
// A batch is one pipeline of script calls, one a kind of op and 128 keys, in the
// order of what frees keys first. The scripts (lua/) have a first part that does
// what mostly happens with the fewest commands, SET NX PX a key, or one MGET and
// one DEL for all, and a second part for the keys for which that was not enough.
// They answer with exceptions only. An op that fails does not touch its
// neighbours.
//
// Refused is said only when nothing was done: no connection was had, so that no
// byte of the batch was sent, or the server's error proves it. All else that is not
// an answer is Unknown. Numbers of tokens rise with time in a daemon, and an
// acquire takes over what a smaller number of its own instance has left behind;
// one that comes late finds the larger number and is busy.
//
// # When things go wrong
//
//	server restarted      ops on the way are Unknown, others Refused until it is back. Its
//	                      leases are gone: renewals are NotHeld. Fences go on rising.
//	flushed               leases are gone: renewals are NotHeld. Fences go on rising.
//	paused (SIGSTOP or    ops are Unknown after Timeout; without a connection they are
//	CLIENT PAUSE)         Refused. What was sent is carried out when the pause ends, in any
//	                      order: an acquire that comes after its own withdrawal stands until
//	                      its TTL is over or this host asks for the key again.
//	out of memory         acquires and joins are Refused; renewals, downgrades, releases and
//	                      withdrawals work.
//	a cluster's node      Open fails.
//	a read-only replica   Open fails. One that becomes a replica later: ops are Refused.
//	script cache flushed  nobody notices: one more round trip.
//	password changed      open connections go on; new ones fail and ops are Refused, saying
//	                      which settings to look at, until password_file has the new one.
//	may evict             Open fails, unless allow_eviction=true. Behind OpenLazy: Refused.
//	foreign type at key   Busy, for as long as it stands there.
//	foreign plain locker  kept out by exclusive and by shared leases, and keeps both out; it
//	                      knows of no queue, and its release tells nobody: poll.
//
// # Ownership
//
// Each Store has one goroutine of its own, which listens for hints; Close ends it.
// There are at most four connections, three for batches and one for hints. The
// only lock is around what was last logged of the server.
package redis
