// Package etcd is the store on an etcd cluster, by etcd's client v3.
//
// # Layout
//
// All keys hang on one lease, the daemon's session. A lock's keys are
//
//	<prefix>/<lock>/<lease>-<token>
//
// with the lease and the token's number in hexadecimal, "%" and "/" in the lock's
// name as %25 and %2F, and as value "locksidecar:exclusive", "locksidecar:shared", or
// "locksidecar:brief" of a writer's short-lived queue entry (a reader's is like any other).
// The order of their create revisions is the queue: a writer holds the lock when
// its key is the first, a reader when nothing but readers' keys is before its own.
// That is what etcd's own concurrency.Mutex does, and "etcdctl lock", which is the
// same code: with <prefix>/<lock> as their name they and we keep each other out,
// wait for each other in one queue, and their keys, whose value is empty, are
// writers'. Anything else below <prefix>/<lock>/ counts as a writer's key, too.
//
// A fence base is the create revision. A downgrade changes the value in place, so
// the revision and the place in the queue stay.
//
//	<prefix>/%session/<lease>
//
// stands as long as the session does. Whoever takes a lock compares the revision at
// which it was last written. Writing it anew therefore ends every request to take a
// lock that is still on its way, and a withdrawal after an unanswered acquire does
// that: once it is Done, nothing comes late. Below it,
//
//	<prefix>/%session/<lease>/daemon
//
// is the entry of the daemon, with its host, version and process. It ends with the lease. In
//
//	<prefix>/%session/<lease>/ask/<other lease>
//
// the daemon of the other lease asks this one for how long it has held a lock, and finds the answer
// (asks.go). The key is on the other lease, and removed at once.
//
//	<prefix>/%note
//
// is the note (upstream.Noter), under no lease. It is written while keys move here from another store.
//
// # Semaphores
//
// Each token that holds or waits for a permit has a key of its own on the lease:
//
//	<prefix>/%permit/held/<semaphore>/<lease>-<slot>
//	<prefix>/%permit/queue/<semaphore>/<lease>-<slot>
//
// with "locksidecar:permit:<token>" as value. The slot is a small number that the
// daemon gives the token, and again to another one once nothing of it can come any
// more: etcd's index keeps each name until it is compacted, and to count a prefix is
// to go over all of them, so names that never come again would make a busy semaphore
// slower with every permit. As names come again, nothing is removed but by its value.
//
// To take a permit is to create a key among the holders and to count them, in one
// transaction: it counts if it is at most the Limit-th, and who comes from nowhere
// counts those who queue as well. Otherwise it is taken back at once. That happens
// only when others were quicker, as it is not tried unless there is room: by a read
// just before, or, when there was plenty of room at the last look (more than an
// eighth of the limit), without one. Whether a key counts was decided when it was
// created; of one whose answer was lost it is decided by the create revisions before
// it, and what was created together with it is taken as before it.
//
// Any number of a semaphore's keys are created in one transaction, with one create
// revision. So a permit's fence base is 256 times that and the slot's last 8 bits,
// and those of one transaction differ in these.
//
// The queue is in the order of create revisions (and names, within a transaction).
// Who queues watches the key before its own; the first watches the removal of any
// holder's. So a permit that comes free wakes one, and that one's going the next,
// which may come in as well if several came free; what the same daemon has queueing
// there too is told at once. A daemon that holds permits has two watches for each
// semaphore, not for each permit: on who comes to queue, and on the removal of its own.
//
// An op costs a few operations of O(log n), and once a batch, not once an op, it
// counts: in etcd's index, in memory, some 0.05 µs a holder and a waiter. Who queues,
// and is not known to be where it was, reads the queue's names. A busy try is one read
// and no write; a try or join that is granted is one read and one write, or the write
// alone; a release is one write; a renewal, and a repeated join that still waits, one
// read. A full batch is three transactions at once.
//
// # Calls
//
// A batch is one transaction of nested ones for what writes, and one for what only
// reads, which etcd answers without its log. A try is a range compare (nothing has
// been created under the lock's name) and a put; a reader's try is a second compare
// nested in the first one's other branch, because etcd says no when it compares
// values of no keys. A join puts its key in any case; if the lock was not free, it
// reads its place in a second round, as most need not queue and a transaction costs
// etcd by all its branches. All compares of a transaction run before its first write, so
// it has one op a lock. etcd takes 128 operations on a path of nested transactions:
// two levels hold a full batch. A server that takes less (--max-txn-ops,
// --max-request-bytes) says so before it does anything, and gets less from then on.
//
// Refused is said only when nothing was done: nothing of the call left this process,
// the server's error proves it, or, when its database is full, looking has shown it.
//
// # Session
//
// The lease's id is ours, so that one whose grant was not answered is found again.
// Keep-alives go out every third of the TTL that the server grants; their answers
// move the deadline to what follows from the time before they were sent. When it
// passes, or etcd knows the lease no more, or another cluster answers, the session
// is lost; the next one begins only when etcd has confirmed that the old lease, and
// with it every key, is gone.
//
// # Waiting
//
// One stream carries the watches of a daemon, each on a number of ours: no goroutine
// a watch. Who queues watches the key before its own alone, so that a release wakes
// one, and events of other locks go to nobody; a watch of the whole prefix would
// send each release of the fleet to every daemon. A lock that has been held for
// 100 ms is watched, too: for who else wants it, and for our key's removal by
// somebody else (most locks are released before). The watch stands as long as the
// lease does, lingering or not. There are at most 16,384 watches.
// A watch begins with the present, and what happened before is read once it stands,
// so compaction means nothing. Besides, what is held is read in turn, each key once
// in a third of the TTL up to 5,000 keys a second. All of this only gives hints:
// HintAvailable, HintContended, HintTried for a writer's short-lived queue entry, and HintGone for
// a key of ours that somebody removed. Short-lived entries do not make a result Contended.
//
// # When things go wrong
//
//	server restarted       with its data the lease survives, and all goes on. Without: the
//	                       session is lost, and as revisions begin anew this Store refuses
//	                       to go on until it is opened again (fences would fall).
//	leader changed         ops on the way are Unknown or late; the lease survives. Before 3.4.29
//	                       and 3.5.13, a leader that has lost the leadership without noticing can
//	                       revoke live leases (etcd issue 15247): two hosts can hold a lock until
//	                       the first one's session notices. A warning is logged on connecting.
//	                       In all versions, a leader that was suspended until another member
//	                       led can do so in the moment in which it continues.
//	one of three down      the others are asked. One that hangs costs one Timeout, and is
//	                       left alone for 5 s then.
//	no majority            ErrDown; ops are Unknown or Refused; the session is lost at its
//	                       deadline.
//	paused (SIGSTOP)       ops are Unknown after Timeout, Refused once the session is lost.
//	lease revoked          the session is lost, nothing was granted under it meanwhile.
//	our key removed        HintGone; renewals are NotHeld. A place in a queue is taken anew.
//	two take the last      one is granted, the other's key stands for a round trip more, in
//	permit at once         which another try may be Busy; one that had queued queues anew.
//	the session's removed  acquires are Refused until it stands again, a moment later.
//	compacted              nobody notices.
//	database full          acquires are Refused; renewals, releases, withdrawals work. Ping
//	                       fails. A new session cannot be made.
//	user's token ends      a new login, with password_file as it is then. With a wrong
//	                       password ops are Refused and say which settings to look at.
//	no rights              Open fails, naming the permission.
//	not an etcd, too old,  Open fails. Behind OpenLazy: Refused, with the reason.
//	a learner, wrong TLS
//
// Release and withdrawal of a token of an earlier session are NotHeld and Done
// without a question when that session is known to be gone; while it is not, they
// are carried out under its lease.
//
// # Ownership
//
// A Store has five goroutines: live makes and keeps sessions, follow keeps the
// stream of watches (with one more that receives), look reads what our keys look
// like, answer answers other daemons' questions, and removeQuestions removes our own.
// Close ends them. Apply starts one for each further transaction of a large
// batch and waits for it. Locks, none held across a call: lockKeys.mu (the keys that
// stand), client.token, members.mu; client.login alone is held across a login. No
// two are held together but login before token.
package etcd
