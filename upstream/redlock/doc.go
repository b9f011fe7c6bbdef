// Package redlock is the store on several independent Redis servers, the nodes. Their number is odd
// and at least three, and they know nothing of each other. We hold a lock if more than half of the
// nodes, a quorum, say so. An even number of nodes is refused, because it survives no more failures
// than one node less would. Two names for one server are refused too, because it would have two
// votes.
//
// Each node is an upstream.Store that the caller makes, all with one instance id. This package
// knows the contract alone, and no driver.
//
// # Files
//
// The files by layer, in reading order. A layer uses those above it in this list, with one
// exception. Leases, nodes and calls refer to each other, because the answer of a node changes the
// lease and may finish the call.
//
//	config          config.go
//	lock rules      quorum.go (votes), lease.go (what is known of a token)
//	wire and batch  node.go (lanes and calls to a node), rounds.go, results.go, apply.go
//	list            list.go, registry.go
//	store           store.go, takeover.go
//
// There are no permits and no hints.
//
// # Calls
//
// An Apply asks all nodes at once and returns when a quorum has decided every op. Other nodes that
// may answer soon are given as long again as the quorum took, at least 1 ms and at most 50. Apply
// does not wait for nodes that have not answered an earlier call, so a slow minority costs nothing.
// Unanswered calls continue in the background, a bounded number for each node: see Pending
// releases.
//
//	try        granted by a quorum that has the fence base (below) before the TTL is over.
//	           Otherwise what some granted is released, and the op is Busy, with the time until a
//	           quorum will be free. Possibly nobody holds the key and two hosts have split the votes.
//	join       a try, but Queued instead of Busy. There is no queue between hosts, no hint and no
//	           Contended: the caller polls with jitter, and the order is not promised.
//	renew      Done by a quorum of nodes that have the token. NotHeld if so many do not have it that
//	           no quorum can; Unknown in between.
//	downgrade  the same.
//	release    sent to every node that may have the token. Done when a quorum does not have it any
//	           more.
//	peek       free if a quorum is; held if a quorum cannot be free.
//
// The lock table computes the deadline of a lease: the time before the send, plus the TTL, less
// drift. Only answers of a quorum before the deadline count, so a slow quorum does not extend a
// lease.
//
// # Mutual exclusion
//
// A node that grants or renews keeps the token for the TTL from that moment, which is after our
// send. So a quorum has our token until our deadline. Another exclusive lease would need a quorum
// too, and one node would be in both. (Clocks differ in speed by less than the drift.) For a
// renewal this requires that each node that confirms it has had the token ever since the quorum
// before. But a node may have the token from an acquire that it carried out long after it was sent,
// when another host had held the key in between. So a renewal counts only if its quorum answers
// before the end of the lease that it renews: until then there was no other holder.
//
// For the same reason a lease may be healed. If a node says not held while a quorum confirms the
// renewal, because it was down, flushed or late, it is given the token again in the background. It
// does not count for the renewal that found it. When it counts for a later renewal, it has had the
// token since a time at which the lease was valid. Without healing, a long lease would end when the
// third of five nodes restarts, however far apart the restarts are. A healed node has a vote,
// unless it has restarted within the longest TTL.
//
// A release that was not answered may be carried out later, and end a grant of the same token. So a
// node that has not answered a release does not count for that token any more. If the token is used
// for another acquire, it starts anew under another number. (At the nodes the number of a token is
// the table's number times 256, plus the count of its new starts.)
//
// # Fences
//
// Redlock has no fencing token, but this package has one that rises. A node's counter gives
// max(last + 1, floor + 1, TIME in µs). The base of a grant, B, is the highest that the nodes of
// its quorum gave. Before the grant, the nodes that gave less are asked for a new base with the
// floor B − 1, so that their counters are at B or above. The grant is made only when the counters
// of a quorum are. Each node's answer must show that it had our token at that moment. A renewal for
// a new base does the same.
//
// Let X hold with base B, and Y later in a conflicting mode. The quorum whose counters were at B or
// above while it had X's token, and the quorum that granted Y, have a node in common. Conflicting
// tokens are never on a node together. Y's token came last, because otherwise Y would have held
// before X. So that node's counter was at B or above when it granted Y. Its base for Y is larger
// than B, and Y's base is no smaller than that. If the node has forgotten its counter, its TIME
// must be larger than B. A node that restarted has waited for the longest TTL since. So this is
// true while the clocks of the nodes differ, and B is ahead of them, by less than that together.
// Bases are ahead if a fence_epoch or another store's bases have raised them. If they are further
// ahead, fences can fall once a majority has restarted: a daemon knows what it has seen of each
// node, but not what other hosts have seen.
//
// # Restarts
//
// A node that restarted may have forgotten what it granted. It does not vote until the longest TTL
// of any lease has passed since. The store of the node checks this at the server itself
// (Member.MinUptime), so the rule also applies to a daemon that never saw the node before. max_ttl,
// the longest configured TTL, must be the same on all hosts; longer TTLs are refused. After a
// majority has restarted, there is no quorum for that long.
//
// FLUSHALL, DEL, eviction and a clock that is set forward are not noticed: such a node votes
// although it has forgotten locks. A lease that all nodes have survives this on any minority of
// them. A lease that fewer nodes have survives it on as many fewer: a quorum must still have it.
// Renewals heal.
//
// # Pending releases
//
// If an acquire failed or a release was not answered, some nodes may have a token that they should
// not have. The store remembers these nodes and asks them again in the background until they have
// answered or the TTL has passed. After an acquire that was not answered, the release is sent
// twice, because the acquire may be carried out after the first one. Nodes that were down all the
// time are not remembered. The key can be acquired with another token meanwhile: a node takes over
// what an earlier token of ours has left behind.
//
// # When things go wrong
//
//	a minority down, paused    no effect. They are asked again after 10 ms, and later each time, up
//	or slow                    to 1 s.
//	a majority                 ErrDown. Ops are Refused if nothing was done, otherwise Unknown.
//	                           Leases end at their deadlines unless a quorum is back before.
//	a node restarted           does not vote for max_ttl, and says so; then it is healed.
//	a minority flushed         not noticed: see Restarts. The next renewals heal it.
//	a majority flushed         leases are gone: renewals are NotHeld. Fences continue to rise
//	                           while the nodes' clocks agree.
//	an answer that never came  see Pending releases.
//	foreign token on a node    that node is busy. A plain Redlock library on the same nodes and this
//	                           store keep each other out, in both modes.
//	two nodes, one server      Open fails. If it is found later, the second node does not vote.
//	a wrong password or the    that node does not vote. Open fails if no quorum is left, and warns
//	like on one node           otherwise.
//
// # Ownership
//
// A Store has one goroutine for pending releases, and one for each call in flight. A node has at
// most two calls of the main lane, one of renewals, and one for pending releases and healing. Close
// waits for the goroutines. It waits for pending releases at nodes that are up, at most for the
// time of one answer. Then it closes the nodes. Store.mu guards what is known of tokens and calls;
// nothing blocks under it. The lock of a listing is held while the nodes are listed, and nothing
// else takes it.
package redlock
