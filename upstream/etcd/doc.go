// Package etcd is the store on an etcd cluster, by etcd's client v3.
//
// # Files
//
// The files by layer, from the bottom up. A file uses the layers above it in this list. There are
// three exceptions. session.go lets the tables forget the keys of a lost session. batch.go and
// batch_results.go give each op to the rules for locks or for permits. The key of a permit is an
// entry of locks_table.go, too.
//
//	configuration   config.go errors.go   the store URL; errors, what they prove, and advice
//	and connection  keys.go wire.go       names and values of keys; parts of transactions
//	                client.go members.go  calls, logins, and members that do not answer
//	                session.go current.go  the daemon's lease, on which all keys depend
//	wire and batch  batch.go              from ops to transactions
//	                batch_results.go      from answers to results; failed transactions
//	lock rules      locks_table.go        the keys that this Store has
//	                locks_request.go      the requests of an op
//	                locks_result.go       the effect of an answer
//	permits         permits_table.go permits_request.go permits_result.go  the same for semaphores
//	watch           watch.go permits_watch.go  one stream of watches, which give hints
//	                watch_check.go        reads that find what watches have missed
//	                questions.go          how long a lock has been held
//	list            list.go permits_list.go registry.go  locks, holders, sweeps, daemons' entries
//	                note.go               the note
//	store           store.go takeover.go  open, close, and pass the state to another process
//
// # Keys
//
// All keys are under one lease, the daemon's store session. A lock's keys are
//
//	<prefix>/<lock>/<lease>-<token>
//
// with the lease and the token's number in hexadecimal, and with "%" and "/" in the lock's name as
// %25 and %2F. The value is "locksidecar:exclusive", "locksidecar:shared", or, for a writer's
// short-lived queue entry, "locksidecar:brief" (a reader's entry is like any other). The order of
// their create revisions is the queue. A writer holds the lock if its key is the first. A reader
// holds it if only readers' keys are before its own. etcd's own concurrency.Mutex follows the same
// rule, and so does "etcdctl lock", which is the same code. With <prefix>/<lock> as their name they
// and this driver exclude each other and wait in one queue. Their keys have an empty value and are
// writers'. Anything else below <prefix>/<lock>/ counts as a writer's key, too.
//
// A fence base is the create revision. A downgrade changes the value in place, so the revision and
// the place in the queue stay.
//
//	<prefix>/%session/<lease>
//
// exists as long as the session does. Each request that takes a lock compares the revision at which
// this key was last written. To write it again therefore invalidates every request to take a lock
// that is still in flight. A withdrawal after an unanswered acquire does that: once it is Done, no
// late request succeeds. Below it,
//
//	<prefix>/%session/<lease>/daemon
//
// is the entry of the daemon, with its host, version and process. It ends with the lease. In
//
//	<prefix>/%session/<lease>/ask/<other lease>
//
// the daemon of the other lease asks this one how long it has held a lock, and finds the answer
// (questions.go). The key is under the other lease, and is removed at once.
//
//	<prefix>/%note
//
// is the note (upstream.Noter), under no lease. It is written while keys move here from another
// store.
//
// # Semaphores
//
// Each token that holds a permit or waits for one has a key of its own under the lease:
//
//	<prefix>/%permit/held/<semaphore>/<lease>-<slot>
//	<prefix>/%permit/queue/<semaphore>/<lease>-<slot>
//
// with "locksidecar:permit:<token>" as value. The slot is a small number that the daemon gives the
// token. Another token gets it once no request of the first can still arrive. Slots are reused
// because etcd's index keeps each name until it is compacted, and counting a prefix visits all of
// them. Without reuse, a busy semaphore would become slower with every permit. As names are reused,
// a key is removed only if it has the token's value.
//
// To take a permit is to create a key among the holders and to count them in one transaction. The
// key holds a permit if it is at most the Limit-th; a token that has not queued counts the queue as
// well. Otherwise the key is removed at once. That happens only if other hosts were faster, because
// the driver tries it only if there is room. It learns that from a read just before. If there was
// plenty of room at the last read (more than an eighth of the limit), it needs no read. Whether a
// key holds a permit is decided when it is created. If the answer was lost, the create revisions
// before it decide, and keys created together with it count as before it.
//
// One transaction can create any number of a semaphore's keys, with one create revision. So a
// permit's fence base is 256 times the revision plus the slot's last 8 bits, in which the permits
// of one transaction differ.
//
// The queue has the order of create revisions, and of names within a transaction. A queued token
// watches the key before its own; the first watches the removal of any holder's key. So a free
// permit wakes one token, and the departure of that token wakes the next, which may get a permit
// too if several became free. The tokens of the same daemon that can get one as well are told at
// once. A daemon that holds permits has two watches for each semaphore, not for each permit: for
// new keys in the queue, and for the removal of its own.
//
// An op costs a few operations of O(log n). A batch, not an op, counts once: in etcd's index, in
// memory, about 0.05 µs for each holder and waiter. A token that queues, and is not known to be
// where it was, reads the queue's names. A busy try is one read and no write. A granted try or join
// is one read and one write, or the write alone. A release is one write. A renewal, and a repeated
// join that still waits, are one read. A full batch is three transactions at once.
//
// # Requests
//
// A batch is one transaction of nested ones for the ops that write, and one for those that only
// read, which etcd answers without its log. A try is a range compare (there is no key under the
// lock's name) and a put. A reader's try is a second compare nested in the first one's other
// branch, because etcd answers no to a compare of the values of no keys. A join puts its key in any
// case. If the lock was not free, it reads its place in a second round, because most joins need not
// queue and a transaction costs etcd all its branches. All compares of a transaction run before its
// first write, so it has one op for each lock. etcd accepts 128 operations on a path of nested
// transactions: two levels hold a full batch. A server that accepts less (--max-txn-ops,
// --max-request-bytes) says so before it does anything, and gets smaller transactions from then on.
//
// A result is Refused only if nothing was done. Either no part of the call left this process, or
// the server's error proves it, or a read has shown it after the database was full.
//
// # Session
//
// This driver chooses the lease's id, so that it finds a lease again whose grant was not answered.
// Keep-alives are sent every third of the TTL that the server granted. Each answer moves the
// deadline, which counts from the time before the keep-alive was sent. If the deadline passes, or
// etcd no longer knows the lease, or another cluster answers, the session is lost. The next one
// begins only when etcd has confirmed that the old lease, and with it every key, is gone.
//
// # Watches
//
// One stream carries the watches of a daemon, each with a number of ours, without a goroutine for
// each. A queued token watches only the key before its own, so that a release wakes one token, and
// other daemons get no events. A watch of the whole prefix would send each release of the fleet to
// every daemon. A lock that has been held for 100 ms is watched, too, because most locks are
// released earlier. This watch shows other hosts that wait for the lock, and the removal of our key
// by another client. The watch lasts as long as the lease does, lingering or not. There are at most
// 16,384 watches. A watch begins with the present. What happened before is read once the watch
// exists, so compaction does not matter. In addition, the keys of held locks are read in turn, each
// once in a third of the TTL, up to 5,000 keys a second. All this only gives hints: HintAvailable,
// HintContended, HintTried for a writer's short-lived queue entry, and HintGone for a key of ours
// that somebody removed. Short-lived entries do not make a result Contended.
//
// # Failures
//
//	server restarted       with its data the lease survives, and all continues. Without: the
//	                       session is lost, and as revisions begin again this Store refuses
//	                       to continue until it is opened again (fences would fall).
//	an older copy of its   the same, although that copy may have the session: no answer below the
//	data restored          highest revision that this Store has seen counts.
//	leader changed         ops in flight are Unknown or late; the lease survives. Before 3.4.29
//	                       and 3.5.13, a leader that has lost the leadership without noticing can
//	                       revoke live leases (etcd issue 15247): two hosts can hold a lock until
//	                       the first one's session notices. A warning is logged on connecting.
//	                       In all versions, a leader that was suspended until another member
//	                       led can do so at the moment in which it continues.
//	one of three down      the others get the requests. A member that hangs costs one Timeout, and
//	                       then gets no requests for 5 s.
//	no majority            ErrDown; ops are Unknown or Refused; the session is lost at its
//	                       deadline.
//	paused (SIGSTOP)       ops are Unknown after Timeout, Refused once the session is lost.
//	lease revoked          the session is lost, nothing was granted under it meanwhile.
//	our key removed        HintGone; renewals are NotHeld. A place in a queue is taken again.
//	two take the last      one is granted, the other's key exists for a round trip more, in
//	permit at once         which another try may be Busy; one that had queued queues again.
//	session key removed    acquires are Refused until it exists again, a moment later.
//	compacted              no effect.
//	database full          acquires are Refused; renewals, releases, withdrawals work. Ping
//	                       fails. A new session cannot be made.
//	user's token expires   a new login, with password_file as it is then. With a wrong
//	                       password ops are Refused and name the settings to check.
//	no rights              Open fails, naming the permission.
//	not an etcd, too old,  Open fails. Behind OpenLazy: Refused, with the reason.
//	a learner, wrong TLS
//
// A release of a token of an earlier session is NotHeld, and a withdrawal is Done, without a
// request if that session is known to be gone. Until then, they are carried out under its lease.
//
// # Ownership
//
// A Store has five goroutines. runSessions makes and keeps sessions. runWatches keeps the stream of
// watches, with one more goroutine that receives. checkKeys reads the state of our keys.
// answerQuestions answers other daemons' questions, and removeQuestions removes our own. Close ends
// them. Apply starts one for each further transaction of a large batch and waits for it.
//
// Locks, none held across a call: lockKeys.mu (the keys that exist), client.token, members.mu,
// outgoingQuestions.mu; only client.login is held across a login. No two are held together but
// login before token.
package etcd
