// Package mysql is the store in a table of a MySQL or MariaDB server. With replicas, it
// is the primary's table. The tests run MariaDB 10.11 (of Debian) and MySQL 9.7
// (make test-mysql). Galera clusters and group replication are not tested: there, all
// hosts must write to the same one server. Several stores of one server share its
// table, with or without the parameter prefix.
//
// # Layout
//
// A lock is a row; see table.sql. It stays when the lock is free and is deleted
// when its fence base is 24 hours old, by any Store, in small steps. All times are
// the server's, in µs of UTC.
//
//	name     <prefix><key>, bytes compared as bytes
//	version  of all that follows: it rises with each change
//	last     the request that made the last change: its kind, token and number
//	fence    the last fence base given out: max(last + 1, floor + 1, time)
//	owner    the exclusive holder's token, or dashes
//	ends     when the lease ends; of readers', the last at the latest. 0 when free
//	queued   when the last place in the queue ends
//	readers  token:ends; for each reader, in 54 bytes
//	queue    x or s and token:ends; for each host that waits, in the order in which they came
//
// A token is the instance id of the daemon's Store (22 characters), a dot, and the
// number of the lease or queue entry in 13 digits of base 36. A waiting host that does not repeat itself
// drops out by the end of its place (waiter_lease). To clean up by hand:
//
//	UPDATE locksidecar SET owner=REPEAT('-',36), ends=0, readers='', version=version+1 WHERE name='…'
//
// which leaves its fence and its queue. Deleting the row, or dropping the table, is as
// good for leases, and keeps fences rising as long as the clock does.
//
// A row whose name is a zero byte, "daemon:" and an instance id is the entry of a daemon. Its
// host, version and process are in readers, and its end is in queued. No lock has such a name.
//
// Semaphores have a table of their own, named after that of the locks with _permits
// behind (permits.sql), and nothing to do with locks of the same name. A permit that is
// held is a row, so is a token that queues for one, and one more is the semaphore:
//
//	name     <prefix><key>
//	token    as above; ~ of the semaphore, which is behind all others
//	place    in the queue, from 1; 0 of one that is held; -1 of the semaphore
//	ends     of the permit or the place; of the semaphore, a time before which nothing of it ends
//	fence    the permit's base; of the semaphore, the last one given out
//	most     the limit that its acquire gave
//	held     of the semaphore: how many permits are held, ended ones included
//	waits    and how many tokens queue
//	turn     and the last place that was given out
//
// Rows of permits and places are deleted when they are given back, the semaphore's when
// its last base is 24 hours old. What has ended is taken away, and the rest counted anew,
// by the next op once ends has passed, or by the purge. To clean up by hand, delete all
// rows of that name, or one permit's and have the rest counted:
//
//	DELETE FROM locksidecar_permits WHERE name='…' AND token='…';
//	UPDATE locksidecar_permits SET ends=0 WHERE name='…' AND token='~'
//
// # Calls
//
// A batch is one packet of statements, one round trip (exchange.go): one write of
// all its rows, which commits by itself, and what tells how they are. The write
// (change.go) changes a row if it is as a plain request needs it, as it is under
// the row's lock, and leaves it alone otherwise. Who has won the row says: it names
// the request that changed it last. Affected rows say nothing here. MariaDB (since
// 10.5) returns the rows with the write itself, under the same lock; on MySQL they
// are read after it, and those of releases before it. A request has its way or finds,
// in the same answer, how the row is. If that leaves something to do, as to queue, or
// to take a lock past dead waiters, decide (acquire.go) says what becomes of the row,
// and the next packet puts that in the place of the very version it was made from, or
// does nothing, and so on. So all that gives a lock away is one of two: a condition
// judged under the row's lock, or a change of a version that is known. A row is locked
// for the time of one statement, never while something goes over the network, but for
// the rows that are returned: they fit into the socket's buffers, since long texts
// stay behind and are read afterwards. Rows are locked in the order of their names.
//
// Only a request that is the row's last is answered as granted, renewed or shared
// from the row; when another came between the write and the reading, it is said again.
// Where a release's row is read before the write, that is sound because only the
// token's own Store takes it away.
//
// Ops about permits go in a packet of their own, at the same time as that of the locks if
// a batch has both (permits_exchange.go): one transaction, which is at the server whole,
// its COMMIT too, before it begins, so that it waits for nobody but the server. First it
// locks the rows of its semaphores, in the order of their names: all that changes
// anything of a semaphore has its row locked, so that permits are counted and given one
// after the other, and no two transactions wait for each other. Nothing else that is
// locked belongs to another semaphore: hence ~, and the indices that are named
// (permits_text.go). On MariaDB (since 10.5) it is a compound statement, which leaves out
// what there is nothing to do for and rolls back by itself; on MySQL the same statements
// are carried out one by one, by conditions that do not hold. What a token has come to is
// read by its name afterwards: only its own Store puts it there. There is no order among
// an instance's permits, so that a late acquire that nobody wants stands for its TTL.
// An op costs the same whatever the number of permits held: it reads about a dozen rows.
// Only once something may have ended does the next op read all of the semaphore; and a
// join whose turn may have come, those who queue before it. Where somebody queued who did
// not when this Store looked last, whether permits are contended takes one more round trip.
//
// # Time
//
// A statement's time is that of its beginning, however long it waits for a row, and
// @n is read before anything else of a packet. Such an old time is safe on both
// sides: a lease that is given begins before its row is looked at, but after the
// caller read its own clock; and whether another's has ended is judged by a time
// that is past, at which it may have had some left. NOW() is never used: it is of
// the session's time zone; nor SYSDATE(), which is too.
//
// # Errors
//
// Refused is said only when nothing was done: no connection was had, nothing of the
// packet was written, the error is one after which the server has rolled the write
// back, or it came before the write; the one query between the write and the
// reading tells errors of either apart. Else it is Unknown: nothing is sent twice
// that may have been carried out. Dead-locks (1213) are repeated within the batch's
// time: they have done nothing. So are writes that waited a second for a row (1205),
// without the rows that are found locked: they are refused, and for ten seconds they
// are looked at before others wait for them.
//
// # When things go wrong
//
//	server restarted,     ops on the way are Unknown, others Refused until it is back. Leases
//	crashed               outlive it, if it flushes each commit (innodb_flush_log_at_trx_commit=1,
//	                      and sync_binlog=1 with a binary log); else a crash of its machine may
//	                      lose the last ones: the log says so, and Info calls it best-effort.
//	stopped, cut off      ops are Unknown after Timeout; without a connection they are Refused.
//	                      A statement that was sent may still be carried out: on MariaDB until
//	                      Timeout after its beginning (max_statement_time). An acquire that comes
//	                      after its own withdrawal stands until its TTL is over or this host asks
//	                      for the key again.
//	read-only server      Open fails; later: an outage, ErrDown. It is looked at with each
//	                      connection and in each answer, also for users whom the server lets
//	                      write. The connection is closed: the next may lead to the primary.
//	                      What was written by such a user is Unknown, never granted.
//	failover              to a replica without the last commits: leases may be lost, and a lock can
//	                      get a second holder. A daemon that has seen the old primary gives larger fences,
//	                      even if the new primary's clock is behind. A daemon that never saw the old
//	                      primary (started or restarted since) can give smaller ones for as long as
//	                      the clocks differ. Where the old primary's fences were ahead of its clock
//	                      (lifted by fence_epoch, or the clock was set back), the new ones are above
//	                      all that this daemon has seen, but not above those of other hosts.
//	clock forward by d    leases and places end d early: two may hold a lock, with rising fences.
//	clock back by d       leases of hosts that are gone and their places last d longer. Fences
//	                      rise; those of rows purged before only if d is less than 24 hours. Rows
//	                      are purged by the earlier of the server's clock and this host's, so a
//	                      server's clock that was ahead purges nothing early.
//	table dropped, rows   leases are gone: renewals are NotHeld, once the table is there again:
//	deleted               the next connection makes it. Fences go on rising by the clock.
//	table of another kind Open fails, and says what differs. Behind OpenLazy: Refused.
//	a row locked by       its ops are Refused; the others of their batch wait a second, once in ten.
//	others for long
//	password changed      open connections go on; new ones fail and ops are Refused, saying which
//	                      settings to look at, until password_file has the new one.
//	no table of permits,  or a wrong one, or no right to DELETE in it: ops about permits are
//	                      Refused, saying what to run there; locks do without it. It is looked
//	                      at again by the next such op: nothing has to be started anew.
//	it is dropped         permits are gone, as leases are; a semaphore's row that is deleted
//	                      alone is made anew, and what stands is counted.
//	a row of a semaphore  its ops are Refused; the other permits of their batch wait a second,
//	locked by others      once in ten. Locks do not wait.
//	this host dies while  the server has the whole of it and carries it out. Only if a statement
//	a permit's packet is  failed at that moment (a row locked by others), the semaphores' rows
//	under way             stay locked until the server finds the connection gone; not on
//	                      MariaDB, but for one that is ended by max_statement_time.
//	more than 500 readers Refused, or that many waiting hosts, of one lock.
//	no right to DELETE    locks work; rows stay for ever. The log says so.
//
// # Waiting
//
// A server cannot tell a client that a row has changed. While a Store waits for
// locks it reads their rows every poll (100 ms, more or less), in one query that
// locks nothing; those that it holds about every 250 ms, at most 256 at a time. What
// it finds are its hints. A join is also repeated by the daemon, and a renewal says
// whether the lock is contended.
//
// Semaphores are looked at alike, in one more query: those that tokens of ours queue for,
// how many permits are free and, if any, who is first; and whether those of which we hold
// permits are contended. A hint that a permit may be free names its token; one that permits
// are contended is for all of ours.
//
// # Ownership
//
// Each Store has two goroutines of its own, one that looks and one that purges;
// Close ends them. database/sql has one more while it is open, and one for each
// connection. There are at most five connections: four for batches and renewals
// and one for all else. The locks, of what is looked at, of rows found locked and
// of the server last seen, are never held together, nor across I/O.
package mysql
