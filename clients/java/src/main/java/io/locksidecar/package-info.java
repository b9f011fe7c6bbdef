/**
 * Distributed locks from the locksidecar daemon on this host: one Unix socket, no store library, no renewal
 * thread, no retry loop.
 *
 * <p>{@link io.locksidecar.Sidecar} is the client. It makes {@link io.locksidecar.SidecarLock}, a {@link
 * java.util.concurrent.locks.Lock} that belongs to a thread and its handle, or to a named {@link io.locksidecar.Owner}; {@link
 * io.locksidecar.SidecarReadWriteLock}; and {@link io.locksidecar.Lease}, which is closed rather than unlocked, belongs
 * to no thread and can be had without blocking. {@link io.locksidecar.Leases} are of many keys at once, all or none,
 * and an {@link io.locksidecar.Election} is about who leads. A {@link io.locksidecar.SidecarSemaphore} lets in so many
 * at once.
 *
 * <h2>How long a lock is held</h2>
 *
 * <p>Until it is released. The daemon renews its lease in the store meanwhile, and releases it when this process or
 * its connection ends: a crash frees its locks at once. Where the host dies, they are free when the lease's TTL is
 * over. A {@linkplain io.locksidecar.LockOptions#fixed() fixed} one ends by itself after its TTL.
 *
 * <h2>When it is lost</h2>
 *
 * <p>No lock service can promise that a lock is held for as long as its holder believes: a process may be stopped, a
 * network cut. It can promise that the holder is told, and that the next holder has a larger fence. A hold is lost when
 * the daemon reports that, when the connection ends, and when the validity is over that the daemon has stated. A daemon
 * that sends nothing does not extend the validity. Each check compares that time with a clock that counts the time that
 * the machine sleeps ({@link java.lang.System#nanoTime} does not), and that errs by at most 10 ms, on the safe side.
 *
 * <p>An owner must release a lost lock, by unlocking or closing it, before it can acquire the key again. Until then every
 * acquire throws {@link io.locksidecar.LostException}: no new critical section begins inside the lost one. The same applies to
 * other handles and leases in the thread that acquired the lost lock, unless a lease was lost and a named owner acquires.
 *
 * <h2>Use the fence</h2>
 *
 * <p>A holder that was stopped for too long does not know yet that it has lost the lock. What it writes to can tell:
 * let it remember the largest fence it has seen, and refuse smaller ones.
 *
 * <pre>{@code
 * try (Lease lease = sidecar.lease("account:ann")) {
 *     int rows = update("UPDATE account SET balance = balance - ?, fence = ? WHERE id = 'ann' AND fence <= ?",
 *             amount, lease.fence(), lease.fence());
 *     if (rows == 0) {
 *         throw new IllegalStateException("the lock was lost to somebody else");
 *     }
 * }
 * }</pre>
 *
 * <p>A fence is a positive 63-bit number. It is 0, and no help, only where a daemon was configured to decide alone
 * while its store is down.
 *
 * <h2>Errors</h2>
 *
 * <p>All are unchecked {@link io.locksidecar.LockException}s, but for the {@link
 * java.lang.IllegalMonitorStateException} of an {@code unlock()} by somebody who does not hold the lock. An acquire that
 * throws has acquired nothing. They have the names that they have in the Python client:
 *
 * <table>
 * <caption>Codes and exceptions</caption>
 * <tr><th>code of the protocol</th><th>here</th><th>in Python</th><th>when</th></tr>
 * <tr><td>busy, timeout</td><td>{@code false}, or {@link io.locksidecar.NotAcquiredException}</td>
 *     <td>{@code NotAcquired}</td><td>it is held by somebody else; the wait ran out</td></tr>
 * <tr><td>canceled</td><td>{@link io.locksidecar.CanceledException}</td><td>{@code Canceled}</td>
 *     <td>the wait was withdrawn</td></tr>
 * <tr><td>upgrade</td><td>{@link io.locksidecar.UpgradeException}</td><td>{@code Upgrade}</td>
 *     <td>held shared and asked for exclusively</td></tr>
 * <tr><td>not_held</td><td>{@link io.locksidecar.NotHeldException}</td><td>{@code NotHeld}</td>
 *     <td>this owner does not hold the lock</td></tr>
 * <tr><td>not_held, and the push lost</td><td>{@link io.locksidecar.LostException}</td><td>{@code LostError}</td>
 *     <td>it did, and lost it</td></tr>
 * <tr><td>unavailable</td><td>{@link io.locksidecar.UnavailableException}</td><td>{@code Unavailable}</td>
 *     <td>no answer from the store or the daemon</td></tr>
 * <tr><td>too_slow, and the connection's end</td><td>{@link io.locksidecar.ConnectionLostException}</td>
 *     <td>{@code ConnectionLost}</td><td>the connection has ended, and every hold with it</td></tr>
 * <tr><td>draining</td><td>{@link io.locksidecar.DrainingException}</td><td>{@code Draining}</td>
 *     <td>the daemon is going away</td></tr>
 * <tr><td>unknown</td><td>{@link io.locksidecar.UnconfirmedException}</td><td>{@code Unconfirmed}</td>
 *     <td>released, but the store has not confirmed yet</td></tr>
 * <tr><td>limit, overlong</td><td>{@link io.locksidecar.LimitException}</td><td>{@code Limit}</td>
 *     <td>a limit of the daemon is reached</td></tr>
 * <tr><td>invalid</td><td>{@link io.locksidecar.InvalidException}</td><td>{@code Invalid}</td>
 *     <td>a key, TTL or wait out of range</td></tr>
 * <tr><td>unsupported</td><td>{@link io.locksidecar.UnsupportedException}</td><td>{@code Unsupported}</td>
 *     <td>the daemon or its store cannot do this</td></tr>
 * <tr><td>denied</td><td>{@link io.locksidecar.DeniedException}</td><td>{@code Denied}</td>
 *     <td>this process may not use this lock</td></tr>
 * <tr><td>none</td><td>{@link io.locksidecar.AlreadyHeldException}</td><td>{@code AlreadyHeld}</td>
 *     <td>this thread holds the key through another handle, and would wait for itself</td></tr>
 * <tr><td>bad_frame, bad_version</td><td>{@link io.locksidecar.ProtocolException}</td><td>{@code ProtocolError}</td>
 *     <td>something else than the protocol was spoken, or another version of it</td></tr>
 * </table>
 *
 * <h2>Threads and interrupts</h2>
 *
 * <p>Everything may be used by any number of threads, platform or virtual. An interrupt ends the wait of the thread
 * that it is meant for, withdraws its request, and gives back what is granted all the same; the shared connection lives
 * on. Nothing of the user's runs on the thread that reads it.
 */
package io.locksidecar;
