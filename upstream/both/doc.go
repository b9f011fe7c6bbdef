// Package both combines two stores, so that keys can move from one to the other and are locked all
// the time. It works with any two stores.
//
// A move takes three rollouts: every host on the old store, every host on both, every host on the
// new store. A move to etcd or ZooKeeper takes four, as described below. During each rollout there
// are hosts of two kinds, and they have a store in common. A lease of this package is a lease with
// the same token in both stores. It is acquired first in the old store, so that two hosts cannot
// wait for each other. It is released in the opposite order. An acquire that one store refuses or
// does not answer is not granted.
//
// A host can have the old store's lease and queue in the new store. No other host gets the lock
// meanwhile. If the host dies, this lasts until the end of the TTL. If it loses the old store's
// lease while it queues, it leaves both queues. Otherwise it would deadlock with the next host that
// gets that lease and queues in the new store behind it. A withdrawal without an answer may be
// carried out late, and then end a later lease of the same token. So a token is not used again
// after a withdrawal. The withdrawal is repeated until both stores have answered. Then the lock
// table uses a new token.
//
// Permits of semaphores are acquired and released in the same way if both stores have semaphores.
// Each store counts its own permits.
//
// # Files
//
// The files by layer, in reading order. No layer depends on a later one, except that the pair and
// the order of fences refer to each other.
//
//	pair   both.go (the Store), order.go (fences in the new store's own order)
//	batch  apply.go
//	list   registry.go
//	move   move.go (to a successor process)
//
// # Fences
//
// A base must be above the bases of all earlier holders and below the bases of all later holders.
// An earlier holder may have its base from the old store, from both stores, or from the new store.
// It must be possible to raise the old store's bases, so New refuses etcd and ZooKeeper as the old
// store. Their bases are their own order. A move away from them requires that all holders stop.
//
// If the new store's bases can be raised, the pair's base is the new store's. The old store's base
// is the floor for it. Before the grant, the old store's counter is raised to it. The op's own
// floor raises both.
//
// Permits need more. Other hosts can get permits from one of the stores in the meantime, and no two
// permits may have the same base. So both stores must have given a permit's base. If the old
// store's counter is past the base already, the pair requests a base from the new store that is
// ahead of both counters. Then it requests the same base from the old store. It keeps the counters
// near the clocks, or else fences would fall when a store loses its counter.
//
// # Fences in the new store's own order
//
// If the new store's bases are its own order, neither store's counter can follow the other's. The
// old store also counts locks of other keys, and of hosts that do not use the new store. So one of
// the two stores decides, and the move has one more rollout:
//
//  1. the old store alone;
//  2. both, without fence_epoch: the base is the old store's;
//  3. both, with fence_epoch E: the base is E plus the new store's, and the old store's base must
//     be below E;
//  4. the new store alone, with the same E.
//
// Hosts of rollouts 1 and 2 share the old store's order. Hosts of rollouts 3 and 4 share the new
// store's. While there are hosts of 2 and 3, every host has each lock in both stores. A host of 3
// writes a rule into the note, which is in the new store: E decides for these keys from now on. It
// does so before it serves the keys, or at the latest before its first grant. A host of 2 reads the
// note after each acquire, while it has the lease in both stores, and obeys the rule. So the grants
// of a key follow first the old store's order and then the new store's:
//
//   - A grant by the old order is followed by a grant by the new order, with base E plus a positive
//     number. The old store's base at that time is above all its earlier ones. If it is not
//     below E, the grant is refused.
//   - A grant by the new order is never followed by a grant by the old order. Its host had written
//     or read the rule before the grant. The next holder reads the note later.
//
// Hosts of 1 and 3 at the same time would break this. So hosts of 2 write a rule for their keys
// into the note, and a host of 3 refuses keys without such a rule. A host of 2 may return to 1
// until the first host of 3 has started. After that, no host may return to 1, because hosts of 1 do
// not read the note.
//
// Rules are not removed. If the new store loses some because an older copy of its data is restored,
// hosts that know them obey them, and write them again. Keys may return to the old store after all
// holders have stopped, and move again later. The old store's base is then above all bases of the
// earlier rule, and the rule does not apply to such a grant.
//
// # Sessions
//
// If the leases of one store end with their TTLs, so do the pair's leases. If the other store has a
// session, they end with that session too. The number of the pair's session is the sum of the
// numbers of the two stores' sessions.
//
// When one store has lost a lease, the other one may still have it. Info states this (Pair), and
// the lock table releases the lease there. It does so even while the pair counts as down, because
// one of the two stores may answer. A release that only one store has answered is Unknown. If
// leases in the other store end with their TTL, the result states this (Expires), and the release
// is not repeated after the TTL.
//
// # Ownership
//
// A Store owns its two stores and one goroutine for each of their streams. Close ends them. The
// mutex guards the sessions and the states of tokens.
package both
