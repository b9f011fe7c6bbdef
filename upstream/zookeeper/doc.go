// Package zookeeper is the store on a ZooKeeper server or ensemble, 3.5.3 or later:
// zookeeper://[user:password@]a:2181,b:2181[/chroot/path].
//
// # Files
//
// The files by layer, in reading order. A layer uses those above it in this list. There are three
// exceptions. A session has the state of its locks and semaphores, and passes the events of watches
// to them. A batch calls the rules of locks and of permits, and a lock's node may belong to a
// permit. Locks and permits tell the watch what to check.
//
//	connection  config.go, errors.go, names.go and permits_names.go (names of nodes), wire.go (one
//	            connection), server.go (checks of a server), session.go (the session and its
//	            deadline), current.go (the current session), lifecycle.go (from session to
//	            session), requests.go (calls of the library), recent.go
//	batch       batch.go (Apply), transaction.go (writes), resolve.go (writes of unknown outcome)
//	locks       rules.go (a lock's queue), locknode.go, lock.go (acquires), renew.go, peek.go,
//	            sweep.go, parents.go (removal of idle parents)
//	permits     permits_node.go, permits_read.go, permits_batch.go
//	watch       watch.go (watches, and checks of what has changed), questions.go (how long a lock
//	            has been held)
//	list        list.go, list_names.go (long lists), permits_list.go, registry.go, note.go
//	store       store.go (the Store itself)
//
// # Layout
//
// locksidecar uses the layout of Curator's InterProcessMutex, so both exclude each other. A lock is
// a container node <chroot>/<name>. Each holder or waiter has an ephemeral sequential node
// _c_<UUID>-lock-<number> below it, and the lowest number holds the lock. The UUID is of version 8
// (Curator's are 4). It has the session's id, the number of the token, whether the node is shared,
// and whether it is a try. So a node can be found again if its creation was never answered, and the
// names alone are enough for nearly every decision. The data is "locksidecar <mode> <host>". The
// mode in the data counts, because a downgrade changes it. Shared nodes end in "lock-" like all
// others: for Curator, a reader is one more node before its own. Curator's
// InterProcessReadWriteLock uses other names and does not see our nodes. We wait for its nodes, but
// it does not wait for ours, so there is no mutual exclusion with it.
//
// The name of a lock is one element of a path. Percent-encoding applies to the characters "/" and
// "%", and to the characters that ZooKeeper forbids: control characters, surrogates, characters
// that need two UTF-16 units, private use, and U+FFF0 and above. It also applies to the names ".",
// "..", "zookeeper" and ".locksidecar". A child whose name does not end in a number holds nothing,
// as for Curator.
//
// The other nodes are below <chroot>/.locksidecar:
//
//	<session>         the session's own ephemeral node. Each transaction writes it, so its answer
//	                  has the id of the transaction. This id is the czxid of all nodes that the
//	                  transaction made, and so the fence base of their leases
//	daemon-<session>  the daemon's entry, with its host, version and process (registry.go); ephemeral
//	ask-<session>     a question to the daemon of that session (questions.go); ephemeral
//	note              the note (upstream.Noter), which is written while keys move here from
//	                  another store
//	permits           the semaphores
//
// # Idle parents
//
// The node of a lock or semaphore is kept for a while after its last child is gone, because the key
// may be used again. A Store removes the parents that it has used, once it has had no node below
// them for a minute. It does so in the background, many in one transaction. It remembers up to 2 MB
// of them, about 10,000. Beyond that it removes the oldest early, so it keeps up with any rate of
// new keys. The server therefore has nodes only for keys that are held, have waiters, or were used
// in the last minutes.
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
// The permits of key K are children of <chroot>/.locksidecar/permits/K. They are independent of the
// lock of that name. Each holder or waiter has an ephemeral sequential node
// p-<session>-<token>-<limit>-<number>, or t-… for a try. A node holds a permit if fewer nodes than
// its limit have lower numbers. Nodes before it only ever go away, so a node that holds a permit
// keeps it, and the names decide even if the reading is old. Children with other names hold
// nothing. The limit in the name is the limit of the first acquire, for lists and watches. The
// limit of each op decides.
//
// One transaction has one czxid for all nodes that it makes, but each permit needs its own base. So
// a batch makes one node of a semaphore in each transaction. The further transactions are sent
// right behind the first, and one reading of the semaphore behind them serves all. This takes one
// round trip for any number of nodes, and one proposal for each.
//
// An acquire reads all names of the semaphore, about 40 bytes each: 40 kB beside 1000 others. A
// release reads none. The renewals of a batch read them once, if there was a change since the last
// reading. A host that holds permits watches the children, to learn whether other hosts wait and
// whether its own nodes still exist. It reads them at most ten times a second, and less often by
// 0.2 ms for each child.
//
// Only the first waiter of a host waits for an event. If it is the next of all hosts, it watches
// the children, because any release lets it in. (A node that joins the queue then causes one
// needless hint.) Otherwise it watches only the node before it. That node no longer waits when it
// is deleted, or when its data says that it holds a permit. A holder that sees another host's node
// behind its own marks its own node so after the grant. So a release wakes one host, and the next
// waiter learns that it is the next. An error in this only costs time, because waiters also ask
// from time to time.
//
// If limits differ, a waiter with a lower limit counts only the nodes before it. It is granted
// beside holders that have passed it with a higher limit. There are never more permits than the
// highest limit of any acquire.
//
// # The session's deadline
//
// The Go client hides its pings and its reconnections, so the deadline is counted here. It cannot
// be counted from the send of any request that was answered, for three reasons:
//
//   - A server answers reads, pings and syncs even if its leader has been deposed, or its leader
//     answers them itself. Only a transaction proves that there was a quorum after it was sent. A
//     leader that comes later gives every session its whole timeout anew, and comes after that
//     transaction.
//   - A transaction does not renew the session. The server that received it renews the session for
//     itself, and tells its leader with the next of the leader's pings, every half tick. If the two
//     lose each other before that, the leader counts from what it was told last, which may be long
//     before. So it is not enough to take off one tick.
//   - After a connection is lost, the request may have been sent on the next one.
//
// So the deadline moves when a transaction is answered. It is counted from the send of an earlier
// request on the same connection. That request must have been answered at least a quarter of the
// session before the transaction was sent. The connect request counts, too, because it needs the
// leader's consent. The default shortest session is two ticks, so a quarter is half a tick or more,
// and a ping has been sent meanwhile. A server whose minSessionTimeout is set below two ticks
// breaks this. So each new session asks its server for its tickTime, and is refused if it is
// shorter than two ticks. If the server does not tell (conf is not in its 4lw.commands.whitelist),
// its tick is assumed to be at most the default of 2 s.
//
// A server that has lost its leader drops its clients, so one connection means one leader. While
// the session has nodes, it is confirmed every quarter of the session, by a transaction of one
// check that always succeeds. Otherwise a read is sent, as no deadline has to be confirmed then.
// The deadline counts the session timeout that the server granted, less cache.LeaseDeadline's
// drift. So a lease always has at least half a session left, and up to three quarters.
//
// Once the deadline has passed while the session has nodes, the session is over here. It is closed
// at the server as soon as there is a connection, or has expired there by itself. Each session has
// its own client, which may resume it at other servers but must not make another session.
//
// # Calls
//
// A batch is one transaction of all its changes. Right behind it on the same connection, the
// children of the locks are read. This is one round trip for a granted try, a release, a renewal, a
// downgrade, and a repeated join. Three cases need one more. The node of a lock that has not been
// used for 30 s is made. A join that has to wait watches the next lower node, or for a reader the
// next lower exclusive node. The node of a try that finds the lock held is deleted. A try of a lock
// that was held less than 5 s ago reads first, so polling does not load the quorum. If one op makes
// the transaction fail, each op gets its own transaction.
//
// The reading of an acquire also watches the children of the lock, so the holder is told of each
// node that comes or goes. A renewal therefore needs only one check for the whole batch: every
// earlier change has been told by then. A watch costs the server some bytes for each lease; reading
// again would cost a request for each lease and renewal. A lock that changes all the time is read
// at most ten times a second. Our node there has its own watch, so that its deletion is known at
// once.
//
// An op is Refused if nothing was sent or the server refused it. Without an answer it is Unknown.
// If a creation was never answered, the node is looked up before its token is used again, once a
// transaction has shown that no older request is in flight.
//
// # Failures
//
//	connection lost       the client connects to the next server with the same session. Until then,
//	                      ops in flight are Unknown and others are Refused. Leases stay.
//	server restarted      the same: sessions and nodes are on its disk.
//	member lost, or hangs the same: if an answer is overdue by timeout, the connection is cut.
//	no quorum             servers drop their clients: ops are Refused, ErrDown. Held leases end at
//	                      the deadline, as the session does. If the quorum is back before, they stay.
//	session expired, or   Session{Lost}; its leases and places in queues are gone, and a new
//	our deadline passed   session gets the next number.
//	node deleted by hand  its lease is lost: a hint says so, renewals are NotHeld. For a waiter, the
//	                      next join makes a new node, at the end of the queue. In a semaphore only
//	                      that permit is lost: the hint comes with the next check of it.
//	wrong password        ZooKeeper accepts any; ops without access are Refused, naming the
//	                      settings. Open fails if the chroot cannot be read or written.
//	password changed      password_file is read for each new session.
//	chroot missing        it is made, as permanent nodes.
//	foreign node          with any data, it holds the lock or waits for it in its turn.
//	data wiped, or an     new sessions are refused (ErrServer): the server's transaction ids are
//	older copy restored   below the highest that this Store has seen, and fences would fall. A
//	                      server refuses to resume the old session, or its first write ends it:
//	                      the id of that transaction, or the version of the session's own node,
//	                      is behind. (A new leader's ids begin above all earlier ones.) A session
//	                      without nodes is given up once it must have expired. A new Store cannot
//	                      detect this.
//	session under 2 ticks refused (ErrServer).
//	base not above Floor  Refused, naming fence_epoch; the node is deleted.
//	server too old        Open fails: container nodes are needed.
//	not ZooKeeper         Open fails; the driver rejects whatever the server sends.
//	czxid of 2^53         Refused: the 21 bits of epochs that a fence leaves are used up.
//
// Close leaves the session to expire if it has nodes, so that locks stay held. Otherwise it closes
// the session.
//
// # Ownership
//
// A Store has four goroutines. The first maintains the session. The second checks locks and
// semaphores that have changed, and marks permits. The third removes idle parents, and the fourth
// answers other daemons' questions. One more closes a session that is over. The client library has
// its own goroutines for each session. A library call takes no context, so each call has a
// goroutine, which ends with its answer, its connection or its session. Close ends all goroutines.
// Lock order: Store.mu alone; session.mu before Store.newsMu, idleParents.mu or recent.mu. No lock
// is held across I/O.
package zookeeper
