// Package redlock is the store on several independent Redis servers, the nodes:
// three or more of them, an odd number, that know nothing of each other. A lock is
// ours when more than half of them, a quorum, say so. An even number of nodes bears
// the loss of no more than one less would, and is refused; so are two names for one
// server, which would have two votes.
//
// Each node is an upstream.Store that the caller makes, all with one instance id;
// this package knows the contract alone, and no driver.
//
// # Calls
//
// An Apply asks all nodes at once and answers when a quorum has decided every op of
// it. Other nodes that may answer soon are given as long again as the quorum took,
// at least 1 ms and at most 50, but not one that still owes the answer to an earlier
// call: a slow minority costs nothing. What the nodes have not answered then goes on
// without us, a bounded number of calls a node, and is brought to its end: see Debts.
//
//	try        granted by a quorum that has the fence base (below) before the TTL is
//	           over. Otherwise what some granted is released, and it is Busy, with the
//	           time until a quorum will be free; it may be that nobody holds the key and
//	           two have split the votes.
//	join       a try, Queued instead of Busy. There is no queue between hosts, no hint
//	           and no Contended: the caller polls with jitter, and the order is not promised.
//	renew      Done by a quorum of nodes that have the token. NotHeld when so many do not
//	           that no quorum can; Unknown in between.
//	downgrade  the same.
//	release    every node where the token may stand is asked. Answered when a quorum does
//	           not have it any more.
//	peek       free when a quorum is; held when that cannot be.
//
// A lease's deadline is the table's: the time before the sending and the TTL, less
// drift. Nothing counts that a quorum has not said before then, so that a slow quorum
// does not stretch it.
//
// # Why nobody holds beside another
//
// A node that says granted or done keeps the token for the TTL from then, which is
// after our sending. So until our deadline a quorum has our token, and another
// exclusive lease would need a quorum too: one node would have both. (Clocks differ
// in speed by less than the drift.) That holds for a renewal if each node that
// confirms it has had the token ever since the quorum before; but one may have it
// from an acquire that it carried out long after it was sent, when somebody else had
// come and gone. So a renewal counts only when its quorum has spoken before the end
// of what it renews: until then there was nobody else.
//
// For the same reason a lease may be healed. A node that says not held while a quorum
// confirms the renewal, having been down, flushed or late, is given the token anew in
// the background. It does not count for the renewal that found it; when it counts for
// a later one, it has had the token since a time at which the lease stood. Without
// this a long lease would end with the third of five restarts, however far apart.
// Such a node has a vote: one that has restarted within the longest TTL has not.
//
// A release that was not answered may be carried out later, and end a grant of the
// same token. So a node that owes the answer to a release does not count for that
// token again, and a token that is asked for again then begins anew, under another
// number. (At the nodes a token's number is the table's times 256, and how often it
// has begun anew.)
//
// # Fences
//
// Redlock has no fencing token; this has one that rises. A node's counter gives
// max(last + 1, floor + 1, TIME in µs). The base of a grant, B, is the highest that
// the nodes of its quorum gave. Those that gave less are asked, before the grant, for
// a new one with the floor B − 1, so that their counters stand at B or above, and the
// grant is only made when a quorum of counters do, each by an answer that says that
// our token stood there at that moment. A renewal for a new base does the same.
//
// Let X hold with base B, and Y later in a conflicting mode. The quorum that had
// counters at B or above while X's token stood there, and the quorum that granted Y,
// have a node in common. Tokens in conflict do not stand on a node together, and Y's
// stood there last, or Y would have had it, and held, before X. So that node's counter
// was at B or above when it granted Y, its base for Y is larger than B, and Y's base
// is no smaller than that. If the node has forgotten its counter, its TIME has to be
// larger than B: a node that restarted has waited for the longest TTL since, so this
// is so while the clocks of nodes differ by less than that.
//
// # Restarts
//
// A node that restarted may have forgotten what it granted, and does not vote until
// the longest TTL of any lease is over since: its maker is told (Member.MinUptime)
// and asks the server itself, so this is so for a daemon too that never saw it
// before. max_ttl, the longest TTL that is configured, has to be the same on all
// hosts; longer TTLs are refused. When a majority has restarted there is no quorum for
// that long. FLUSHALL, DEL, eviction and a clock that is set forward are not noticed:
// such a node votes with what it has forgotten. A lease that stands on all nodes bears
// that of any minority of them, and one that stands on fewer, of as many less: it has
// to be held on more nodes than are not needed for a quorum. Renewals heal.
//
// # Debts
//
// Where a token may stand and should not, because its acquire failed or its release
// was not answered, is remembered, and the node is asked again in the background until
// it has answered, or the TTL is over; an acquire that was not answered is looked for
// twice, since it may be carried out after the first look. Nothing is remembered of
// nodes that were down all the time. A key can be asked for under another token
// meanwhile: a node takes over what an earlier token of ours has left behind.
//
// # When things go wrong
//
//	a minority down, paused    nobody notices. They are asked again after 10 ms, and
//	or slow                    each time later, up to 1 s.
//	a majority                 ErrDown. Ops are Refused where nothing was done, otherwise
//	                           Unknown; leases end at their deadlines unless a quorum is
//	                           back before.
//	a node restarted           does not vote for max_ttl, and says so; then healed.
//	a minority flushed         nobody notices: see Restarts. Healed by the next renewals.
//	a majority flushed         leases are gone: renewals are NotHeld. Fences go on rising
//	                           while the nodes' clocks agree.
//	an answer that never came  see Debts.
//	foreign token on a node    that node is busy. A plain Redlock library on the same nodes
//	                           and we keep each other out, in both modes.
//	two nodes, one server      Open fails; found later, the second of them does not vote.
//	a wrong password or the    that node does not vote; Open fails when no quorum is left,
//	like on one node           and warns otherwise.
//
// # Ownership
//
// A Store has one goroutine for pending releases, and one for each call to a node that
// is in flight: at most two of the main lane, one of renewals, and one for pending releases
// and healing a node. Close waits for them, for pending releases at nodes that are up at
// most the time of one answer, and then closes the nodes. Store.mu guards what is known of
// tokens and what is on its way; nothing blocks under it. The lock of a listing is
// held while the nodes are listed, and nothing else takes it.
package redlock
