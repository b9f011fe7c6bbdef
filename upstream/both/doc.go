// Package both is two stores at once, for moving keys from one to the other
// without a moment in which they are not locked. It is made of any two stores and
// knows neither.
//
// A move is three rollouts: every host on the old store; every host on both; every host on the new one. To
// etcd and ZooKeeper it is four: see below. At each step hosts of two kinds run side by side, and have a store
// in common. A lease here is a lease in both stores under the same number, taken first in the old one (so that
// two hosts that move cannot wait for each other) and given back in the opposite order. What one store refuses,
// or does not answer, is not granted.
//
// A host that has the old store's lease and queues in the new one keeps the lease from others; should it die
// there, until its TTL is over. If it loses that lease while it queues, it leaves both stores' queues: the
// next host that has the lease would wait for it in the new one, and it for the lease. A withdrawal that is not
// answered may be carried out late, and end what the same token has got since. So a token that was withdrawn is
// not asked for again: it is withdrawn until both stores have answered, and then the lock table takes another one.
//
// Permits of semaphores are taken and given back in the same way, where both stores have
// them: each store counts those that it knows of.
//
// # Fences
//
// A base has to be above that of every earlier holder and below that of every later one. An earlier holder
// may have got its base from the old store, from both, or from the new one. The old store has to be one whose
// bases can be raised: New refuses others. From etcd and ZooKeeper, whose bases are their own order, there is
// no way without a stop of all holders.
//
// If the new store's bases can be raised, the base is the new store's, which is asked with the old one's as
// its floor. Before the grant, the old store's counter is raised to it. The op's own floor raises both.
//
// Then a permit needs more, since other hosts get permits from the old store, or from the new one, in the
// meantime, and no two permits may have the same base. So its base is one that both stores have given: if the
// old store's counter is past the base already, the new store is asked for one that is ahead of both, and
// then the old store for the same.
//
// # Fences where the new store's bases are its own order
//
// Neither store's counter can follow the other's there. The old store's counts locks of other keys, too, and
// those of hosts that do not know the new one. So one of the two decides, and the move has one rollout more:
//
//  1. the old store alone;
//  2. both, without fence_epoch: the base is the old store's;
//  3. both, with fence_epoch E: the base is E plus the new store's, and the old store's base has to be below E;
//  4. the new store alone, with the same E.
//
// Hosts of 1 and 2 share the old store's order, and those of 3 and 4 the new one's. Where hosts of 2 and 3
// are side by side, all have each lock in both stores. A host of 3 writes a rule into the note, which is in
// the new store: E decides for these keys from here on. It does so before it serves them, or at the latest
// before its first grant. A host of 2 reads the note after each acquire, while it has the lease in both
// stores, and obeys. So for each key there are grants by the old store's order, then grants by the new one's:
//
//   - A grant by the old order is followed by one by the new order, E plus anything. At that time the old store's
//     base, which is above all of its earlier ones, is below E; else the grant is refused.
//   - A grant by the new order is never followed by one by the old order. Its host wrote, or had read, the rule
//     before it was told. Whoever has the lease next reads the note later.
//
// Hosts of 1 and 3 side by side would break that. So hosts of 2 write into the note that they exist, and one
// of 3 refuses keys for which none has: a rule of a host of 3 has only keys that a rule of a host of 2 has,
// too. A host of 2 may go back to 1 until the first one of 3 has started; after that the way back ends at 2,
// because hosts of 1 do not read the note.
//
// Rules are not removed. If keys come back to the old store by a stop of all holders, and move again later,
// the old store's base is above all that the earlier rule can give, and the rule does not count for such a
// grant.
//
// # Sessions
//
// Where one of the stores lives by TTLs, so do the leases here, and end with the
// other one's session too. The session's number is the sum of the two stores'.
//
// When one store has lost a lease, the other one may still have it. Info says so (Pair), and the lock table releases
// it there. It does so too while the pair counts as down, because one of the two may answer. A release that only one
// has answered is Unknown. If leases end with their TTL in the other one, the result says so (Expires), and the
// release is not asked for beyond that.
//
// # Ownership
//
// A Store owns its two stores, and a goroutine for each of their streams; Close ends
// them. Its lock guards what is known of the sessions and of places in the new store's queues.
package both
