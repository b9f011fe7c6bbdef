// Package mysql is the store in a table of a MySQL or MariaDB server. With replicas, the table is
// the primary's. The tests run MariaDB 10.11 (of Debian) and MySQL 9.7 (make test-mysql). Galera
// clusters and group replication are not tested. With them, all hosts must write to the same
// server. Several stores of one server share its table, with or without the parameter prefix.
//
// # Layout
//
// A lock is a row; see table.sql. The row stays when the lock is free. Any Store deletes it, in
// small steps, when its fence base is 24 hours old. All times are the server's, in µs of UTC.
//
//	name     <prefix><key>, bytes compared as bytes
//	version  of the columns below: it rises with each change
//	last     the request that made the last change: its kind, token and number
//	fence    the last fence base granted: max(last + 1, floor + 1, time)
//	owner    the exclusive holder's token, or dashes
//	ends     the end of the lease, or of the last reader's at the latest; 0 when free
//	queued   the end of the last queue entry
//	readers  token:ends; for each reader, in 54 bytes
//	queue    x or s and token:ends; for each waiting host, in order of arrival
//
// A token is the instance id of the daemon's Store (22 characters), a dot, and the number of the
// lease or queue entry in 13 digits of base 36. A waiting host that does not repeat its request
// drops out when its queue entry ends (waiter_lease). To clean up by hand:
//
//	UPDATE locksidecar SET owner=REPEAT('-',36), ends=0, readers='', version=version+1 WHERE name='…'
//
// This keeps the fence and the queue. Deleting the row or dropping the table ends the leases too.
// Fences keep rising then as long as the clock does.
//
// A row whose name is a zero byte, "daemon:" and an instance id is the entry of a daemon. Its
// host, version and process are in readers, and its end is in queued. No lock has such a name.
//
// Semaphores have a table of their own, named after the locks' table with the suffix _permits
// (permits.sql). A semaphore is independent of a lock of the same name. Each held permit has a row,
// and so has each queued token. One more row is the semaphore itself:
//
//	name     <prefix><key>
//	token    as above; ~ of the semaphore, which sorts after all others
//	place    in the queue, from 1; 0 of a held permit; -1 of the semaphore
//	ends     of the permit or queue entry; of the semaphore, a time before which none of them ends
//	fence    the permit's base; of the semaphore, the last base granted
//	most     the limit of permits in the acquire
//	held     of the semaphore: the number of held permits, ended ones included
//	waits    of the semaphore: the number of queued tokens
//	turn     of the semaphore: the last place in the queue that was used
//
// Rows of permits and queue entries are deleted when they are released. The semaphore's row is
// deleted when its last base is 24 hours old. Once ends has passed, the next op or the purge
// deletes the ended rows and counts the others again. To clean up by hand, delete all rows of that
// name, or delete the row of one permit and have the others counted:
//
//	DELETE FROM locksidecar_permits WHERE name='…' AND token='…';
//	UPDATE locksidecar_permits SET ends=0 WHERE name='…' AND token='~'
//
// # Calls
//
// A batch is one packet of statements in one round trip (locks_exchange.go). The packet has one
// write of all rows of the batch, which commits by itself, and queries for the rows' states. The
// write (locks_rules_sql.go) changes a row only if the row's state, under the row's lock, allows
// the plain request. The row itself shows the winner: it names the request that changed it last.
// The number of affected rows is not used. MariaDB (since 10.5) returns the rows with the write
// itself, under the same lock. On MySQL they are read after the write, and rows of releases before
// it.
//
// A request is granted, or the same answer has the state of the row. If more is needed, such as
// queueing or taking over from waiters that have ended, decide (locks_rules.go) computes the next
// state of the row. The next packet writes that state if the row's version has not changed, and so
// on. So a lock is granted in one of two ways: by a condition that is evaluated under the row's
// lock, or by a change of a known version. A row is locked for one statement, never during network
// I/O. Returned rows are the exception: they fit into the socket's buffers, because long texts are
// left out and read afterwards. Rows are locked in the order of their names.
//
// A result is taken from the row only if the request is the row's last one. If another request came
// between the write and the read, the request is repeated. The row of a release may be read before
// the write, because only the token's own Store removes the token.
//
// Ops about permits have a packet of their own (permits_exchange.go). If a batch has both kinds,
// the two packets are sent at the same time. The packet of permits is one transaction. The server
// has all of it, with its COMMIT, before it begins, so it waits only for the server. First it locks
// the rows of its semaphores in the order of their names. Every change of a semaphore requires this
// lock. So permits are counted and granted one after the other, and no two transactions wait for
// each other. No other row that is locked belongs to another semaphore: this is why the token ~ and
// the named indices exist (permits_sql.go).
//
// On MariaDB (since 10.5) the transaction is a compound statement, which skips statements without
// work and rolls back by itself. On MySQL the same statements are carried out one by one, with
// conditions that are false. The state of a token is read by its name afterwards, because only its
// own Store writes it. There is no order among the permits of one instance. So a late acquire that
// nobody wants any more lasts for its TTL.
//
// An op reads about a dozen rows, whatever the number of held permits. Only once something may have
// ended does the next op read the whole semaphore. A join whose turn may have come reads the queue
// entries before it. If there is a queue and there was none when this Store last read the
// semaphore, one more round trip finds out whether permits are contended.
//
// # Time
//
// A statement's time is the time of its beginning, however long it waits for a row, and @now is set
// before anything else of a packet. Such an old time is safe in both directions. A granted lease
// begins before its row is read, but after the caller has read its own clock. And whether another
// lease has ended is decided by a time in the past, at which that lease may have had some time
// left. NOW() is never used, because it depends on the time zone of the session; nor is SYSDATE(),
// which does too.
//
// # Errors
//
// Refused means that nothing was done: there was no connection, nothing of the packet was written,
// the server rolled the write back, or the error came before the write. The query between the write
// and the reads separates errors of the two. All other errors mean Unknown: a request that may have
// been carried out is not sent again. Deadlocks (1213) have done nothing, so they are repeated
// within the batch's time. So are writes that waited a second for a row (1205), without the rows
// that are found locked. Those are refused. For ten seconds they are checked before other ops wait
// for them.
//
// # Failures
//
//	server restarted,     ops in progress are Unknown, others Refused until it is back. Leases
//	crashed               survive if each commit is flushed (innodb_flush_log_at_trx_commit=1,
//	                      and sync_binlog=1 with a binary log). Otherwise a crash of its machine
//	                      may lose the last ones: the log warns, and Info states best-effort.
//	stopped, cut off      ops are Unknown after Timeout; without a connection they are Refused.
//	                      A statement that was sent may still be carried out: on MariaDB until
//	                      Timeout after its beginning (max_statement_time). An acquire that is
//	                      carried out after its withdrawal lasts until its TTL is over or this
//	                      host requests the key again.
//	read-only server      Open fails. Later it is an outage, ErrDown. Each connection and each
//	                      answer is checked, also for users whom the server allows to write. The
//	                      connection is closed, because the next may lead to the primary. A
//	                      write by such a user is Unknown, never granted.
//	failover              to a replica without the last commits: leases may be lost, and a lock
//	                      can get a second holder. A daemon that has seen the old primary gives
//	                      larger fences, even if the new primary's clock is behind. A daemon that
//	                      never saw the old primary (started or restarted since) can give smaller
//	                      ones for as long as the clocks differ. If the old primary's fences were
//	                      ahead of its clock (raised by fence_epoch, or the clock was set back),
//	                      the new ones are above all that this daemon has seen, but not above
//	                      those of other hosts.
//	clock forward by d    leases and queue entries end d early: two may hold a lock, with rising
//	                      fences.
//	clock back by d       leases and queue entries of dead hosts last d longer. Fences rise. The
//	                      fences of rows purged before rise only if d is less than 24 hours. Rows
//	                      are purged by the earlier of the server's clock and this host's, so a
//	                      server's clock that was ahead purges nothing early.
//	table dropped, rows   leases are gone: renewals are NotHeld once the next connection has made
//	deleted               the table again. Fences keep rising by the clock.
//	wrong table           Open fails with the difference. After OpenLazy: Refused.
//	a row locked by       its ops are Refused; the others of their batch wait a second, once in
//	others for long       ten. The same holds for a row that another transaction is inserting. If
//	                      one keeps a gap between rows locked, a batch that inserts a row there
//	                      is Unknown.
//	password changed      open connections continue. New ones fail and ops are Refused, with the
//	                      settings to check, until password_file has the new password.
//	no table of permits,  or a wrong one, or no right to DELETE in it: ops about permits are
//	                      Refused, with the statement to run. Locks work. The next such op checks
//	                      the table again, so no restart is needed.
//	it is dropped         permits are gone, as leases are. If only a semaphore's row is deleted,
//	                      it is made again and the others are counted.
//	a row of a semaphore  its ops are Refused; the other permits of their batch wait a second,
//	locked by others      once in ten. Locks do not wait.
//	this host dies while  the server has all of it and carries it out. Only if a statement fails
//	a permit's packet is  at that moment (a row locked by others), the semaphores' rows stay
//	in progress           locked until the server finds the connection gone. On MariaDB this
//	                      happens only if max_statement_time ends the statement.
//	more than 500 readers or waiting hosts of one lock: Refused.
//	no right to DELETE    locks work; unused rows stay. The log says so.
//
// # Waiting
//
// A server cannot tell a client that a row has changed. While a Store waits for locks, it reads
// their rows every poll (100 ms, with jitter), in one query that locks nothing. It reads the rows
// of locks that it holds about every 250 ms, at most 256 at a time. Its hints are what these polls
// find. The daemon also repeats a join, and a renewal reports whether the lock is contended.
//
// One more query polls semaphores. Of those in whose queue this Store has tokens, it reads how many
// permits are free and, if any, which tokens are first. Of the semaphores of which this Store holds
// permits, it reads whether they are contended. A hint Available of a semaphore names its token; a
// hint Contended is for all permits of this Store.
//
// # Files
//
// The files by layer, in reading order. No layer depends on one below it in this list, with one
// exception: an Apply tells the watch which locks and semaphores to poll.
//
//	connection      config.go errors.go dial.go check.go table.go; permits_table.go, the
//	                semaphores' table
//	wire and batch  sql.go, the text of a packet; carry.go and carry_stuck.go, the turns that a
//	                batch takes
//	lock rules      locks_row.go, the row; locks_rules.go, the rules in Go; locks_rules_sql.go,
//	                the same in SQL; locks_sql.go and locks_exchange.go, one packet; locks.go, the
//	                ops of a batch and their results
//	permits         permits_sql.go, the rules; permits_exchange.go, one packet; permits.go, the
//	                results
//	list            list.go, list_permits.go, registry.go; purge.go and purge_permits.go
//	watch           watch.go, watch_permits.go
//	store           batch.go, Apply; store.go, the Store
//
// # Ownership
//
// Each Store has two goroutines of its own: one polls, one purges. Close ends them. database/sql
// has one more while it is open, and one for each connection. There are at most five connections:
// four for batches and renewals, and one for everything else. The mutexes of the watch, of the rows
// found locked and of the server last seen are never held together, nor across I/O.
package mysql
