// Package both is two stores at once, for moving keys from one to the other
// without a moment in which they are not locked. It is made of any two stores and
// knows neither.
//
// A move is three rollouts: every host on the old store; every host on both; every
// host on the new one. At each step hosts of two kinds run side by side, and have a
// store in common. A lease here is a lease in both stores under the same number,
// taken first in the old one (so that two hosts that move cannot wait for each
// other) and given back in the opposite order. What one store says no to, or does
// not answer, is not granted.
//
// A host that has the old store's lease and queues in the new one keeps the former
// from others; should it die there, until its TTL is over.
//
// Permits of semaphores are taken and given back in the same way, where both stores have
// them: each store counts those that it knows of.
//
// # Fences
//
// A base has to be above every earlier holder's, who may have got his from the old
// store, from both, or from the new one; and below every later one's. So it is
// max(old, new), where
//
//   - the new store is asked with the old one's base as its floor, if its bases can
//     be raised; else the namespace's fence_epoch is added to them, which has to be
//     configured so high that they are above the old store's: a grant that shows
//     that it is not is refused, saying how high;
//   - the old store's counter is raised to it before the grant. So the old store has
//     to be one whose bases can be raised: New refuses others. From etcd and
//     ZooKeeper, whose bases are their own order, there is no way without a stop of
//     all holders.
//
// # Sessions
//
// Where one of the stores lives by TTLs, so do the leases here, and end with the
// other one's session too. The session's number is the sum of the two stores'.
//
// # Ownership
//
// A Store owns its two stores, and a goroutine for each of their streams; Close ends
// them. Its only lock guards what is known of the sessions.
package both
