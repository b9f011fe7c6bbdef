// Package postgres is the store in a table of a PostgreSQL server, version 12 or later. With
// standbys, it is the primary's table. The tests run PostgreSQL 15. Several stores of one server
// share its table, with or without the parameter prefix. There are no semaphores in this store.
//
// The files by layer, in reading order. No layer depends on one below it in this list.
//
//	connection  config.go   the store URL
//	            errors.go   error codes and what they mean
//	            connect.go  connections and their pool
//	            schema.go   the tables of sql/, which each connection makes or checks
//	            check.go    what a server has to be, and the settings of a connection
//	lock rules  sql/apply.sql  what a batch does to the rows
//	batch       batch.go    a batch as one statement, and its answer
//	watch       watch.go    hints, by LISTEN
//	list        list.go registry.go  listings, holders and the entries of daemons
//	            purge.go    deletes rows long unused
//	store       store.go    the Store
//
// # Layout
//
// A lock is a row of the table locksidecar; see sql/schema.sql. The row stays when the lock is
// free, because it keeps the last fence base, and is deleted when that base is 24 hours old. All
// times are the server's clock_timestamp(), in µs of UTC. A token is the instance id of the
// daemon's Store (22 characters), a dot and the number of the lease or queue entry in 13 digits of
// base 36. To free a lock by hand, which leaves its fence and its queue:
//
//	UPDATE locksidecar SET held = '{}' WHERE name = '…'
//
// # Calls
//
// A batch is one call of a function in the database, locksidecar_apply_…, in one round trip, which
// is one transaction. The function locks the rows in the order of their names, so that batches do
// not deadlock, decides by each row, and writes it. The rules exist only there. A row is locked
// while the batch is carried out and committed, never while something goes over the network. The
// suffix of the function's name is a checksum of its text, so hosts of different versions can share
// a table.
//
// An answer counts once the server is ready for the next statement: it sends rows before it
// commits. If it warns that a commit did not wait for the synchronous standbys, the batch is
// Unknown.
//
// # Errors
//
// Refused means that nothing was done. Either there was no connection, or nothing was sent, or the
// server answered with an error that is not fatal, after which it has rolled the transaction back.
// Otherwise the result is Unknown. Deadlocks and serialization failures are repeated within the
// batch's time. If another transaction keeps a row locked for a second, or for half of Timeout if
// that is less, only that lock is refused. For the next ten seconds other locks do not wait for it.
//
// # Faults
//
//	server restarted,     ops in flight are Unknown, others Refused until it is back. Leases outlive
//	crashed               it. If fsync or full_page_writes is off, a crash of its machine may lose
//	                      the last ones: the log says so, and Info calls the store best-effort. A
//	                      session sets synchronous_commit to on unless it is on or remote_apply.
//	stopped, cut off      ops are Unknown after Timeout; without a connection they are Refused. The
//	                      server cancels a statement that takes longer than Timeout.
//	standby, read-only    Open fails; later it is an outage, ErrDown. Each connection and each batch
//	                      checks pg_is_in_recovery() and transaction_read_only. The connection is
//	                      closed: the next may lead to the primary.
//	failover              to a standby without the last commits: leases may be lost, and a lock can
//	                      get a second holder. With synchronous_standby_names set, no confirmed
//	                      lease is lost if the failover is to a standby that has confirmed all
//	                      commits: with ANY, that may be another one each time. If that setting is
//	                      empty although standbys are connected, the log says so, and Info calls the
//	                      store best-effort. A daemon that has seen the old primary gives larger
//	                      fences even if the new primary's clock is behind. One that has not can
//	                      give smaller fences for as long as the clocks differ.
//	clock forward by d    leases and places end d early: two may hold a lock, with rising fences.
//	clock back by d       leases of hosts that are gone, and their places, last d longer. Fences
//	                      rise; those of rows purged before only if d is less than 24 hours.
//	table dropped         leases are gone: ops are Refused until the next connection makes the table,
//	                      then renewals are NotHeld. Fences continue to rise by the clock.
//	host cut off          its connections end after 30 s. Rows of a batch that has come only in part,
//	                      which is rare, are locked until then.
//	rows locked by        their ops are Refused; the others of their batch wait a second, once in
//	others                ten.
//	password changed      open connections continue; new ones fail until password_file has the new
//	                      one.
//	notifications full    (a listener elsewhere does not read) locks work and hints are lost.
//	no right to DELETE    locks work; rows stay forever. The log says so.
//	more than 500 hosts   that hold a lock or wait for it: Refused.
//	pgbouncer             works with pool_mode=session. With other modes LISTEN and the settings of a
//	                      session are lost: a batch without these is Refused. The log says when a
//	                      connection leads through a pooler.
//
// # Waiting
//
// The function sends notifications to the channel locksidecar_INSTANCE of each host that a change
// concerns. A release wakes the waiters that can get the lock, and a new waiter tells the holders.
// Batches without waiters send none, because commits with notifications wait for each other. A host
// that waits repeats its join; after waiter_lease without one it has lost its place.
//
// # Ownership
//
// Each Store has two goroutines, one that listens and one that purges; Close ends them. There are
// at most five connections, and one more for the listener. The locks of the pool, of the rows found
// locked and of the server last seen are never held together, nor across I/O. Environment variables
// and files of libpq are not read.
package postgres
