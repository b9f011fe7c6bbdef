// Package zookeeper is the store on a ZooKeeper server or ensemble, 3.5.3 or later:
// zookeeper://[user:password@]a:2181,b:2181[/chroot/path].
//
// # Layout
//
// It is that of Curator's InterProcessMutex, so that each keeps the other out: a lock
// is a container node <chroot>/<name>, and whoever holds it or waits for it has an
// ephemeral sequential node _c_<UUID>-lock-<number> below. The lowest number holds
// it. The UUID is of version 8 (Curator's are 4) and says whose node it is: the
// session's id, the lock node's number, whether it is shared and whether it is a try. So
// the node of a making that was never answered is found again, and a reading of the
// names alone decides nearly everything. The data is "locksidecar <mode> <host>"; the
// mode there is the one that counts, as a downgrade changes it. Shared nodes end in
// "lock-" like all: to Curator a reader is one more that is before it. Curator's
// InterProcessReadWriteLock uses other names and does not see ours; we wait for its
// nodes, it does not wait for us: they do not exclude each other.
//
// A lock's name is one element of a path: "/", "%", what ZooKeeper forbids (control
// characters, surrogates and what UTF-16 needs two of, private use, U+FFF0 and
// above) and the names ".", "..", "zookeeper" and ".locksidecar" are
// percent-encoded. A child whose name does not end in a number holds nothing, as for
// Curator.
//
// <chroot>/.locksidecar/<session> is the session's own ephemeral node. Each
// transaction writes it too: its answer then says what the transaction's id was,
// which is the czxid of all the nodes that it made and so the leases' fence base.
// The ephemeral node <chroot>/.locksidecar/daemon-<session> beside it is the daemon's
// entry, with its host, version and process. By the ephemeral node <chroot>/.locksidecar/ask-<session>
// another daemon asks that session's daemon for how long it has held a lock, and is answered
// (asks.go). The persistent node <chroot>/.locksidecar/note is the
// note (upstream.Noter). It is written while keys move here from another store.
//
// # Idle parents
//
// The node of a lock or semaphore is kept for a while after its last child is gone, because
// the key may be used again. A Store removes the parents that it has used, once it has had no
// node below them for a minute. It does so in the background, many in one transaction. It
// remembers up to 2 MB of them, about 10,000. Beyond that it removes the oldest early, so it
// keeps up with any rate of new keys. So the server has nodes only for keys that are held,
// waited for, or were used in the last minutes.
//
// A Store deletes only containers that a locksidecar has made: their data is
// "locksidecar". Without this mark, a container cannot be told from a permanent node, and
// other lockers rely on permanent ones (kazoo, the Go client). A server deletes no node
// that has children. If a parent is missing, locksidecar and Curator make it again before
// they make a child. A Store that ended, or had no connection for long, leaves parents
// behind. The server's container manager removes those that ever had a child, up to
// 10,000 a minute.
//
// # Semaphores
//
// Those of key K are children of <chroot>/.locksidecar/permits/K, which has nothing to
// do with the lock of that name: whoever has a permit or waits for one has an ephemeral
// sequential node p-<session>-<token>-<limit>-<number>, or t-… for one that tries. It
// has a permit if fewer nodes than its limit have lower numbers. As nodes only ever go
// from before it, what is once so stays so, and a reading of the names decides, however
// old it is. What else lies there holds nothing. The limit in the name is that of its
// making, for lists and for watches; what counts is what each op says.
//
// One transaction has one czxid for all that it makes. So that each permit has a base
// of its own, a batch makes one node of a semaphore in each transaction: the others go
// out in further ones, right behind the first, and one reading of the semaphore behind
// them does for all. That is one round trip however many, and as many proposals.
//
// An acquire reads all names of the semaphore, about 40 bytes each: 40 kB beside 1000
// others. A release reads none, and renewals one for all of a batch, if there was a
// change since the last. A host that has permits watches the children, to learn whether
// others wait and whether its own nodes are there still: it reads them at most ten
// times a second, and less often by 0.2 ms for each of them.
//
// Of those that wait on one host only the first is seen to. If it is the next of all,
// it watches the children, as whoever leaves lets it in (and it is asked to come once
// too often when somebody joins the queue). Otherwise it watches the node before it,
// and nothing else wakes it. That one does not wait any more when it has gone, or when
// it says so: who is granted and sees another host's node behind its own writes to its
// own afterwards. So a release wakes one host, and the next after it learns that it is
// the next. All that can go wrong there costs time: a place is asked for again anyway.
//
// Where limits differ, who queues with a lower one counts those before it alone: it is
// let in beside those who passed it with a higher one. There are never more permits
// than the highest limit that somebody has asked with.
//
// # The session's deadline
//
// The Go client hides its pings and when it has connected anew, so the deadline is
// counted here. Three things can be wrong with taking the send of any request that
// was answered:
//
//   - A server answers reads, pings and syncs although its leader has been deposed,
//     or its leader answers them itself. Only a transaction proves that there was a
//     quorum after it was sent, and so that a leader that comes later, which gives
//     every session its whole timeout anew, comes after it.
//   - A transaction does not renew the session. The server that has it from us
//     does, for itself, and tells its leader with the next of the leader's pings,
//     every half tick. If the two lose each other before that, the leader counts from
//     what it was told last, which may be long before: a tick taken off, as one
//     might, is not enough.
//   - After a connection is lost the request may have gone out on the next one.
//
// So the deadline moves when a transaction is answered, to what was sent and
// answered on the same connection at least a quarter of the session before that
// transaction was sent; or to the connecting itself, which the leader has to agree
// to. The default shortest session is two ticks, so a quarter is half a tick or more:
// a ping has gone by. A server whose minSessionTimeout is set below two ticks breaks
// this. So each new session asks its server for its tickTime, and is refused if it is
// shorter than two ticks. If the server does not tell (conf is not in its
// 4lw.commands.whitelist), its tick is assumed to be at most the default of 2 s.
//
// A server that has lost its leader drops its clients, so one connection means one
// leader. While the session has nodes, a transaction of one check that always succeeds
// is sent every quarter of the session. Otherwise a read is sent, as no deadline has to
// be confirmed then. The deadline counts the session timeout that the server granted,
// less cache.LeaseDeadline's drift. So a lease always has at least half a session left,
// and up to three quarters.
//
// Once a deadline has passed with something hanging on the session, the session is
// over here, and is closed at the server as soon as there is a connection; it has
// expired there by itself otherwise. Each session has a client of its own that may
// resume it at other servers and is not let make another.
//
// # Calls
//
// A batch is one transaction of all that it changes, and right behind it on the same
// connection the readings of the locks' children: one round trip for a try that is
// granted, for a release, a renewal, a downgrade, and for a join that is repeated.
// One more each: a lock whose node has not been used for 30 s (it is made), a join
// that has to wait (the node before it is watched: the next lower, for a reader the
// next lower exclusive), a try that finds the lock held (its node is taken back). A
// try of a lock that was held less than 5 s ago reads first, so that polls
// cost the quorum nothing. If one op makes the transaction fail, each goes in one
// of its own.
//
// The children of a lock that we hold are watched, by the reading that its acquire
// needs anyway; whoever comes or goes is told by it, so a renewal has to ask for
// nothing but the one check for all: every change before it has been told by then. A
// watch costs the server some bytes a lease, where reading again would cost a request
// a lease and renewal. A lock that changes all the time is read at most ten times a
// second; our node there has a watch of its own, so that its deletion is known at
// once.
//
// Refused is said when nothing was sent or the server answered that it would not;
// all else that is no answer is Unknown. A making that was never answered is looked
// for, once a transaction has shown that nothing older is on its way, before its
// token is used again.
//
// # When things go wrong
//
//	connection lost       the client goes to the next server with the same session; ops on the
//	                      way are Unknown, others Refused, until it is there. Leases stay.
//	server restarted      the same: sessions and nodes are on its disk.
//	member lost, or hangs the same: an answer that is overdue by timeout cuts the connection.
//	no quorum             servers drop their clients: ops are Refused, ErrDown. Held leases end at
//	                      the deadline, as the session does; back before, they go on.
//	session expired, or   Session{Lost}; its leases and places in queues are gone, and a new
//	our deadline passed   session gets the next number.
//	node deleted by hand  its lease is lost: a hint says so, renewals are NotHeld. A place in a
//	                      queue is made anew by the next join, at the end. Of a semaphore
//	                      only that permit: the hint comes with the next look at it.
//	wrong password        ZooKeeper accepts any; what it may not touch is Refused, naming the
//	                      settings. Open fails if the chroot cannot be read or written.
//	password changed      password_file is read for each new session.
//	chroot missing        it is made, for good.
//	foreign node          whatever its data: it holds the lock, or waits for it, in its turn.
//	data wiped, or an     new sessions are refused (ErrServer): the server's transaction ids are
//	older copy restored   below the highest that this Store has seen, and fences would fall. A
//	                      server refuses to resume the old session. A session without nodes is
//	                      given up once it must have expired. A new Store cannot detect this.
//	session under 2 ticks refused (ErrServer).
//	base not above Floor  Refused, naming fence_epoch; the node is deleted.
//	server too old        Open fails: container nodes are needed.
//	not ZooKeeper         Open fails; nothing that it sends is taken in.
//	czxid of 2^53         Refused: the 21 bits of epochs that a fence leaves are used up.
//
// Close leaves the session to expire if anything hangs on it, so that what is held
// stays held; it closes the session otherwise.
//
// # Ownership
//
// A Store has one goroutine that keeps the session, one that checks locks and semaphores
// that have changed and marks permits, one that removes idle parents, and one that answers
// other daemons' questions. One more closes a session that is over. The client library has
// its own goroutines for each session. A library call takes no context, so each call has a
// goroutine, which ends with its answer, its connection or its session. Close ends all. Lock
// order: Store.mu alone; session.mu before Store.newsMu or idleParents.mu. No lock is held
// across I/O.
package zookeeper
